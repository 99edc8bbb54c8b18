"""The systems that are compared: how each server is started, which works its client program has, and what differs."""

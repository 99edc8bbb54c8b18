"""The log on disk: append, read, recover, retain."""

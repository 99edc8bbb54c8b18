"""The nameserver: the live brokers, their addresses, and the layout of every topic. It has no disk and no peers."""

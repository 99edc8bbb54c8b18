"""Follows a cluster: what its brokers report now, and the last hour of it, for tools that show a cluster as it changes."""

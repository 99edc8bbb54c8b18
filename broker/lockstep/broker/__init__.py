"""The broker: the log, the queues, and the locks that make ordered consumption ordered."""

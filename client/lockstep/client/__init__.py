"""The client SDK: producers and consumers."""

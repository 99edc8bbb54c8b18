"""The client programs: one process does one work and prints its figure."""

"""The nameserver: which brokers live, at which addresses, and every topic's layout. No disk, no peers."""

"""Sending: choosing a queue, batching, sequences, retries."""

"""The producer: choice of the queue, batches, sequences, retries."""

"""The log: one sequence of records in segments, from the append to the sync.

Here: the append of a frame, the check of a record, the segments, their writer and flusher, the checkpoint, and the clock that stamps
records. Not here: the positions of a queue's messages (`store/queues`).

Read `commit_log.py`, then `append.py` and `log_writer.py`.
"""

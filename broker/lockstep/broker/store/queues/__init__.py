"""Consume queues: the positions of each queue's messages in the log, and every read by them.

Here: the files of positions, reads of one queue, searches by time, key and condition, and making positions again from the log. Not here:
who may read (`broker/groups`).

Read `consume_queue.py`, then `reader.py`.
"""

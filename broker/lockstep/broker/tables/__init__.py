"""Tables of the whole broker. Pure: requests and times in, grants and changes out.

Here: topics, sequences of producers, progress of delayed messages, held pulls, and whether sends are taken. A table that is durable writes
its changes to the journal, and is restored from a snapshot and the log. Not here: the tables of groups (`broker/groups/tables`), and where
messages are (`broker/store/queues`).

Read `sequence_table.py` first, which is short and durable, then `topic_table.py`.
"""

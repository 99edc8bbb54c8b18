"""RocketMQ's directories: whether another broker has written to one, what it left there, and how a store is given back to it.

Here: the files config/*.json, the check of a directory that a start takes over (`--adopt`), the adoption itself, and the export. Not here:
the format of records, log and consume queues, which is the same (`broker/store`). The store knows nothing of this folder: a start opens it
by `opening.py`, which looks at the directory first.

Read `foreign_store.py` first: its table says what a start does with which directory. Then `opening.py`, `adoption.py` and `export.py`.
"""

"""Stored messages: finding them by key, id, time or text, what became of one in each group, and dead letters.

Here: searches at all brokers within limits, and the text of a message. Not here: sending (`operations/changes/send.py`).

Read `find.py`, then `topic_search.py` and `tracking.py`.
"""

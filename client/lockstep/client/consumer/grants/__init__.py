"""Grants: which queues this member may consume, since when, and from which offset.

Here: the rules of ownership, the session with each broker (LOCK, SYNC, leases), and their counterpart in broadcasting groups, whose
progress is in local files. Not here: which queues the member wants (`consumer/rebalance.py`), and what is done with a queue
(`consumer/calls`).

Read `ownership.py` first, then `broker_session.py`.
"""

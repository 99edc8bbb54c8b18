"""Consumers: push consumers call a listener, in order or concurrently; pull consumers are polled.

Here: the public classes, the membership of the group and its rebalances, events and health. Not here: whether a queue is held
(`consumer/grants`), and what is done with its messages (`consumer/calls`).

Read `push_consumer.py`, then `membership.py` and `rebalance.py`.
"""

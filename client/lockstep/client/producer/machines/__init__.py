"""Machines: what a producer does with a send, as state machines without event loop, clock, connection or futures.

Here: the queue that a send goes to, the sends that are pending there, the frame in flight, its sequence, and what a response means. Not
here: who carries out the effects (`producer/shell.py`), and when sends may go on (`producer/pacing`).

Read `pending.py` and `routing.py`, then the docstring of `queue_machine.py`. `topic_machine.py` is what the queues of a topic share.
"""

"""Pacing: when the sends of a producer go on, and how many of them in one turn of the event loop.

Here: the in-flight limit and those that wait for it, deadlines, the runs of queues at the end of a loop turn, and the share of a turn that
all this may take. Not here: what a run of a queue does (`producer/machines`).

Read `flow_control.py`, then `write_scheduler.py`; `ends.py` and `turn_share.py` bound their work per turn.
"""

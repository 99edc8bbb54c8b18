"""The health of a store: damage, its search and repair, room on the disk, and the removal of old messages.

Here: what is known to be damaged, the scrub, `lockstep store check`, retention, the disk reserve, and the watch over open files. Not here:
what a start does with a damaged log (`store/start`).

Read `damage.py`, then `scrubber.py`.
"""

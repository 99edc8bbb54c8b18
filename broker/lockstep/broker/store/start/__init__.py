"""The start of a store: from its files to its state.

Here: the directory, its survey before anything is changed, the snapshots, the replay of the log, and the cut of an unfinished tail. Not
here: damage (`store/health`), and what the broker makes of its state (`broker/state.py`).

Read `recovery.py` first: it lists the steps.
"""

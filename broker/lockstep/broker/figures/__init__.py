"""Figures: what the broker counts and measures of itself, for operators (OVERVIEW, Prometheus).

Here: sums over the tables, ages, and how they are named. All are read, in slices, and change nothing. Not here: the state of one group
(`broker/groups/group_status.py`) and the counters themselves, which are kept where the counted thing happens.

Read `figures.py` first.
"""

"""Brokers and the cluster as a whole: figures and rates, settings, the findings of `lockstep doctor`.

Here: requests to every broker (OVERVIEW), and pure functions of their figures. Not here: the course of figures over an hour
(`operations/watch`).

Read `overviews.py`, then `rates.py`.
"""

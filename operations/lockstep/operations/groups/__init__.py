"""Groups as their brokers report them: queues, members, progress, events, parked keys.

Here: requests for the state of groups, and pure functions that combine what several brokers report. Not here: changes of a group
(`operations/changes`), the cause why a queue does not progress (`operations/explain`).

Read `group_query.py`, then `group_report.py`.
"""

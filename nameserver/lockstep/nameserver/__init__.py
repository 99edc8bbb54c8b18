"""The nameserver: the live brokers, their addresses, and the layout of every topic. It has no disk and no peers.

Here: the pure table of routes, and the requests that change or read it. Not here: how two layouts of a topic meet
(`protocol/topics/layouts.py`).

Read `route_table.py`, then `processor.py`.
"""

"""The tables of groups. Pure: requests and times in, grants and changes out.

Each table is changed by its own methods alone, writes its durable changes to the journal, and is restored from a snapshot and the log. A
step that changes several of them belongs in `broker/groups/group_state.py`.
"""

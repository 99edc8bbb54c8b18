"""Copies of a broker's log on other machines, and which of them may become its master (ordering.md 16, ADR 47).

A replica copies the log byte by byte, at the same offsets. It asks for the bytes behind its end, as a consumer pulls, and the master confirms
what every member of its set has stored. The set is a file of the master. Nobody becomes a master by itself: `lockstep replica promote`.

    replica_set.py   who has to have what is confirmed       log_parting.py   where two logs part, and what a replica does about it
    start_rules.py   whether a master may open its ports     membership.py    lockstep/replica: member id, role, set

What is written into a log is not decided here but in store/replica_log.py; what a promoted broker does is any start's work (running.py).
"""

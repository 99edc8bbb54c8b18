"""Copies of a broker's log on other machines, and which of them may become its master (docs/replication.md, ADR 47).

A replica copies the log byte by byte, at the same offsets. It asks for the bytes behind its end, as a consumer pulls, and the master
confirms what every member of its set has stored. The set is a file of the master. Nobody becomes a master by itself, but by
`lockstep replica promote`.

    rules   replica_set.py  who has to have what is confirmed     log_parting.py  where two logs part, and what a replica does then
            start_rules.py  whether a master may open its ports   promotion.py    whether a replica may be promoted
    files   copy_identity.py lockstep/replica: id, role, set       closed_copy.py  what a closed store needs to be a whole copy:
            installing.py, cutting.py, refetching.py   it is made, shortened, or its damaged files are replaced
    work    serving.py      the master's side                     following.py, asking.py     the replica's, and a start's questions

What is written into a log is not decided here but in store/replica_log.py; what a promoted broker does is any start's work (running.py).
"""

"""Groups: who has which queue, how far each group is, and which keys it has set aside (ordering.md).

Here: sessions, member lists, contracts, locks, progress, parked keys, and the requests that change or read them. Each step runs in one turn
of the event loop, gets the time as a parameter, and leaves what has to be sent or closed as effects. Not here: frames and headers
(`broker/processors`, `broker/classic`), messages (`broker/store`), topics (`broker/tables`).

Read `coordination.py` first, which lists the parts, then `group_state.py` and `lock_sync.py`.
"""

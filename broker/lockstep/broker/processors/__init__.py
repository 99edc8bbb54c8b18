"""Requests: one class for each family of request codes.

Here: methods marked `@handles`. Each gets the decoded header and body, checks them in a fixed order, calls a table, the store or a part of
`Coordination`, and returns the response, or when it is to be sent. A rule of its own belongs in none of them. Not here: the requests that
only RocketMQ's clients and tools send (`broker/classic`), and the call of handlers (`runtime/requests/dispatch.py`).

Read `send.py` with `sent_frames.py` first, then `lock.py`, which is short, then `pull.py`.
"""

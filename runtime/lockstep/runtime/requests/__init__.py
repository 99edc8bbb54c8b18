"""Requests: finding the handler, its lane, and how a response leaves, now or later.

Here: the table of handlers, the one mapping of errors to responses, and how long lists are packed. Not here: the handlers
(`broker/processors`, `nameserver`), and how bytes arrive (`runtime/connections`).

Read `request.py` first, then `dispatch.py`.
"""

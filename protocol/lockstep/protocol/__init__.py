"""The wire protocol that nameserver, broker and client share: frames, codes, headers, bodies, records. Pure: bytes in, values out.

Here: everything that both ends must agree on, the layouts of topics and the allocation of queues included. Not here: sockets, clocks,
files (`runtime`), and what a server does with a request.

Read `frame.py` and `command.py`, then `record.py` for stored messages; `docs/wire.md` has the bytes.
"""

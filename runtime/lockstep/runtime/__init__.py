"""Access to the machine: event loop, sockets, files, clock, settings, logs. Higher layers receive it as arguments.

Here: what servers and clients need of the machine, and the way of a request from the socket to its handler. Not here: any rule about
messages, topics or groups.

Read `host.py`, then `endpoint.py`, `dispatch.py` and `request.py`.
"""

"""Connections: addresses, the ends of a connection, links that are kept, ports that accept.

Here: bytes become frames, frames become requests and responses, and what one peer can cost is limited. Not here: what a request does
(`runtime/requests`), and HTTP ports of operators (`runtime/admin_port.py`).

Read `endpoint.py` first, then `dial.py` and `link.py` for clients and `server.py` for servers.
"""

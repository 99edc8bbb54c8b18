"""Ports for servers that can't choose one themselves."""

import socket
from random import SystemRandom

REACHED_S = 1
FIRST, END = 20_000, 32_000
"""Below the range from which the kernel takes the ports of connections and of listeners at port 0, which other tests use meanwhile."""


def is_free(port: int) -> bool:
    """Return whether the port is free and reachable: published ports of containers can remain as firewall rules."""
    with socket.socket() as probe, socket.socket() as caller:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        caller.settimeout(REACHED_S)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
            caller.connect(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return ports of which each, and the one 2 below it, where RocketMQ's broker and its older clients use a second one, are free."""
    found: list[int] = []
    while len(found) < count:
        port = SystemRandom().randrange(FIRST + 2, END, 4)
        if port not in found and is_free(port) and is_free(port - 2):
            found.append(port)
    return found

"""Ports for servers that can't choose one themselves."""

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom

REACHED_S = 1
FIRST, END = 20_000, 32_000
"""Below the range from which the kernel takes the ports of connections and of listeners at port 0, which other tests use meanwhile."""


_claimed: dict[int, int] = {}
"""Port → the descriptor of the file whose lock makes it this process's."""


def is_free(port: int) -> bool:
    """Return whether the port is free and reachable, and claim it: to other processes that ask it is not free until this test ends.

    A server takes it only later, and another worker of the test run may ask meanwhile. Published ports of containers can remain as firewall
    rules.
    """
    return _is_reachable(port) and _claim(port)


@contextmanager
def claims_of_a_test() -> Iterator[None]:
    """Give up at the end the ports that are claimed within: another worker's test may need just these, which a page or a file names."""
    before = set(_claimed)
    try:
        yield
    finally:
        for port in _claimed.keys() - before:
            os.close(_claimed.pop(port))


def _claim(port: int) -> bool:
    if port in _claimed:
        return True
    folder = Path(tempfile.gettempdir()) / f"lockstep-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    _claimed[port] = descriptor
    return True


def _is_reachable(port: int) -> bool:
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
    """Return ports of which each, and the one 2 below it, where RocketMQ's broker and its older clients use a second one, are free.

    None is returned twice within a test.
    """
    found: list[int] = []
    while len(found) < count:
        port = SystemRandom().randrange(FIRST + 2, END, 4)
        if port not in _claimed and is_free(port) and is_free(port - 2):
            found.append(port)
    return found

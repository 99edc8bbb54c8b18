"""Prints what operations report while they run, as lines on stderr."""

import sys

from lockstep.cli.options import print_error
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.progress import Reporter, SearchProgress
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host

FIRST_MS = 2_000
"""Of a shorter search nothing is printed."""
EVERY_MS = 10_000
EVERY_TERMINAL_MS = 500
"""On a terminal the line is written over the one before."""


class StderrReporter(Reporter):
    """Prints notes at once, and how far a search has come from time to time."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next_ms = FIRST_MS
        """Time since the begin of the search."""
        self._width = 0
        """Characters of the line on the terminal."""

    def note(self, text: str) -> None:
        print_error(text)

    def searched(self, search: SearchProgress) -> None:
        elapsed_ms = search.elapsed_ms
        if elapsed_ms < self._next_ms:
            return
        self._next_ms = elapsed_ms + (EVERY_TERMINAL_MS if self._terminal else EVERY_MS)
        speed = search.describe_speed()
        line = f"lockstep: searched {search.describe()}" + (f", {speed}" if speed else "")
        if self._terminal:
            print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = len(line)
        else:
            print(line, file=sys.stderr, flush=True)

    def search_ended(self) -> None:
        """End the line on the terminal, so that the next output begins a new one."""
        self._next_ms = FIRST_MS
        if self._width:
            print(file=sys.stderr, flush=True)
            self._width = 0


def admin_client(nameserver: ClusterAddress) -> AdminClient:
    """Return a client of the cluster whose operations report to stderr. Raises ConfigError if a file of TLS can't be used."""
    return AdminClient(Host.current(), nameserver, reporter=StderrReporter())

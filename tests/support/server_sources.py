"""The source files of the servers as imported, from the working tree or from an installed wheel."""

from pathlib import Path

import lockstep.broker
import lockstep.nameserver
import lockstep.runtime

SERVERS = (lockstep.broker, lockstep.nameserver, lockstep.runtime)
NOT_OF_SERVERS = {"processes.py"}
"""Child processes are started by benchmarks, the demo and TestCluster."""


def server_sources() -> list[Path]:
    """Return the files of broker, nameserver and runtime."""
    found = [path for package in SERVERS for path in sorted(Path(package.__path__[0]).rglob("*.py"))]
    return [path for path in found if path.name not in NOT_OF_SERVERS]

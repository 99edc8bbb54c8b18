"""python -m lockstep.nameserver = lockstep nameserver."""

import sys
from collections.abc import Sequence

import lockstep.runtime.logs.lean_structlog  # noqa: F401 before all that logs
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.runtime.host import Host
from lockstep.runtime.server_main import run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program(
        "lockstep nameserver", NameserverConfig, lambda loaded: Nameserver(loaded.config, Host.real(), loaded.origins), arguments
    )


if __name__ == "__main__":
    sys.exit(main())

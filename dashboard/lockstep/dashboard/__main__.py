"""python -m lockstep.dashboard = lockstep dashboard."""

import sys
from collections.abc import Sequence

import lockstep.runtime.logs.lean_structlog  # noqa: F401 before all that logs
from lockstep.dashboard.config import DashboardConfig
from lockstep.dashboard.server import DashboardServer
from lockstep.runtime.host import Host
from lockstep.runtime.server_main import run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("lockstep dashboard", DashboardConfig, lambda loaded: DashboardServer(loaded.config, Host.real()), arguments)


if __name__ == "__main__":
    sys.exit(main())

"""python -m lockstep.broker.witness = lockstep witness."""

import sys
from collections.abc import Sequence

import lockstep.runtime.logs.lean_structlog  # noqa: F401 before all that logs
from lockstep.broker.witness.app import Witness
from lockstep.broker.witness.config import WitnessConfig
from lockstep.runtime.host import Host
from lockstep.runtime.server_main import run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Return the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_program("lockstep witness", WitnessConfig, lambda loaded: Witness(loaded.config, Host.real()), arguments)


if __name__ == "__main__":
    sys.exit(main())

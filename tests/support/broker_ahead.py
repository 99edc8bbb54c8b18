"""python -m support.broker_ahead = python -m lockstep.broker on a machine whose wall clock is an hour fast."""

import sys
from dataclasses import replace

from lockstep.broker.app import Broker
from lockstep.broker.config import BrokerConfig
from lockstep.runtime.clock import Clock
from lockstep.runtime.host import Host
from lockstep.runtime.server_main import run_program


class ClockAhead(Clock):
    """A clock that is an hour fast."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 3_600_000


if __name__ == "__main__":
    host = replace(Host.real(), clock=ClockAhead())
    sys.exit(run_program("lockstep broker", BrokerConfig, lambda loaded: Broker(loaded.config, host), sys.argv[1:]))

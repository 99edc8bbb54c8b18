"""The broker's state as the log of a store that is not open has it, for commands that change nothing."""

from collections.abc import Iterator
from typing import Any

from lockstep.broker.config import BrokerConfig
from lockstep.broker.state import BrokerState
from lockstep.broker.store.health.check import Removals
from lockstep.broker.store.start.directory import StoreIdentity


def closed_state(identity: StoreIdentity, removals: Removals) -> BrokerState:
    """Return empty tables that replay a snapshot and state records. `removals` learns which messages operators have removed."""
    config = BrokerConfig(name=identity.broker_name, cluster=identity.cluster)
    return BrokerState(config.coordination(), _ClosedStore(identity.store_id, removals), _NoRandom())  # type: ignore[arg-type]


class _ClosedStore:
    """What the tables ask of a store while they only read the log."""

    def __init__(self, store_id: str, removals: Removals) -> None:
        self.store_id = store_id
        self.drop_topic, self.hide_below = removals.drop_topic, removals.hide_below
        self.writer: Any = self
        self.before_write: Any = None
        self.log_bounds = 0, 0

    def request_write(self) -> None:
        """Ignore changes: none is written."""

    def fail_inconsistent(self, error: BaseException) -> None:
        raise error

    def stored_queue_ids(self, _topic: str) -> Iterator[int]:
        return iter(())

    def check_new_state(self, _what: str) -> None:
        """Accept everything that the log holds."""


class _NoRandom:
    """No table draws a number while it only reads the log."""

    def token(self, count: int) -> bytes:
        raise NotImplementedError

    def uniform(self, low: float, high: float) -> float:
        raise NotImplementedError

    def below(self, limit: int) -> int:
        raise NotImplementedError

"""Who acts on what a broker session hears: a queue's worker, a group's membership."""

from typing import Protocol

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.ownership import QueueOwnership
from lockstep.protocol.bodies import ListVersion, LockAnswer, StartPolicy


class QueueHandler(Protocol):
    """Who acts on what a session hears of one queue."""

    @property
    def own(self) -> QueueOwnership: ...

    def granted(self, answer: LockAnswer) -> None:
        """`own` is HELD: consumption begins at the answer's offset."""

    def lost(self, fenced: bool) -> None:
        """The epoch is gone: by a higher one (fenced), or because the release was answered."""

    def given_up(self) -> None:
        """The running call is past its drain limit and counts no more."""

    def cancel_soon(self) -> None:
        """The running call's result may no longer be accepted: tell it."""

    def answered(self) -> None:
        """Progress was answered, or life is proven again: whoever waits for that looks again."""

    def gap(self, first: int | None, end: int | None) -> None:
        """Retention took these messages before the group consumed them. None: it did not."""

    def start_policy(self, topic: str) -> StartPolicy: ...


class Deadline(Protocol):
    @property
    def deadline_ms(self) -> int:
        """Boot time from which no call may start."""


class QueueSession(Protocol):
    """What a queue's worker talks to: a broker's session, or in broadcasting the file beside it."""

    link: BrokerLink
    awaited: bool
    """A runner waits for life to be proven again."""

    @property
    def proof(self) -> Deadline: ...

    def add(self, party: QueueHandler) -> None:
        """From now on it is told of its queue."""

    def remove(self, party: QueueHandler) -> None:
        """Its machine is done."""

    def trigger(self) -> None:
        """A queue is wanted that is not held, or is held no more."""

    def changed(self, own: QueueOwnership, *, urgent: bool = False) -> None:
        """Progress, or a release; `urgent`: somebody waits for it."""

    def went_back(self, party: QueueHandler, first: int, end: int) -> None:
        """The queue now has the messages `first` ≤ offset < `end`, and its consumer was behind that."""


class GroupHandler(Protocol):
    """Who acts on what a session hears of one group."""

    def heard(self, link: BrokerLink, version: ListVersion) -> None: ...

    def doubted(self, link: BrokerLink) -> None:
        """A queue that was asked for is not this member's by the broker's list: ask for that list."""

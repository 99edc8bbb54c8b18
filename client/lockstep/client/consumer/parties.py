"""Who acts on what a broker session hears: a queue's worker, a group's membership."""

from typing import Protocol

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.ownership import QueueOwnership
from lockstep.protocol.bodies import ListVersion, LockAnswer, StartPolicy


class QueueParty(Protocol):
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


class GroupParty(Protocol):
    """Who acts on what a session hears of one group."""

    def heard(self, link: BrokerLink, version: ListVersion) -> None: ...

    def doubted(self, link: BrokerLink) -> None:
        """A queue that was asked for is not this member's by the broker's list: ask for that list."""

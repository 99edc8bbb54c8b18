"""What a broker session reports, and to whom: to the worker of a queue, and to a group's membership."""

from typing import Protocol

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.ownership import QueueOwnership
from lockstep.protocol.bodies import ListVersion, LockResult, StartPolicy


class QueueHandler(Protocol):
    """Handles what a session reports about one queue."""

    @property
    def ownership(self) -> QueueOwnership: ...

    def granted(self, answer: LockResult) -> None:
        """The queue is HELD: consumption begins at the answer's offset."""

    def lost(self, fenced: bool) -> None:
        """The grant has ended: by a newer one (fenced), or because the release was answered."""

    def given_up(self) -> None:
        """The running call is past its drain limit: its result no longer counts."""

    def cancel_soon(self) -> None:
        """The result of the running call may be refused: set the call's `cancelled` event."""

    def answered(self) -> None:
        """Progress was answered, or life is proven again: wake up whatever waits for that."""

    def gap(self, first: int | None, end: int | None) -> None:
        """Retention removed the messages `first` ≤ offset < `end` before the group consumed them. None: it did not."""

    def start_policy(self, topic: str) -> StartPolicy: ...


class Deadline(Protocol):
    @property
    def deadline_ms(self) -> int:
        """Boot time from which no call may start."""


class QueueSession(Protocol):
    """What a queue's worker talks to: a broker's session, or in broadcasting the member's own file."""

    link: BrokerLink
    awaited: bool
    """A runner waits for life to be proven again."""

    @property
    def proof(self) -> Deadline: ...

    def add(self, handler: QueueHandler) -> None:
        """Acquire, renew and release the queue as its machine says, and report to the handler."""

    def remove(self, handler: QueueHandler) -> None:
        """Forget the queue: its machine is done."""

    def trigger(self) -> None:
        """Look for queues to acquire or to release: one is wanted that is not held, or is no longer held."""

    def changed(self, ownership: QueueOwnership, *, urgent: bool = False) -> None:
        """Send progress or a release; `urgent`: at once, because something waits for the response."""

    def went_back(self, handler: QueueHandler, first: int, end: int) -> None:
        """The queue now holds the messages `first` ≤ offset < `end`, and this member's offset is above `end`."""


class GroupHandler(Protocol):
    """A consumer's membership of its group, as sessions and workers see it."""

    def heard(self, link: BrokerLink, version: ListVersion) -> None:
        """A response named the version of the member list."""

    def doubted(self, link: BrokerLink) -> None:
        """The broker's list does not give a queue to this member that it asked for: request the list."""

    def start_policy(self, topic: str) -> StartPolicy:
        """Returns where the group begins in a queue of the topic that it has no progress of."""

    def hear_since(self, topic: str, since: int) -> None:
        """A broker resolved the start policy for the topic at this layout counter."""

    def beat_soon(self) -> None:
        """A broker does not know the group's subscription: send a heartbeat."""

    def forget(self, handler: QueueHandler) -> None:
        """The queue's machine is done."""

"""What broker sessions, the workers of queues and a group's membership see of each other. Their modules can't import each other.

| protocol | class |
|---|---|
| ReportedQueueWorker; AbstractQueueWorker (calls/runner.py) | QueueWorker (calls/queue_worker.py) |
| QueueSession | BrokerSession (grants/broker_session.py), LocalSession (grants/broadcast.py) |
| AbstractMembership | Membership (membership.py) |
"""

from collections.abc import Sequence
from typing import Protocol

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.grants.ownership import QueueOwnership
from lockstep.protocol.bodies import ListVersion, LockResult, ReplayKey, StartPolicy


class ReportedQueueWorker(Protocol):
    """A queue's worker as sessions see it: it handles their reports about the queue."""

    @property
    def ownership(self) -> QueueOwnership: ...

    def granted(self, result: LockResult) -> None:
        """Handle that the queue is HELD: consumption begins at the offset of the result."""

    def grant_ended(self, fenced: bool) -> None:
        """Handle that the grant has ended: by a newer one (fenced), or because the release was confirmed."""

    def drain_limit_passed(self) -> None:
        """Handle that the running call has exceeded its drain limit: its result no longer counts."""

    def cancel_calls(self) -> None:
        """Set `cancelled` in the contexts of running calls, because their results may be refused."""

    def wake_waiters(self) -> None:
        """Wake everything that waits for confirmed progress or a new proof of life."""

    def report_gap(self, first: int | None, end: int | None) -> None:
        """Handle that the messages `first` ≤ offset < `end` were removed before the group consumed them; None: none were."""

    def replay(self, keys: Sequence[ReplayKey]) -> None:
        """Handle that an operator wants these parked keys to be replayed or dropped."""

    def start_policy(self, topic: str) -> StartPolicy:
        """Return where the group begins in a queue of the topic in which it has no progress."""


class Deadline(Protocol):
    """Limits the start of calls."""

    @property
    def deadline_ms(self) -> int:
        """Return the boot time from which no call may start."""


class QueueSession(Protocol):
    """The session of a queue's worker: a broker's session, or in broadcasting the member's own file."""

    link: BrokerLink
    proof_awaited: bool
    """Whether a runner waits for a new proof of life."""

    @property
    def proof(self) -> Deadline: ...

    def add(self, worker: ReportedQueueWorker) -> None:
        """Acquire, renew and release the queue as its machine requires, and report to the worker."""

    def remove(self, worker: ReportedQueueWorker) -> None:
        """Remove a queue after its machine is done."""

    def trigger(self) -> None:
        """Acquire the queues that are wanted and not held, and release those that are no longer wanted."""

    def changed(self, ownership: QueueOwnership, *, urgent: bool = False) -> None:
        """Send progress or a release; `urgent`: at once, because something waits for the response."""

    def queue_truncated(self, worker: ReportedQueueWorker, first: int, end: int) -> None:
        """Handle that the queue now holds the messages `first` ≤ offset < `end`, and this member's offset is above `end`."""


class AbstractMembership(Protocol):
    """A consumer's membership of its group, as sessions and workers see it."""

    def list_version_received(self, link: BrokerLink, version: ListVersion) -> None:
        """Handle that a response named the version of the member list."""

    def request_list(self, link: BrokerLink) -> None:
        """Request the broker's list, because it does not assign a requested queue to this member."""

    def start_policy(self, topic: str) -> StartPolicy:
        """Return where the group begins in a queue of the topic in which it has no progress."""

    def start_resolved(self, topic: str, since: int) -> None:
        """Record the layout counter at which a broker resolved the start policy of the topic."""

    def heartbeat_soon(self) -> None:
        """Send a heartbeat, because a broker does not know the group's subscription."""

    def forget(self, worker: ReportedQueueWorker) -> None:
        """Remove a queue after its machine is done."""

"""Stores the frames of senders, if the broker takes sends to their queue now: the last checks of every send, and its append.

What the broker sends on its own behalf (`broker/delivery`) does not come here.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from lockstep.broker.delivery.room_bytes import RoomBytes
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.store import Appended, Store
from lockstep.broker.store.log.waiting_records import Room
from lockstep.broker.tables.send_gate import SendGate
from lockstep.broker.tables.timer_table import PendingTimer, TimerTable
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.broker.tables.transaction_table import TransactionTable
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.record import NO_HOST, host_address, pack_host
from lockstep.protocol.names import HALF_TOPIC
from lockstep.runtime.clock import Clock
from lockstep.runtime.requests.request import Request, RetryLaterError, Until
from lockstep.runtime.security.authenticated_user import ANYBODY

UNTIL: Mapping[bool | None, Until] = {None: "confirmed", True: "synced", False: "written"}
"""Header field `durable` → how far the log must be before the response is sent."""
UNCONFIRMED_MAX = 100_000
"""Responses that may wait for the disk: about 40 MB, fifty producers with the usual 2,000 in flight. One more send is refused with
SYSTEM_BUSY.
"""
BUSY_RETRY_MS = 200
HELD_RETRY_MS = 100
PENDING_RETRY_MS = 1_000
MIB = 1 << 20


class WaitingLimits(NamedTuple):
    """The limits of the waiting rooms."""

    timers_max: int
    """The largest number of pending timers."""
    wait_max_ms: int
    """The longest delay of a timer."""
    halves_max: int
    """The largest number of open half messages."""


class SentFrames:
    """Checks the queue, the broker's load and the holds of writes, and appends a frame."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        gate: SendGate,
        holds: WriteHolds,
        clock: Clock,
        quotas: UserQuotas,
        timers: TimerTable,
        transactions: TransactionTable,
        limits: WaitingLimits,
        timer_bytes: RoomBytes[PendingTimer],
    ) -> None:
        self._timer_bytes = timer_bytes
        self._timers = timers
        self._transactions = transactions
        self.limits = limits
        self.store = store
        self.quotas = quotas
        self.topics = topics
        self._gate = gate
        self._holds = holds
        self._clock = clock

    def append(
        self, request: Request, topic: str, queue_id: int, frame: bytes | bytearray | memoryview, count: int, *, sequenced: bool = False
    ) -> Appended:
        """Append a frame; every send is stored by this, or by `broker/delivery` after a delay. Raises the errors of `admit` and of
        Store.append_frame."""
        self.admit(request, topic, queue_id)
        plain = bytes(frame) if isinstance(frame, memoryview) else frame
        return self.store.append_frame(topic, queue_id, plain, count, born_host=born_host(request.endpoint.peer), sequenced=sequenced)

    def append_waiting(
        self, request: Request, topic: str, queue_id: int, room_topic: str, room: Room, count: int, *, sequenced: bool
    ) -> Appended:
        """Append the request's frame to a waiting room; `topic` and `queue_id` are its home. Raises the errors of `append`, but for timers
        not those of held writes: the queue itself is not written to."""
        if room_topic == HALF_TOPIC:
            self.check_room(topic, queue_id)  # a move of the queues waits until no transaction is open
        else:
            self.topics.check_writable(topic, queue_id)
            self.check_load()
        self.check_pending(room_topic, count, len(request.body))
        self._count_for_user(request)
        plain = bytes(request.body) if isinstance(request.body, memoryview) else request.body
        host = born_host(request.endpoint.peer)
        return self.store.append_frame(room_topic, 0, plain, count, born_host=host, sequenced=sequenced, room=room)

    def check_pending(self, room: str, count: int, size: int) -> None:
        """Count messages that are about to be stored in a waiting room. Raise RetryLaterError if so many more would be too many."""
        if room == HALF_TOPIC:
            if len(self._transactions) + count > self.limits.halves_max:
                open_, limit = len(self._transactions), f"at most {self.limits.halves_max} (transactions_open_max)"
                raise RetryLaterError(f"{open_} half messages have no outcome, {limit}: `lockstep tx ls` lists them", PENDING_RETRY_MS)
        elif self._timers.count_max + count > self.limits.timers_max and len(self._timers) + count > self.limits.timers_max:
            raise RetryLaterError(
                f"{len(self._timers)} timers are pending, at most {self.limits.timers_max} (timer_pending_max)", PENDING_RETRY_MS
            )
        else:
            pending, most = self._timer_bytes, self._timer_bytes.limit
            if pending.bytes + size > most:
                text = f"pending timers take up to {pending.bytes / MIB:.1f} MiB of the log, and {size} bytes more would be too many"
                raise RetryLaterError(f"{text}: at most {most / MIB:.1f} MiB (timer_mib_max)", PENDING_RETRY_MS)
            pending.add(size)

    def admit(self, request: Request, topic: str, queue_id: int) -> None:
        """Check a send, and count it towards the limits of its user. Raises the errors of `check_room`, and RetryLaterError."""
        self.check_room(topic, queue_id)
        self._count_for_user(request)

    def _count_for_user(self, request: Request) -> None:
        if request.user is not ANYBODY and self.quotas.limited:
            self.quotas.admit_send(request.user.name, request.size)

    def check_room(self, topic: str, queue_id: int) -> None:
        """Check that the queue takes sends now. Raises the errors of TopicTable.check_writable and `check_load`, and RetryLaterError."""
        self.topics.check_writable(topic, queue_id)
        self.check_load()
        if self._holds and self._holds.holds(topic, self._clock.boot_ms()):
            raise RetryLaterError(f"the queues of topic {topic} are being moved", HELD_RETRY_MS)

    def check_load(self) -> None:
        """Check that the broker takes sends now. Raises ServiceNotAvailableError and RetryLaterError."""
        self._gate.check()
        if self.store.writer.waiting_count >= UNCONFIRMED_MAX:
            raise RetryLaterError(f"{UNCONFIRMED_MAX} responses wait for the disk", BUSY_RETRY_MS)


@lru_cache(maxsize=4096)
def born_host(peer: str) -> bytes:
    """Return the sender's "ip:port" in its 8 stored bytes."""
    try:
        return pack_host(peer)
    except LocalProtocolError:
        return NO_HOST


@lru_cache(maxsize=8)
def host_text(store_host: bytes) -> str:
    """Return the host:port that records carry as store host."""
    return host_address(store_host)

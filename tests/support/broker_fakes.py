"""Fakes for tests of processors: an endpoint that keeps its frames, a store in memory, a host whose clock stops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from lockstep.broker.processors.client import ClientProcessor
from lockstep.broker.store import Appended, ReadResult, ReadStatus, StoreCorruptError
from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.queues.predicates import Keep, stored_properties
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import TransportError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.frame import FrameBuffer
from lockstep.protocol.messages.record import split_records
from lockstep.protocol.tags import tags_code
from lockstep.runtime.clock import Clock
from lockstep.runtime.turn import TurnBudget
from support.clocks import SetClock
from support.coordination_kit import Bench


def at_once(callback: Callable[[], None]) -> None:
    """Confirm at once, as a log without anything pending."""
    callback()


class FakeRandom:
    def token(self, count: int) -> bytes:
        return bytes(range(1, count + 1))

    def below(self, limit: int) -> int:
        return limit - 1

    def uniform(self, low: float, high: float) -> float:
        return low


@dataclass
class FakeHost:
    clock: Clock = field(default_factory=SetClock)
    random: FakeRandom = field(default_factory=FakeRandom)


class FakeEndpoint:
    """An endpoint that keeps the responses, decoded."""

    def __init__(self, id: int = 1, peer: str = "10.0.0.7:5000") -> None:
        self.id = id
        self.peer = peer
        self.closed = False
        self.unsent_bytes = 0
        self.sent: list[Command] = []
        self.drained: Any = None
        """A future that drain() waits for."""

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def send_frame(self, frame: bytes) -> None:
        buffer = FrameBuffer()
        buffer.feed(frame)
        command = buffer.next()
        assert command is not None
        self.sent.append(command)

    def owe(self, frame: Sequence[bytes | memoryview]) -> Callable[[], None]:
        return lambda: self.send_frame(b"".join(frame))

    def flush_soon(self) -> None:
        """Do nothing: frames are visible at once."""

    def flush(self) -> None:
        """Do nothing: frames are visible at once."""

    def send_parts(self, command: Command, parts: list[bytes]) -> None:
        command.body = b"".join(parts)
        self.sent.append(command)

    async def drain(self) -> None:
        if self.drained is not None:
            await self.drained
        if self.closed:
            raise TransportError("closed")

    def take(self) -> list[Command]:
        taken, self.sent = self.sent, []
        return taken


class FakeStore:
    """Queues in memory. Everything is visible and confirmed at once, unless `confirm_now` is off."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], list[tuple[bytes, str | None]]] = {}
        self.end = 0
        self.refuse: Exception | None = None
        """The error that append_frame raises."""
        self.born_hosts: list[bytes] = []
        self.store_host = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
        self.writer = self
        self.confirm_now = True
        self.waiting: list[Callable[[], None]] = []
        self.waiting_written: list[Callable[[], None]] = []
        self.waiting_synced: list[Callable[[], None]] = []
        self.cold = False
        self.rotten: dict[tuple[str, int], int] = {}
        """Queue → offset of a message that can't be read."""
        self.unreadable: dict[tuple[str, int], Exception] = {}
        self.hidden: dict[tuple[str, int], int] = {}
        self.sent_record_bytes_max = 5 << 20
        self.damage = DamageTable()

    def append_frame(self, topic: str, queue_id: int, frame: bytes | bytearray, count: int, *, born_host: bytes, **_: bool) -> Appended:
        if self.refuse is not None:
            raise self.refuse
        records = split_records(frame)
        assert len(records) == count
        return self.append(topic, queue_id, [bytes(frame[start:end]) for start, end in records], born_host)

    def append(
        self, topic: str, queue_id: int, records: list[bytes], born_host: bytes = b"", tags: list[str | None] | None = None
    ) -> Appended:
        queue = self.queues.setdefault((topic, queue_id), [])
        appended = Appended(len(queue), self.end, 1_800_000_000_000)
        queue += zip(records, tags or [None] * len(records), strict=True)
        self.end += sum(map(len, records))
        self.born_hosts.append(born_host)
        return appended

    def now_ms(self) -> int:
        return 1_800_000_000_000

    def upkeep(self) -> None:
        pass

    clock_sets = 0

    def stored_ms(self, position: int, stamp_ms: int) -> int:
        return stamp_ms

    def when_written(self, callback: Callable[[], None]) -> None:
        self.waiting_written.append(callback)

    def when_synced(self, callback: Callable[[], None]) -> None:
        self.waiting_synced.append(callback)

    def when_confirmed(self, callback: Callable[[], None]) -> None:
        if self.confirm_now:
            callback()
        else:
            self.waiting.append(callback)

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, len(self.queues.get((topic, queue_id), []))

    def queue_ids(self, topic: str) -> list[int]:
        return [queue_id for name, queue_id in self.queues if name == topic]

    def end_offset(self, topic: str, queue_id: int) -> int:
        return self.bounds(topic, queue_id)[1]

    def read(self, topic: str, queue_id: int, offset: int, **page: Any) -> ReadResult | None:
        return None if self.cold else self.read_now(topic, queue_id, offset, **page)

    async def read_cold(self, topic: str, queue_id: int, offset: int, **page: Any) -> ReadResult:
        return self.read_now(topic, queue_id, offset, **page)

    async def read_or_wait(self, topic: str, queue_id: int, offset: int, max_count: int, max_bytes: int) -> ReadResult:
        result = self.read(topic, queue_id, offset, max_count=max_count, max_bytes=max_bytes)
        if result is None:
            result = await self.read_cold(topic, queue_id, offset, max_count=max_count, max_bytes=max_bytes)
        return result

    def read_now(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        max_count: int,
        max_bytes: int,
        tag_hashes: frozenset[int] | None = None,
        keep: Keep | None = None,
    ) -> ReadResult:
        if (error := self.unreadable.get((topic, queue_id))) is not None:
            raise error
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_QUEUE, 0, 0, 0)
        end = len(queue)
        if offset > end:
            return ReadResult(ReadStatus.OFFSET_TOO_LARGE, end, 0, end)
        if offset == end:
            return ReadResult(ReadStatus.OFFSET_AT_END, end, 0, end)
        parts: list[bytes] = []
        size = examined = examined_bytes = 0
        following = offset
        for record, tag in queue[offset:]:
            if following == self.rotten.get((topic, queue_id)) and len(parts) < max_count:
                raise StoreCorruptError(f"offset {following} of {topic}")
            if len(parts) == max_count or (parts and size + len(record) > max_bytes):
                break
            following += 1
            if keep is not None:
                examined += 1
                examined_bytes += len(record)
            if (tag_hashes is None or tags_code(tag) in tag_hashes) and (
                keep is None or keep(stored_properties(record, 0, len(record)), following - 1)
            ):
                parts.append(record)
                size += len(record)
        status = ReadStatus.FOUND if parts else ReadStatus.NO_MATCHED
        return ReadResult(status, following, 0, end, parts, len(parts), size, examined, examined_bytes)


def client_processor(bench: Bench, budget: TurnBudget | None = None) -> ClientProcessor:
    """Return the processor of a bench's clients, at the bench's time. It has no topics of groups."""
    return ClientProcessor(cast(Any, FakeHost(SetClock(bench.now_ms))), bench.c, cast(Any, None), cast(Any, None), budget)


def request(code: RequestCode, header: object = None, body: bytes = b"", *, opaque: int = 1) -> Command:
    """Return a native request."""
    return Command(int(code), opaque, fields={} if header is None else to_plain(header), body=body)

"""A start that reads runs of the log with the kernel `scan_run` ends as one that reads it record by record: in all of its state."""

import asyncio
from collections.abc import Sequence
from itertools import islice, product
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.broker.store.health.damage import DamageTable
from lockstep.broker.store.health.path_watch import PathWatch
from lockstep.broker.store.log import scan as scan_module
from lockstep.broker.store.log import scan_run
from lockstep.broker.store.log.commit_log import BLANK_BYTES, CommitLog, Segment
from lockstep.broker.store.log.scan import LogScan
from lockstep.broker.store.log.stored_record import CopyPlace, Ended, FirstPlace, FrameEnd, ScopeKey, StoredRecord, read_record
from lockstep.broker.store.log.waiting_records import SEAL, SEAL_MARK, seal
from lockstep.broker.store.queues.consume_queue import QueueFiles
from lockstep.broker.store.queues.queue_table import QueueTable
from lockstep.broker.store.start.replay import LogState, ReplaySink
from lockstep.broker.tables.sequence_table import LastFrame, Scope, SequenceTable, StoredFrame
from lockstep.protocol.errors import StoreError
from lockstep.protocol.messages.record import BLANK_MAGIC, HOSTS, OFFSETS, SIZE_AND_MAGIC
from lockstep.protocol.messages.rooms import home_properties
from lockstep.protocol.messages.sequence import STAMP_HEAD, FrameSequence, seal_frame
from lockstep.protocol.names import SCHEDULE_TOPIC, STATE_TOPIC, TIMER_TOPIC
from lockstep.protocol.native import kernels
from lockstep.testing.simulation.disk import SimFiles
from support.effort import SLOW
from support.kernels import Counting, mutations, needs_kernels, pure
from support.store_kit import LongFile, record

pytestmark = needs_kernels

SEGMENT_BYTES = 4096
STARTED_MS = 1_700_000_000_000
TOPICS = ("orders", "bills")
PROPERTIES = (
    b"",
    b"TAGS\x01red",
    b"KEYS\x01k\x02TAGS\x01" + "注文😀".encode(),
    b"TAGS\x01\x02TAGS\x01a",
    b"XTAGS\x01a\x02TAGS\x01b",
    b"K\x01TAGS\x01a",
    b"RETRY_TOPIC\x01orders",
)
HOME = home_properties("orders", 0, 3)
ENDS = (
    b"__LS_FROM\x01t31:7",
    b"__LS_FROM\x01t:7",
    b"__LS_FROM\x013:7",
    b"__LS_FROM\x013:7\x02TAGS\x01a",
    b"__LS_FROM\x01",
    b"__LS_FROM\x013",
    b"TAGS\x01a\x02__LS_FROM\x013:7",
)


def stamp(*, first: str = "5", count: str = "1", flags: str = "1") -> bytes:
    """Return a sequence whose frame is accepted whatever its running CRC is, if it is well-formed."""
    return STAMP_HEAD + f"{'ab' * 16}{7:08x}{1:016x}{first:0>16}{count:0>6}{flags}{0:08x}".encode()


STAMPS = (
    stamp(),
    stamp() + b"\x02TAGS\x01red",
    stamp() + b"\x02RETRY_TOPIC\x01orders",
    stamp(count="2"),
    stamp(count="0"),
    stamp(flags="4"),
    stamp(flags="A"),
    stamp(first="A"),
    stamp(first="7" + "f" * 15),
    stamp() + b"0",
    stamp()[:-1],
)
MIXED: dict[str, Any] = {"other queue": {"queue_id": 7}, "other topic": {"topic": "others"}, "nested": {"properties": stamp()}}
"""How the last record of a frame does not belong into it."""
SYS_FLAGS = (1, 0x4, 0x8, 0xC, 0x10, 0x40)
CLOCK = msgpack.packb(["clock", "boot-1", 5_000, STARTED_MS + 9, 0])
STATES = (b"state", b"drop orders", b"hide bills", CLOCK, msgpack.packb(["clock", "boot-2", 5, STARTED_MS - 500, -7]), b"\x95\xa5clock")


class DrawnLog:
    """Makes a log of the units that were drawn."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.begins: list[int] = []
        """Where a record or a blank begins."""
        self._offsets: dict[tuple[str, int], int] = {}
        self._ends: dict[tuple[int, str, int], tuple[int, int, int]] = {}
        """(producer, topic, queue) → (epoch, next, CRC)."""
        self._ms = STARTED_MS

    def add(self, unit: tuple[Any, ...]) -> None:
        kind, *arguments = unit
        fields = arguments.pop() if isinstance(arguments[-1], dict) else {}
        getattr(self, kind)(*arguments, **fields)

    def time(self, by_ms: int) -> None:
        self._ms += by_ms

    def gap(self, topic: str, queue_id: int) -> None:
        self._offsets[topic, queue_id] = self._offsets.get((topic, queue_id), 0) + 2

    def message(self, topic: str, queue_id: int, body: int, properties: bytes, **fields: int) -> None:
        one = record(b"b" * body, topic=topic, queue_id=queue_id, properties=properties, **fields)
        self._store([one], topic, queue_id)

    def prepared(self, topic: str, mark: int) -> None:
        one = bytearray(record(b"b", topic=topic))
        SEAL.pack_into(one, 76, mark, 1)
        self._store([one], topic, 0)

    def state(self, body: bytes) -> None:
        self._store([record(body, topic=STATE_TOPIC)], STATE_TOPIC, 0)

    def delayed(self, level: int, *, sealed: bool) -> None:
        self._store([record(b"later", topic=SCHEDULE_TOPIC, queue_id=level)], SCHEDULE_TOPIC, level, sealed=sealed)

    def timer(self, properties: bytes, *, sealed: bool) -> None:
        self._store([record(b"later", topic=TIMER_TOPIC, properties=properties)], TIMER_TOPIC, 0, sealed=sealed)

    def frame(self, producer: int, topic: str, queue_id: int, count: int, body: int, how: str) -> None:
        epoch, first, crc = self._ends.get((producer, topic, queue_id), (1, 0, 0))
        if how == "epoch":
            epoch, first, crc = epoch + 1, 0, 0
        elif how == "known":
            crc ^= 1
        elif how == "gap":
            first += 5
        elif how == "damaged":
            crc ^= 1
        records = [record(b"%d" % number * body, topic=topic, queue_id=queue_id, properties=b"TAGS\x01t") for number in range(count)]
        if how in MIXED:
            records.append(record(b"mixed", **{"topic": topic, "queue_id": queue_id, **MIXED[how]}))
            count += 1
        claimed = count + (how == "torn")
        sequence = FrameSequence(f"{producer:032x}", producer % 2, epoch, first, claimed, how == "known", 0, given=producer == 1)
        data, sequence = seal_frame(records, sequence, crc)
        self._ends[producer, topic, queue_id] = (epoch, sequence.next, sequence.crc)
        sent = data[: len(data) - sum(map(len, records[1:]))]
        self._store([sent, *records[1:]], topic, queue_id)

    def _store(self, records: Sequence[bytes | bytearray], topic: str, queue_id: int, *, sealed: bool = False) -> None:
        left = SEGMENT_BYTES - len(self.data) % SEGMENT_BYTES
        if sum(map(len, records)) + BLANK_BYTES > left:
            self.begins.append(len(self.data))
            self.data += SIZE_AND_MAGIC.pack(left, BLANK_MAGIC).ljust(left, b"\0")
        for one in records:
            position = len(self.data)
            self.begins.append(position)
            offset = self._offsets.get((topic, queue_id), 0)
            self._offsets[topic, queue_id] = offset + 1
            stored = bytearray(one)
            OFFSETS.pack_into(stored, 20, offset, position)
            HOSTS.pack_into(stored, 48, b"\x7f\0\0\1\0\0\x1f\x90", self._ms, b"\x0a\0\0\2\0\0\x2a\x9f")
            if sealed:
                seal(stored, 0, len(stored))
            self.data += stored


def log_of(*units: tuple[Any, ...]) -> DrawnLog:
    made = DrawnLog()
    for unit in units:
        made.add(unit)
    return made


class Broker:
    """What a start fills: the queues, the tables, the clock."""

    def __init__(self, *, dense: bool, skips: bool, scope_count_max: int) -> None:
        files = SimFiles()
        files.makedirs("/queues")
        self.queues = QueueTable(QueueFiles(files, "/queues", 1_000, 8), 1 << 20)
        self.sequences = SequenceTable(scope_count_max=scope_count_max)
        self.state = LogState()
        self.states: list[bytes] = []
        self.ends: list[Ended] = []
        self.waiting: list[tuple[str, int, int, int]] = []
        self.damage = DamageTable()
        self.sink = ReplaySink(self.queues, self, self.state, self.damage, dense=dense, skips=skips)

    def replay_snapshot(self, plain: object) -> None:
        raise NotImplementedError

    def replay_state(self, body: bytes) -> None:
        self.states.append(body)
        if body == b"drop orders":
            self.queues.drop_topic("orders")
            self.sequences.drop_topic("orders")
        if body == b"hide bills":
            for queue in self.queues.queues_of_topic("bills"):
                self.queues.hide_below(queue, max(queue.min, queue.next - 1))

    def crc_before(self, scope: ScopeKey, epoch: int, first: int, store_ms: int) -> int | None:
        return self.sequences.crc_at(Scope(*scope), epoch, first, now_ms=store_ms)

    def ended(self, ended: Ended, place: CopyPlace) -> None:
        self.ends.append(ended)

    def waits(self, topic: str, offset: int, dues: list[int], era: int, first: int | None = None) -> None:
        self.waiting += [(topic, at, due, era) for at, due in enumerate(dues, offset)]

    def scopes_fit(self, count: int) -> bool:
        return self.sequences.fits(count)

    def frame(self, scope: ScopeKey, end: FrameEnd, place: FirstPlace) -> None:
        epoch, first, following, crc, given = end
        self.sequences.record_last(Scope(*scope), LastFrame(epoch, first, following, crc, StoredFrame(*place), given))

    async def read(self, data: bytes, position: int, window_bytes: int, **arguments: Any) -> list[object]:
        """Read the log of these bytes on from `position`. Return how that ended."""
        files = SimFiles()
        log = CommitLog(files, "/log", SEGMENT_BYTES, 0, PathWatch(files))
        for start in range(0, len(data) + 1, SEGMENT_BYTES):
            log.segments.append(
                Segment(f"/log/{start}", start, SEGMENT_BYTES, LongFile(data[start : start + SEGMENT_BYTES], SEGMENT_BYTES))
            )
        scan = LogScan(log, position, self.sink, window_bytes=window_bytes, runs=self.sink, **arguments)

        async def on_progress(_: int) -> None:
            pass

        error = None
        try:
            await scan.run(on_progress)
        except StoreError as raised:
            error = str(raised)
        # Which of the rules that a record breaks is named depends on the window.
        return [scan.end, bool(scan.reason), scan.last_record, scan._missing_max, scan._scopes, scan._topics, error]

    def content(self) -> list[object]:
        """Return all that a start has filled, with the order of what has one."""
        slots = [name for name in type(next(iter(self.queues), None)).__slots__ if name != "topic_field"] if list(self.queues) else []
        queues = [[getattr(queue, name) for name in slots] for queue in self.queues]
        waiting = [(queue.topic, queue.queue_id) for queue in self.queues._dirty]
        stamps, sink = self.state.stamps, self.sink
        return [
            *(queues, waiting, self.queues.waiting_count, self.states, self.ends, self.waiting, self.state.state_next),
            # A table forgets by the order of a topic's scopes; that of its topics means nothing.
            *({topic: list(scopes.items()) for topic, scopes in self.sequences._topics.items()}, len(self.sequences)),
            *(stamps.newest_ms, stamps.set_count, stamps.steps, stamps._reading),
            *([(each.begin, each.end, each.followed, each.known) for each in sink.ranges], sink.lost, sink._lost_at, self.damage.lost()),
        ]


def read_all(data: bytes, window_bytes: int, parts: list[int], **more: Any) -> Any:
    """Read the log in one scan, or in several of which all but the last are read record by record. Return the state at the end."""

    async def read() -> Any:
        settings = {name: more.pop(name, default) for name, default in (("dense", True), ("skips", False), ("scope_count_max", 10_000))}
        broker, position = Broker(**settings), 0
        for end in parts:
            with pure(scan_run):
                position = (await broker.read(data[:end].ljust(len(data), b"\0"), position, window_bytes))[0]  # type: ignore[assignment]
        return await broker.read(data, position, window_bytes, **more), broker.content()

    return asyncio.run(read())


def check(data: bytes, window_bytes: int, parts: list[int], **more: Any) -> None:
    """Check that a start by runs ends as one record by record."""
    by_runs = read_all(data, window_bytes, parts, **more)
    with pure(scan_run):
        assert by_runs == read_all(data, window_bytes, parts, **more)


topics, queue_ids = st.sampled_from(TOPICS), st.integers(0, 1)
frames = st.tuples(
    *(st.just("frame"), st.integers(0, 1), topics, queue_ids, st.integers(1, 4), st.integers(1, 60)),
    st.sampled_from(["next"] * 8 + ["epoch", "known"]),
)
messages = st.tuples(st.just("message"), topics, queue_ids, st.integers(0, 60), st.sampled_from(PROPERTIES))
ODD = (
    *(("state", body) for body in STATES),
    *(("message", "orders", 0, 3, text) for text in (*STAMPS, *ENDS)),
    *(("message", "orders", 0, 3, b"TAGS\x01a", {"sys_flag": flag}) for flag in SYS_FLAGS),
    *(("message", topic, 0, 3, b"") for topic in (SCHEDULE_TOPIC, "others", "no topic", "é")),
    *(("message", "orders", queue_id, 3, b"") for queue_id in (-1, 0x7FFFFFFF)),
    *(("message", "orders", 0, 3, text) for text in (b"K\x01\0", b"K\x01\xff")),
    *(("frame", 0, "orders", 0, 2, 3, how) for how in ("epoch", "known", "gap", "damaged", "torn", *MIXED)),
    *(("prepared", "orders", mark) for mark in (0, SEAL_MARK)),
    *(("delayed", 3, {"sealed": sealed}) for sealed in (True, False)),
    *(
        ("timer", text, {"sealed": sealed})
        for text in (HOME + b"TIMER_DELAY_MS\x015", stamp() + b"\x02" + HOME + b"TIMER_DELIVER_MS\x017", HOME)
        for sealed in (True, False)
    ),
    *(("time", by_ms) for by_ms in (0, 1_000, -1, -70_000)),
    ("gap", "orders", 0),
)
"""What ends a run, or nearly does."""
units = st.one_of(frames, messages, frames, messages, frames, st.sampled_from(ODD))


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_odd_record_between_ordinary_ones_gives_what_records_give(odd: tuple[Any, ...]) -> None:
    message, sends = ("message", "orders", 0, 3, b""), [("frame", number % 2, "orders", 0, 2, 9, "next") for number in range(3)]
    for before in ([], [("state", b"state"), ("message", "others", 0, 3, b"")]):
        made = log_of(*before, message, *sends)
        snapshot = len(made.data)
        for unit in (message, odd, *sends):
            made.add(unit)
        for skips, parts in product((False, True), ([], [snapshot])):
            check(bytes(made.data), 1 << 20, parts, skips=skips, complete_until=len(made.data), dense=not before)


@settings(max_examples=300)
@given(st.lists(units, min_size=4, max_size=40), st.data())
def test_start_by_runs_ends_as_one_by_records(drawn: list[tuple[Any, ...]], draw: st.DataObject) -> None:
    made = log_of(*drawn)
    data = bytes(made.data)
    for _ in range(draw.draw(st.sampled_from([0, 0, 1, 2]), "damages")):
        at = draw.draw(st.integers(0, max(0, len(data) - 1)), "at")
        how = draw.draw(st.sampled_from(["flip", "cut", "zero"]), "how")
        if how == "flip" and data:
            data = data[:at] + bytes([data[at] ^ 1 << draw.draw(st.integers(0, 7))]) + data[at + 1 :]
        elif how != "flip":
            data = data[:at] if how == "cut" else data[:at] + bytes(min(200, len(data) - at)) + data[at + 200 :]
    parts = sorted(draw.draw(st.lists(st.sampled_from(made.begins or [0]), max_size=2), "parts"))
    known_at = draw.draw(st.none() | st.sampled_from(made.begins or [0]), "known")
    check(
        data,
        draw.draw(st.integers(64, 5_000), "window"),
        parts,
        scope_count_max=draw.draw(st.sampled_from([2, 4, 10_000]), "scopes"),
        dense=draw.draw(st.booleans(), "dense"),
        skips=draw.draw(st.booleans(), "skips"),
        limit=draw.draw(st.none() | st.sampled_from(made.begins or [0]), "limit"),
        complete_until=draw.draw(st.sampled_from([0, len(data)]), "complete"),
        known={} if known_at is None or known_at + 300 > len(data) else {known_at: known_at + 300},
    )


EXAMPLE = log_of(
    ("message", "orders", 0, 1, b""),
    ("frame", 0, "orders", 0, 2, 3, "next"),
    ("frame", 0, "orders", 0, 1, 3, "next"),
    ("message", "orders", 1, 3, PROPERTIES[2]),
)


def test_every_changed_byte_of_a_log_gives_what_records_give() -> None:
    data = bytes(EXAMPLE.data)
    first_end = EXAMPLE.begins[1]
    for each in islice(mutations(data[first_end:]), 0, None, 1 if SLOW else 7):
        check(data[:first_end] + each, 1 << 20, [])


@given(st.binary(max_size=300), st.integers(0, 400), st.integers(0, 2_000), st.integers(-1, 1 << 63), st.booleans())
def test_kernel_takes_nothing_of_random_bytes(data: bytes, at: int, end: int, position: int, condense: bool) -> None:
    for window in (data, bytes(EXAMPLE.data) + data):
        found = kernels.scan_run(window, at, end, position, lambda *_: ("orders", -1), {}, lambda *_: None, condense)
        assert found is None or found[0] == 0 or (window != data and at in EXAMPLE.begins and position == at)


KINDS = {
    "batch": ("frame", 0, "orders", 0, 20, 4, "next"),
    "send": ("frame", 1, "orders", 1, 1, 9, "next"),
    "classic": ("message", "orders", 1, 9, b"TAGS\x01a"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window_bytes", [200, 1 << 20])
def test_kernel_takes_all_ordinary_records(monkeypatch: pytest.MonkeyPatch, kind: str, window_bytes: int) -> None:
    made = log_of(*(("state", b"state") if number % 10 == 0 else KINDS[kind] for number in range(40)))
    by_records: list[str] = []

    def counted(data: bytes, position: int, names: dict[bytes, str]) -> StoredRecord:
        found = read_record(data, position, names)
        by_records.append(found.topic)
        return found

    monkeypatch.setattr(scan_module, "read_record", counted)
    (end, *_), _ = read_all(bytes(made.data), window_bytes, [])
    assert end == len(made.data)
    assert by_records == [STATE_TOPIC] * 4
    if window_bytes > SEGMENT_BYTES:
        counting = Counting()
        monkeypatch.setattr(scan_run, "kernels", counting)
        read_all(bytes(made.data), window_bytes, [])
        ends = 4 + len(made.data) // SEGMENT_BYTES
        assert counting.calls["scan_run"] <= 2 * (ends + 1), "a run goes on to the next state record or blank"

"""SequenceTable: a repeat gets the first response, and nothing is stored twice or skipped (wire.md, "Idempotent sends")."""

import zlib
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.tables.sequence_table import ACCEPT, IDLE_GIVEN_MS, IDLE_MS, Scope, SequenceTable, SequenceVerdict, StoredFrame
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.messages.sequence import FrameSequence

PRODUCER = "0123456789abcdef" * 2
SCOPE = Scope(PRODUCER, 0, "orders", 3)
NOW_MS = 1_800_000_000_000
PLACE = StoredFrame(40, 9_000, NOW_MS)


def frame(first: int, count: int, *, epoch: int = 5, crc: int = 0xAA, first_known: bool = False) -> FrameSequence:
    return FrameSequence(PRODUCER, 0, epoch, first, count, first_known, crc)


def table_with_frames() -> SequenceTable:
    """Return a table with frames [0, 10) and [10, 15) of epoch 5 with CRC 0xAA."""
    table = SequenceTable()
    table.record_frame(SCOPE, frame(0, 10, crc=0x99), StoredFrame(30, 8_000, NOW_MS))
    table.record_frame(SCOPE, frame(10, 5), PLACE)
    return table


REFUSED = {
    "a sequence above 0 from an unknown scope": (SequenceTable, frame(7, 1), ResponseCode.OUT_OF_SEQUENCE, 0),
    "a gap of one": (table_with_frames, frame(16, 1), ResponseCode.OUT_OF_SEQUENCE, 15),
    "one that straddles next by one at its end": (table_with_frames, frame(10, 6), ResponseCode.OUT_OF_SEQUENCE, 15),
    "one that straddles next by one at its start": (table_with_frames, frame(14, 3), ResponseCode.OUT_OF_SEQUENCE, 15),
    "one that covers all stored frames and more": (table_with_frames, frame(0, 16), ResponseCode.OUT_OF_SEQUENCE, 15),
    "a gap flagged first in a known scope": (table_with_frames, frame(16, 1, first_known=True), ResponseCode.OUT_OF_SEQUENCE, 15),
    "an older one entirely below next": (table_with_frames, frame(0, 10, crc=0x99), ResponseCode.DUPLICATE, None),
    "one that ends just below next": (table_with_frames, frame(13, 1, crc=0x77), ResponseCode.DUPLICATE, None),
    "one that ends at next with other bytes": (table_with_frames, frame(10, 5, crc=0xAB), ResponseCode.NON_DETERMINISTIC_RETRY, None),
    "one with another beginning that ends at next, with other bytes": (
        table_with_frames,
        frame(12, 3, crc=0xAB),
        ResponseCode.NON_DETERMINISTIC_RETRY,
        None,
    ),
    "one with another beginning that ends at next, with the stored CRC": (table_with_frames, frame(12, 3), ResponseCode.DUPLICATE, None),
    "a lower epoch, even at next": (table_with_frames, frame(15, 1, epoch=4), ResponseCode.STALE_EPOCH, None),
    "a lower epoch from 0": (table_with_frames, frame(0, 1, epoch=4, first_known=True), ResponseCode.STALE_EPOCH, None),
    "a higher epoch above 0": (table_with_frames, frame(15, 1, epoch=6), ResponseCode.OUT_OF_SEQUENCE, 0),
    "a higher epoch above 0 flagged first in a known scope": (
        table_with_frames,
        frame(1, 1, epoch=6, first_known=True),
        ResponseCode.OUT_OF_SEQUENCE,
        0,
    ),
}
TAKEN = {
    "sequence 0 from an unknown scope": (SequenceTable, frame(0, 3)),
    "first from an unknown scope": (SequenceTable, frame(7, 3, first_known=True)),
    "exactly next": (table_with_frames, frame(15, 1, crc=0x01)),
    "exactly next, many": (table_with_frames, frame(15, 1_000, crc=0x01)),
    "sequence 0 of the next epoch": (table_with_frames, frame(0, 1, epoch=6)),
    "sequence 0 of a much higher epoch": (table_with_frames, frame(0, 1, epoch=1 << 40)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_out_of_sequence_frame_is_rejected(name: str) -> None:
    make, requested, code, expected_next = REFUSED[name]
    verdict = make().check_frame(SCOPE, requested, now_ms=NOW_MS)
    assert (verdict.code, verdict.stored, verdict.next) == (code, None, expected_next)
    assert verdict.remark


@pytest.mark.parametrize("name", TAKEN)
def test_next_frame_is_accepted(name: str) -> None:
    make, requested = TAKEN[name]
    assert make().check_frame(SCOPE, requested, now_ms=NOW_MS) is ACCEPT


def test_repeated_last_frame_gets_the_first_response() -> None:
    table = table_with_frames()
    for _ in range(3):
        assert table.check_frame(SCOPE, frame(10, 5), now_ms=NOW_MS) == SequenceVerdict(ResponseCode.SUCCESS, PLACE)


def test_check_changes_nothing() -> None:
    table = table_with_frames()
    before = table.snapshot()
    for _, requested, *_rest in [*REFUSED.values(), *TAKEN.values()]:
        table.check_frame(SCOPE, requested, now_ms=NOW_MS)
    assert table.snapshot() == before


@pytest.mark.parametrize(
    "other",
    [SCOPE._replace(producer_id="f" * 32), SCOPE._replace(partition=1), SCOPE._replace(topic="other"), SCOPE._replace(queue_id=4)],
    ids=["producer", "partition", "topic", "queue"],
)
def test_each_part_of_the_scope_is_distinguished(other: Scope) -> None:
    table = table_with_frames()
    assert table.check_frame(other, frame(0, 1), now_ms=NOW_MS) is ACCEPT
    assert table.check_frame(other, frame(15, 1), now_ms=NOW_MS).code == ResponseCode.OUT_OF_SEQUENCE


def test_dropped_topic_removes_its_sequences() -> None:
    table = table_with_frames()
    table.record_frame(SCOPE._replace(topic="other"), frame(0, 1), PLACE)
    table.drop_topic(SCOPE.topic)
    assert table.check_frame(SCOPE, frame(0, 5), now_ms=NOW_MS) is ACCEPT
    assert table.check_frame(SCOPE._replace(topic="other"), frame(0, 1), now_ms=NOW_MS) == SequenceVerdict(ResponseCode.SUCCESS, PLACE)


def test_new_epoch_replaces_the_old_one() -> None:
    table = table_with_frames()
    table.record_frame(SCOPE, frame(0, 2, epoch=6, crc=0x11), StoredFrame(45, 9_500, NOW_MS))
    assert table.check_frame(SCOPE, frame(15, 1, epoch=5), now_ms=NOW_MS).code == ResponseCode.STALE_EPOCH
    assert table.check_frame(SCOPE, frame(2, 1, epoch=6), now_ms=NOW_MS) is ACCEPT


def test_crc_continues_from_the_last_frame_of_the_epoch() -> None:
    table = table_with_frames()
    assert table.crc_before(SCOPE, frame(15, 1), now_ms=NOW_MS) == 0xAA
    assert table.crc_before(SCOPE, frame(0, 1, epoch=6), now_ms=NOW_MS) == 0
    assert table.crc_before(SCOPE, frame(15, 1, first_known=True), now_ms=NOW_MS) is None
    assert table.crc_before(SCOPE._replace(queue_id=9), frame(7, 1, first_known=True), now_ms=NOW_MS) is None


@pytest.mark.parametrize("given_id", [False, True])
@pytest.mark.parametrize(("over_ms", "remembered"), [(-1, True), (0, True), (1, False)])
def test_idle_scope_is_forgotten_at_its_time_with_or_without_a_sweep(over_ms: int, remembered: bool, given_id: bool) -> None:
    now_ms = NOW_MS + over_ms + (IDLE_GIVEN_MS if given_id else IDLE_MS)
    last = replace(frame(10, 5), given=given_id)
    swept, unswept = SequenceTable(), SequenceTable()
    for table in (swept, unswept):
        table.record_frame(SCOPE, last, PLACE)
    assert sum(swept.forget_idle(now_ms=now_ms)) == (0 if remembered else 1)
    for table in (swept, unswept):
        assert (table.check_frame(SCOPE, last, now_ms=now_ms).stored == PLACE) is remembered


def test_least_recently_used_scope_is_evicted_above_the_limit() -> None:
    table = SequenceTable(scope_count_max=2)
    a, b, c = (SCOPE._replace(queue_id=n) for n in range(3))
    table.record_frame(a, frame(0, 1), PLACE)
    table.record_frame(b, frame(0, 1), PLACE)
    table.record_frame(a, frame(1, 1), PLACE)
    table.record_frame(c, frame(0, 1), PLACE)
    assert len(table) == 2
    assert table.check_frame(b, frame(1, 1), now_ms=NOW_MS).code == ResponseCode.OUT_OF_SEQUENCE
    assert table.check_frame(a, frame(2, 1), now_ms=NOW_MS) is ACCEPT


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 9)), max_size=80), st.integers(1, 12), st.integers(0, 80))
def test_full_table_takes_the_oldest_scope_of_a_topic_with_more_or_of_the_same_one(
    sent: list[tuple[str, int]], scope_count_max: int, snapshot_at: int
) -> None:
    table, rebuilt = SequenceTable(scope_count_max=scope_count_max), SequenceTable(scope_count_max=scope_count_max)
    kept: list[Scope] = []  # the longest silent first
    for number, (topic, queue_id) in enumerate(sent):
        if number == snapshot_at:
            rebuilt.restore(table.snapshot())
        scope = SCOPE._replace(topic=topic, queue_id=queue_id)
        for each in [table, rebuilt][: 1 + (number >= snapshot_at)]:
            each.record_frame(scope, frame(number, 1), PLACE)
        known = {each for each in [*kept, scope] if table.find_last(each, now_ms=NOW_MS) is not None}
        assert scope in known
        sizes = {each: sum(other.topic == each for other in kept) for each in "abcd"}
        for lost in {*kept} - known:
            assert len(kept) == scope_count_max
            assert scope not in kept
            assert lost == next(each for each in kept if each.topic == lost.topic)
            assert sizes[lost.topic] == max(sizes.values())
            assert lost.topic == topic or sizes[lost.topic] > sizes[topic]
        kept = [*(each for each in kept if each in known and each != scope), scope]
        assert len(table) == len(kept) <= scope_count_max
    if len(sent) > snapshot_at:
        assert rebuilt.snapshot() == table.snapshot()


# ------------------------------------------------------------------------------------------------------ against a simple model


@dataclass
class Model:
    """Stores every frame of every epoch: the law in its simplest form."""

    stored: dict[Scope, list[tuple[FrameSequence, StoredFrame]]] = field(default_factory=dict)

    def expected(self, scope: Scope, requested: FrameSequence) -> tuple[ResponseCode, StoredFrame | None, int | None]:
        frames = self.stored.get(scope, [])
        if not frames:
            return (
                (ResponseCode.SUCCESS, None, None)
                if requested.first_known or requested.first == 0
                else (ResponseCode.OUT_OF_SEQUENCE, None, 0)
            )
        epoch = max(stored.epoch for stored, _ in frames)
        if requested.epoch < epoch:
            return ResponseCode.STALE_EPOCH, None, None
        if requested.epoch > epoch:
            return (ResponseCode.SUCCESS, None, None) if requested.first == 0 else (ResponseCode.OUT_OF_SEQUENCE, None, 0)
        last, place = frames[-1]
        covered = {number for stored, _ in frames if stored.epoch == epoch for number in range(stored.first, stored.next)}
        top = max(covered) + 1
        numbers = range(requested.first, requested.next)
        if requested.first == top:
            return ResponseCode.SUCCESS, None, None
        if numbers[-1] >= top:
            return ResponseCode.OUT_OF_SEQUENCE, None, top
        if numbers[-1] == top - 1:
            if requested.crc != last.crc:
                return ResponseCode.NON_DETERMINISTIC_RETRY, None, None
            return (ResponseCode.SUCCESS, place, None) if requested.first == last.first else (ResponseCode.DUPLICATE, None, None)
        return ResponseCode.DUPLICATE, None, None


FRAMES = st.builds(
    frame,
    st.integers(0, 12),
    st.integers(1, 4),
    epoch=st.integers(1, 3),
    crc=st.integers(0, 2),
    first_known=st.booleans(),
)
ASKED = st.lists(st.tuples(st.integers(0, 1), FRAMES), max_size=40)


@given(ASKED, st.integers(0, 40))
def test_table_equals_the_model_and_is_rebuilt_from_snapshot_and_log(requested: list[tuple[int, FrameSequence]], snapshot_at: int) -> None:
    live, model, rebuilt = SequenceTable(), Model(), SequenceTable()
    log: list[tuple[Scope, FrameSequence, StoredFrame]] = []
    snapshot: list[object] = []
    tail_from = 0
    for number, (queue_id, one) in enumerate(requested):
        if number == snapshot_at:
            snapshot, tail_from = live.snapshot(), len(log)
        scope = SCOPE._replace(queue_id=queue_id)
        verdict = live.check_frame(scope, one, now_ms=NOW_MS)
        assert (verdict.code, verdict.stored, verdict.next) == model.expected(scope, one)
        if verdict is ACCEPT:
            place = StoredFrame(len(log), 100 * len(log), NOW_MS)
            live.record_frame(scope, one, place)
            model.stored.setdefault(scope, []).append((one, place))
            log.append((scope, one, place))
    rebuilt.restore(snapshot)  # type: ignore[arg-type]
    for entry in log[tail_from:]:
        rebuilt.record_frame(*entry)
    assert rebuilt.snapshot() == live.snapshot()


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_producer_that_repeats_unacknowledged_frames_stores_each_sequence_once(plan: list[tuple[int, bool, bool]]) -> None:
    """Each frame has its number of messages, whether its request is lost, and whether its first response is lost. Then it is sent again."""
    table = SequenceTable()
    stored: list[int] = []
    sequence, crc = 0, 0
    for count, request_lost, response_lost in plan:
        crc = zlib.crc32(bytes([count]), crc)
        one = frame(sequence, count, crc=crc)
        for lost, silent in [(request_lost, response_lost), (False, False), (False, False)]:
            if lost:
                continue
            verdict = table.check_frame(SCOPE, one, now_ms=NOW_MS)
            assert verdict.code == ResponseCode.SUCCESS
            if verdict is ACCEPT:
                table.record_frame(SCOPE, one, StoredFrame(len(stored), 0, NOW_MS))
                stored += range(one.first, one.next)
            elif not silent:
                assert verdict.stored == StoredFrame(one.first, 0, NOW_MS)
        sequence += count
    assert stored == list(range(sequence))

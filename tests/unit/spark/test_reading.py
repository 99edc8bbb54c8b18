"""A task's ranges, pull by pull: bounded by the planned end, and losses are reported."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra [spark]")
pytest.importorskip("numpy", reason="needs the extra [spark]")

from lockstep.protocol.errors import TransportError
from lockstep.protocol.messages.message import Message, encode_message
from lockstep.protocol.messages.record import INT64, QUEUE_OFFSET_AT
from lockstep.protocol.responses import Pulled
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.spark import reading
from lockstep.spark.cluster import QueuePull
from lockstep.spark.offsets import QueueRange
from lockstep.spark.options import SourceOptions
from lockstep.spark.reading import DataLostError, TaskReading, read

QUEUE = MessageQueue("t", "a", 0)


def record(offset: int) -> bytes:
    made = bytearray(encode_message(Message("t", b"%d" % offset), 0, f"{offset:032X}", 5))
    made[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = INT64.pack(offset)
    return bytes(made)


class FakeQueue:
    """A queue with the offsets [low, high), some of them filtered out by the broker; replaces a task's connection."""

    def __init__(self, low: int, high: int, *, page: int = 3, hidden: range = range(0)) -> None:
        self.low, self.high, self.page, self.hidden = low, high, page, hidden
        self.requested: list[int] = []
        self.paused_ms = 0
        self.closed = False

    def run(self, question: Callable[[Any], Any]) -> Any:
        made = question(self)
        try:
            made.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("the fake never waits")

    async def layout(self, topic: str) -> None:
        return None

    async def begin(self, pull: Any) -> None:
        return None

    async def pull(self, pull: Any, begun: None) -> Pulled:
        at = pull.offset
        self.requested.append(at)
        if not self.low <= at <= self.high:
            return Pulled(b"", max(self.low, min(at, self.high)), self.low, self.high, True)
        offsets = [offset for offset in range(at, min(at + self.page, self.high)) if offset not in self.hidden]
        return Pulled(b"".join(map(record, offsets)), min(at + self.page, self.high), self.low, self.high, False)

    def pause(self, ms: int) -> None:
        self.paused_ms += ms

    def close(self) -> None:
        self.closed = True


def offsets(queue: FakeQueue, monkeypatch: pytest.MonkeyPatch, start: int, end: int, **options: str) -> list[int]:
    monkeypatch.setattr(reading, "CachedCluster", lambda *_: queue)
    given = SourceOptions.parse({"nameserver": "h:1", "subscribe": "t", "columns": "offset", **options})
    batches = read(given, TaskReading(((QueueRange(QUEUE, start, end), 0),)))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_range_is_read_exactly_to_its_planned_end(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue(0, 100)
    assert offsets(queue, monkeypatch, 5, 13) == list(range(5, 13))
    assert queue.requested == [5, 8, 11]
    assert queue.closed


def test_messages_filtered_by_the_broker_are_not_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offsets(FakeQueue(0, 20, hidden=range(2, 15)), monkeypatch, 0, 18) == [0, 1, 15, 16, 17]


def test_start_below_the_stored_range_fails_with_both_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DataLostError, match=r"t@a:0: offset 5 is no longer stored; the stored range is 8 to 20\. To continue .* failOnDataLoss=false"
    ):
        offsets(FakeQueue(8, 20), monkeypatch, 5, 15)


def test_without_fail_on_data_loss_a_read_continues_with_stored_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offsets(FakeQueue(8, 20), monkeypatch, 5, 12, failOnDataLoss="false") == list(range(8, 12))
    assert offsets(FakeQueue(8, 20), monkeypatch, 5, 7, failOnDataLoss="false") == []


def test_queue_that_ends_before_the_planned_end_is_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataLostError, match="the queue ends at 10, before the planned 15"):
        offsets(FakeQueue(0, 10), monkeypatch, 5, 15)
    assert offsets(FakeQueue(0, 10), monkeypatch, 5, 15, failOnDataLoss="false") == list(range(5, 10))


def test_empty_pulls_are_retried_until_the_fetch_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue(0, 20, page=0)
    with pytest.raises(TransportError, match="no message at offset 5 within 400 ms, although the queue ends at 20"):
        offsets(queue, monkeypatch, 5, 15, fetchTimeoutMs="400")
    assert queue.paused_ms == 400
    assert queue.closed


def test_pull_requests_the_configured_limits() -> None:
    given = SourceOptions.parse({"nameserver": "h:1", "subscribe": "t", "fetchMaxMessages": "7", "fetchMaxBytes": "600"})
    header = QueuePull("g", QUEUE, 5, given).header()
    assert (header.max_msg_nums, header.max_msg_bytes, header.queue_offset) == (7, 600, 5)


def test_closed_reader_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = FakeQueue(0, 100)
    monkeypatch.setattr(reading, "CachedCluster", lambda *_: queue)
    rows = read(SourceOptions.parse({"nameserver": "h:1", "subscribe": "t"}), TaskReading(((QueueRange(QUEUE, 0, 100), 0),)))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert queue.closed


@pytest.mark.parametrize(("limit", "value"), [("BATCH_ROWS", 5), ("BATCH_BYTES", 5 * len(record(0)))])
def test_pulls_are_collected_until_a_batch_is_full(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    queue = FakeQueue(0, 100)
    monkeypatch.setattr(reading, "CachedCluster", lambda *_: queue)
    monkeypatch.setattr(reading, limit, value)
    given = SourceOptions.parse({"nameserver": "h:1", "subscribe": "t", "columns": "offset"})
    batches = [batch.column("offset").to_pylist() for batch in read(given, TaskReading(((QueueRange(QUEUE, 0, 14), 0),)))]
    assert batches == [list(range(6)), list(range(6, 12)), [12, 13]]

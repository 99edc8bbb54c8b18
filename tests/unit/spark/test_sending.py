"""A write task against a broker on loopback: a repeated send is stored once, and an error names its reason."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra [spark]")

from lockstep.client import GivenId  # noqa: E402
from lockstep.protocol.errors import NonDeterministicRetryError, OutOfSequenceError, StaleEpochError, StateError  # noqa: E402
from lockstep.protocol.topics.queue import MessageQueue  # noqa: E402
from lockstep.runtime.host import Host  # noqa: E402
from lockstep.spark.options import SinkOptions  # noqa: E402
from lockstep.spark.sending import DeliberateError, Pace, Sent, Task, TaskSender, send_task, task_frames, total  # noqa: E402
from support import fake_broker  # noqa: E402
from support.clocks import LoopClock  # noqa: E402
from support.fake_broker import FakeBroker, FakeCluster, fake_cluster, make_layout, refuse  # noqa: E402
from support.loops import FrozenLoop  # noqa: E402

JOB = GivenId("0123456789abcdef" * 2)


def task(cluster: FakeCluster, **options: str) -> Task:
    given = SinkOptions.parse({"nameserver": cluster.nameserver, "topic": "t", "frameRecords": "2", "requestTimeoutMs": "5000", **options})
    layout = cluster.brokers["a"].layouts["t"]
    return Task(given, layout, born_ms=5, number=0, attempt=0, given_id=JOB, scheduled=False)


def rows(count: int) -> list[object]:
    """Return rows in batches of 5, alternating between two queues."""
    batches = []
    for first in range(0, count, 5):
        numbers = range(first, min(first + 5, count))
        values = pa.array([b"%d" % number for number in numbers])
        batches.append(pa.RecordBatch.from_arrays([values, pa.array([n % 2 for n in numbers], pa.int32())], names=["value", "partition"]))
    return batches


async def send(one: Task, batches: list[object]) -> Sent:
    return await send_task(one, batches, Host.real())


def queue(cluster: FakeCluster, number: int) -> list[bytes]:
    return cluster.brokers["a"].bodies[("t", number)]


@pytest.mark.parametrize("attempt", range(5))
async def test_rows_are_stored_in_order_on_their_queues(attempt: int) -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        sent = await send(task(cluster), rows(30))
        assert queue(cluster, 0) == [b"%d" % number for number in range(0, 30, 2)]
        assert queue(cluster, 1) == [b"%d" % number for number in range(1, 30, 2)]
        assert (sent.rows, sent.frames, sent.repeated_frames) == (30, 16, 0)
        assert sum(sent.next_offsets.values()) == 30


async def test_retried_task_stores_every_row_once() -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        one = task(cluster, failTask="0:9")
        with pytest.raises(DeliberateError):
            await send(one, rows(30))
        assert 0 < sum(map(len, cluster.brokers["a"].bodies.values())) < 30
        for _ in range(2):
            sent = await send(replace(one, attempt=1), rows(30))
            assert queue(cluster, 0) == [b"%d" % number for number in range(0, 30, 2)]
            assert queue(cluster, 1) == [b"%d" % number for number in range(1, 30, 2)]
            assert (sent.rows, sent.frames) == (30, 16)
        assert sent.repeated_frames == 14, "of each queue's last frame the broker still knows the place"


@pytest.mark.parametrize("again", [20, 27, 28])
async def test_retried_task_with_fewer_rows_fails_with_the_next_step(again: int) -> None:
    """With frames of two rows, 30 rows end with frames of 28 and 29. 27 rows leave a shorter frame in queue 0 and one fewer in queue 1."""
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        await send(task(cluster), rows(30))
        with pytest.raises(StateError) as failed:
            await send(replace(task(cluster), attempt=1), rows(again))
        said = r"sent fewer frames than an earlier attempt to t@a:0.*had fewer rows, or the topic's queues have changed.*sort within"
        assert re.search(said, str(failed.value))
        assert "frameRecords" not in str(failed.value), "frames that are cut elsewhere are reported by the broker"


@pytest.mark.parametrize("stored", [30, 20])
@pytest.mark.parametrize("frame_records", ["1", "3", "1000"])
async def test_retried_task_with_other_frames_fails_and_names_the_options(stored: int, frame_records: str) -> None:
    """The rows are the same: all of them or a part had been stored before."""
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        await send(task(cluster), rows(stored))
        with pytest.raises(StateError, match=r"frameRecords[\s,]"):
            await send(replace(task(cluster, frameRecords=frame_records), attempt=1), rows(30))


async def test_retry_after_queues_were_added_fails_with_the_reason() -> None:
    keys, values = pa.array([f"k{number}" for number in range(40)]), pa.array([b"%d" % number for number in range(40)])
    keyed: list[object] = [pa.RecordBatch.from_arrays([values, keys], ["value", "key"])]
    async with fake_cluster("a", topics={"t": 3}) as cluster:
        await send(replace(task(cluster), layout=make_layout("t", "a", queues=2)), keyed)
        with pytest.raises(StateError, match="or the topic's queues have changed"):
            await send(replace(task(cluster), attempt=1), keyed)


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (NonDeterministicRetryError("other bytes"), "sort within partitions"),
        (StaleEpochError("over"), "a later micro-batch of this query has begun"),
        (OutOfSequenceError("a gap"), "starts again from its first row"),
    ],
)
async def test_rejection_names_the_next_step(refusal: NonDeterministicRetryError | StaleEpochError | OutOfSequenceError, said: str) -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        cluster.brokers["a"].script.append(refuse(refusal))
        with pytest.raises(StateError, match=said):
            await send(task(cluster), rows(4))


@pytest.mark.parametrize(("queues", "changed"), [(2, []), (3, ["t"])])
async def test_task_reports_that_the_queues_were_changed_while_it_wrote_rows_by_key(queues: int, changed: list[str]) -> None:
    """It ends over the queues with which it began."""
    async with fake_cluster("a", topics={"t": queues}) as cluster:
        planned = replace(task(cluster), layout=make_layout("t", "a", queues=2))
        assert (await send(replace(planned, keyed=True), rows(30))).changed_topics == changed
        assert [len(queue(cluster, number)) for number in range(2)] == [15, 15]
        another = replace(planned, given_id=GivenId("f" * 32))
        assert (await send(another, rows(30))).changed_topics == [], "rows without keys may be in any queue"


async def test_task_succeeds_if_no_nameserver_reports_whether_the_queues_were_changed() -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:

        def lost(broker: FakeBroker, seen: "fake_broker.Sent") -> None:
            cluster.ready = False
            broker.take(seen)

        cluster.brokers["a"].script.append(lost)
        sent = await send(replace(task(cluster), keyed=True), rows(1))
        assert (sent.rows, sent.changed_topics) == (1, [])


def pace(**options: str) -> Pace:
    return Pace(SinkOptions.parse({"nameserver": "h:1", "topic": "t", **options}), begun_us=1_000_000)


def test_job_rate_is_shared_by_its_tasks_and_a_stall_is_caught_up() -> None:
    limited = pace(maxRowsPerSecond="200", parallelism="2")
    assert limited.wait_ms(0, 30, wall_ms=0, now_us=1_000_000) == 300
    assert limited.wait_ms(0, 30, wall_ms=0, now_us=1_250_000) == 50
    assert limited.wait_ms(0, 30, wall_ms=0, now_us=1_280_000) == 0, "20 ms are not waited for"
    assert limited.wait_ms(0, 30, wall_ms=0, now_us=9_000_000) == 0


def test_scheduled_row_is_sent_when_due_or_at_once_if_overdue() -> None:
    scheduled = pace(notBefore="true")
    assert scheduled.wait_ms(5_000, 30, wall_ms=4_999, now_us=0) == 1
    assert scheduled.wait_ms(5_000, 30, wall_ms=5_000, now_us=0) == 0
    assert scheduled.wait_ms(5_000, 30, wall_ms=6_000, now_us=0) == 0
    assert pace().wait_ms(5_000, 30, wall_ms=0, now_us=0) == 0


class Stopwatch:
    """A producer that records when each frame is passed to it."""

    def __init__(self, loop: FrozenLoop) -> None:
        self._loop = loop
        self._begun = loop.time()
        self.sent: list[tuple[float, int]] = []
        """(seconds since the first frame could be sent, rows)."""

    async def send_records(self, queue: MessageQueue, records: bytes, sizes: list[int]) -> SimpleNamespace:
        self.sent.append((round(self._loop.time() - self._begun, 3), len(sizes)))
        return SimpleNamespace(queue_offset=0)


async def send_times(frozen: FrozenLoop, due_ms: Sequence[int], **options: str) -> list[tuple[float, int]]:
    """Return when the frames of rows with these due times are sent; all of them on one queue."""
    given = SinkOptions.parse({"nameserver": "h:1", "topic": "t", "frameRecords": "2", **options})
    clock = LoopClock(frozen)
    begun_ms = clock.wall_ms()
    task = Task(given, make_layout("t", "a", queues=1), 5, number=0, attempt=0, given_id=JOB, scheduled=True)
    born = pa.array([(begun_ms + ms) * 1_000 for ms in due_ms], pa.timestamp("us", tz="UTC"))
    batch = pa.RecordBatch.from_arrays([pa.array([b"x"] * len(due_ms)), born], names=["value", "bornTimestamp"])
    producer = Stopwatch(frozen)
    sender = TaskSender(task, producer, None, SimpleNamespace(clock=clock))  # type: ignore[arg-type]
    frames = task_frames(task)
    begun = frozen.time()
    sending = asyncio.create_task(sender.send_all([batch], frames))
    while not sending.done():
        await frozen.advance(0.005)
    await sending
    assert frozen.time() - begun < 60
    return producer.sent


@pytest.mark.frozen_clock
async def test_frames_are_sent_at_the_rate_of_the_job(frozen: FrozenLoop) -> None:
    """A rate of 100 per second with 2 tasks at a time is 50 for this one: a frame of 2 rows each 40 ms."""
    assert await send_times(frozen, [0] * 6, maxRowsPerSecond="100", parallelism="2") == [(0.0, 2), (0.04, 2), (0.08, 2)]
    assert [at for at, _ in await send_times(frozen, [0] * 6)] == [0.0] * 3, "without a rate at once"


@pytest.mark.frozen_clock
async def test_frames_are_sent_when_their_last_row_is_due(frozen: FrozenLoop) -> None:
    due = [0, 10, 500, 501, 20_000]
    assert await send_times(frozen, due, notBefore="true") == [(0.01, 2), (0.501, 2), (20.0, 1)]
    assert [at for at, _ in await send_times(frozen, due)] == [0.0] * 3, "the times of the rows are no schedule by themselves"


def test_report_sums_the_tasks() -> None:
    one, two = Sent(rows=2, bytes=20, frames=1, ack_us=[1_000]), Sent(rows=3, bytes=30, frames=2, repeated_frames=1, ack_us=[3_000, 2_000])
    report = total([one, two])
    assert (report["rows"], report["bytes"], report["frames"], report["repeatedFrames"], report["tasks"]) == (5, 50, 3, 1, 2)
    assert report["ackMs"] == {"p50": 2.0, "p99": 3.0, "max": 3.0}
    assert total([])["ackMs"] == {"p50": None, "p99": None, "max": None}

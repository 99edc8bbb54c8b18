"""A task of a write against a broker on loopback: what is sent again is stored once, and what fails says why."""

from dataclasses import replace

import pytest

pa = pytest.importorskip("pyarrow", reason="needs the extra [spark]")

from lockstep.client import GivenId  # noqa: E402
from lockstep.protocol.errors import NonDeterministicRetry, OutOfSequence, StaleEpoch, StateError  # noqa: E402
from lockstep.runtime.host import Host  # noqa: E402
from lockstep.spark.options import SinkOptions  # noqa: E402
from lockstep.spark.sending import FailedOnPurpose, Pace, Sent, Task, send_task, total  # noqa: E402
from support.fake_broker import FakeCluster, fake_cluster, refuse  # noqa: E402

JOB = GivenId("0123456789abcdef" * 2)


def task(cluster: FakeCluster, **options: str) -> Task:
    given = SinkOptions.parse({"nameserver": cluster.address, "topic": "t", "frameRecords": "2", "requestTimeoutMs": "5000", **options})
    layout = cluster.brokers["a"].layouts["t"]
    return Task(given, layout, born_ms=5, number=0, attempt=0, given_id=JOB, scheduled=False)


def rows(count: int) -> list[object]:
    """In batches of 5, on two queues in turn."""
    batches = []
    for first in range(0, count, 5):
        numbers = range(first, min(first + 5, count))
        values = pa.array([b"%d" % number for number in numbers])
        batches.append(pa.RecordBatch.from_arrays([values, pa.array([n % 2 for n in numbers], pa.int32())], names=["value", "partition"]))
    return batches


async def send(one: Task, batches: list[object]) -> Sent:
    return await send_task(one, batches, Host.real())


def queue(cluster: FakeCluster, number: int) -> list[bytes]:
    return cluster.brokers["a"].queues[("t", number)]


@pytest.mark.parametrize("attempt", range(5))
async def test_rows_are_stored_in_their_order_on_their_queues(attempt: int) -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        sent = await send(task(cluster), rows(30))
        assert queue(cluster, 0) == [b"%d" % number for number in range(0, 30, 2)]
        assert queue(cluster, 1) == [b"%d" % number for number in range(1, 30, 2)]
        assert (sent.rows, sent.frames, sent.repeated_frames) == (30, 16, 0)
        assert sum(sent.next_offsets.values()) == 30


async def test_a_task_that_failed_midway_and_is_tried_again_stores_every_row_once() -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        one = task(cluster, failTask="0:9")
        with pytest.raises(FailedOnPurpose):
            await send(one, rows(30))
        stored = len(cluster.brokers["a"].stored)
        assert 0 < stored < 30
        # The fake broker remembers one frame of a scope: what it would refuse, the real one answers as a duplicate (tests/spark).
        cluster.brokers["a"].scopes.clear()
        cluster.brokers["a"].queues.clear()
        await send(replace(one, attempt=1), rows(30))
        assert len({frame.body for frame in cluster.brokers["a"].seen}) == 16, "both attempts sent the same frames, byte for byte"


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (NonDeterministicRetry("other bytes"), "sort within partitions"),
        (StaleEpoch("over"), "a later micro-batch of this query has begun"),
        (OutOfSequence("a gap"), "begins again from its first row"),
    ],
)
async def test_a_refusal_says_what_to_do(refusal: NonDeterministicRetry | StaleEpoch | OutOfSequence, said: str) -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        cluster.brokers["a"].script.append(refuse(refusal))
        with pytest.raises(StateError, match=said):
            await send(task(cluster), rows(4))


def pace(**options: str) -> Pace:
    return Pace(SinkOptions.parse({"nameserver": "h:1", "topic": "t", **options}), begun_us=1_000_000)


def test_a_job_limit_is_shared_by_its_tasks_and_a_stall_is_caught_up() -> None:
    limited = pace(maxRowsPerSecond="200", parallelism="2")
    assert limited.wait_ms(0, 30, wall_ms=0, now_us=1_000_000) == 300
    assert limited.wait_ms(0, 30, wall_ms=0, now_us=1_250_000) == 50
    assert limited.wait_ms(0, 30, wall_ms=0, now_us=1_280_000) == 0, "20 ms are not waited for"
    assert limited.wait_ms(0, 30, wall_ms=0, now_us=9_000_000) == 0


def test_a_scheduled_row_leaves_when_it_is_due_and_at_once_where_that_is_over() -> None:
    scheduled = pace(notBefore="true")
    assert scheduled.wait_ms(5_000, 30, wall_ms=4_999, now_us=0) == 1
    assert scheduled.wait_ms(5_000, 30, wall_ms=5_000, now_us=0) == 0
    assert scheduled.wait_ms(5_000, 30, wall_ms=6_000, now_us=0) == 0
    assert pace().wait_ms(5_000, 30, wall_ms=0, now_us=0) == 0


def test_a_report_adds_the_tasks_up() -> None:
    one, two = Sent(rows=2, bytes=20, frames=1, ack_us=[1_000]), Sent(rows=3, bytes=30, frames=2, repeated_frames=1, ack_us=[3_000, 2_000])
    report = total([one, two])
    assert (report["rows"], report["bytes"], report["frames"], report["repeatedFrames"], report["tasks"]) == (5, 50, 3, 1, 2)
    assert report["ackMs"] == {"p50": 2.0, "p99": 3.0, "max": 3.0}
    assert total([])["ackMs"] == {"p50": None, "p99": None, "max": None}

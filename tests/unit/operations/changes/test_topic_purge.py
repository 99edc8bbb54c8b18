"""lockstep topic purge: what it plans, removes and prints, and what it refuses."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.cli.change_command import carry_out
from lockstep.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConsumer, QueueGap
from lockstep.operations.admin_client import AdminClient, by_name
from lockstep.operations.changes.layouts.layout_publish import create_and_wait
from lockstep.operations.changes.topic_purge import TopicPurge
from lockstep.operations.errors import OperationError
from lockstep.protocol.bodies import PurgeBody, QueueOffset
from lockstep.protocol.errors import ConfigError, StateError, TopicNotExistError
from lockstep.protocol.names import dlq_topic, retry_topic
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate
from support.queue_moves import consuming

TOPIC, GROUP = "orders", "billing"


def purge(cluster: TestCluster, to: str, *, dry_run: bool = False, as_json: bool = False, **fields: Any) -> Any:
    return carry_out(TopicPurge(**{"topic": TOPIC, "to": to, **fields}), cluster.nameserver, dry_run=dry_run, as_json=as_json)


async def fill(cluster: TestCluster, count: int = 6, brokers: tuple[str, ...] = ("broker-a",)) -> None:
    """Create the topic with a queue at each broker, and store messages in them in turn."""
    await create_and_wait(cluster.nameserver, TOPIC, 1, list(brokers))
    await send(cluster, count * len(brokers))


async def send(cluster: TestCluster, count: int) -> None:
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        route = await AdminClient(Host.current(), cluster.nameserver).route(TOPIC)
        for number in range(count):
            queue = route.layout.write_queues[number % len(route.layout.write_queues)]
            await producer.send(Message(TOPIC, b"%d" % number), queue=queue)


async def bounds(cluster: TestCluster) -> dict[str, tuple[int, int]]:
    admin = AdminClient(Host.current(), cluster.nameserver)
    brokers = by_name((await admin.route(TOPIC)).brokers)
    return {name: (held.min_offset, held.max_offset) for name in sorted(brokers) for held in await admin.offsets(brokers[name], TOPIC)}


async def test_plan_says_what_would_go_and_the_purge_removes_it(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await fill(cluster)
    await purge(cluster, "4", dry_run=True)
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].split() == ["broker-a", "0", "0", "4", "4"]
    assert (
        "4 messages of topic orders are removed, as things are now. No read returns them any more, and nothing brings them back." in shown
    )
    assert "Their bytes stay in the log files of the brokers until retention removes those files." in shown
    assert shown.endswith("nothing was changed (--dry-run)\n")
    assert await bounds(cluster) == {"broker-a": (0, 6)}
    await purge(cluster, "4", as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "topic": TOPIC,
        "done": True,
        "queues": [{"queue": "orders@broker-a:0", "before": 0, "after": 4}],
        "messages": 4,
        "groups": [],
        "groups_complete": True,
    }
    assert await bounds(cluster) == {"broker-a": (4, 6)}
    await purge(cluster, "end")
    assert "topic orders: 2 messages removed in 1 queues; their bytes stay in the log files" in capsys.readouterr().out
    await purge(cluster, "end", dry_run=True)
    assert "topic orders has no messages before end" in capsys.readouterr().out
    await send(cluster, 1)
    assert await bounds(cluster) == {"broker-a": (6, 7)}


async def test_time_removes_what_was_stored_before(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await fill(cluster, 3)
    await cluster.advance(seconds=120)
    await send(cluster, 2)
    operation = TopicPurge(topic=TOPIC, to="60s")
    plan = await operation.plan(AdminClient(Host.current(), cluster.nameserver))
    assert plan.fixed is not None
    assert plan.fixed["to"].endswith("Z"), "what was agreed to does not move with the time"
    await cluster.advance(seconds=120)
    await plan.carry_out()
    assert await bounds(cluster) == {"broker-a": (3, 5)}


async def test_purge_is_refused_while_a_group_has_not_consumed_it(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await fill(cluster, 3)
    await cluster.start("member", consuming(cluster, GROUP, 0, TOPIC))
    await cluster.settled(GROUP)
    await cluster.stop("member")
    await send(cluster, 2)
    await purge(cluster, "3")
    for dry_run in (False, True):
        with pytest.raises(OperationError, match=r"nothing was changed: not all of it was consumed by billing \(2 messages\)\. .* --force"):
            await purge(cluster, "end", dry_run=dry_run)
    assert await bounds(cluster) == {"broker-a": (3, 5)}
    capsys.readouterr()
    await purge(cluster, "end", force=True, dry_run=True)
    assert "Groups that have not consumed all of it continue after it, and report the gap: billing (2 messages)." in capsys.readouterr().out
    await purge(cluster, "end", force=True)
    assert "groups that continue after messages that they have not consumed: billing (2 messages)" in capsys.readouterr().out
    status = await cluster.group_status(GROUP)
    assert status is not None
    assert [line.committed_offset for line in status.queues if line.topic == TOPIC] == [5]


@pytest.mark.parametrize("ordered", [True, False])
async def test_consumer_goes_on_after_a_forced_purge_and_is_told_of_the_gap(lockstep_cluster: TestCluster, ordered: bool) -> None:
    """It is in a call of the first message while the others are purged."""
    cluster = lockstep_cluster
    await fill(cluster, 5)
    bodies: list[bytes] = []
    gaps: list[QueueGap] = []
    begun = asyncio.Event()

    async def member() -> None:
        consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, concurrency=1)
        consumer.subscribe(TOPIC)
        consumer.on_event(lambda event: gaps.append(event) if isinstance(event, QueueGap) else None)

        async def handle(messages: Sequence[MessageExt], _: object) -> None:
            bodies.extend(bytes(message.body) for message in messages)
            begun.set()
            await asyncio.sleep(30 if len(bodies) == 1 else 0)

        (consumer.orderly if ordered else consumer.concurrently)(handle)
        async with consumer:
            await consumer.wait_closed()

    await cluster.start("member", member)
    async with asyncio.timeout(60):
        await begun.wait()
    await cluster.kill("member")
    await purge(cluster, "4", force=True)
    assert await bounds(cluster) == {"broker-a": (4, 5)}
    await cluster.start("next", member)
    await cluster.settled(GROUP)
    assert bodies == [b"0", b"4"]
    assert [(gap.first, gap.end) for gap in gaps] == [(0, 4)]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"to": "beginning"}, ConfigError, "--to beginning removes nothing"),
    ({"to": "sometime"}, ConfigError, "--to 'sometime'"),
    ({"to": "7"}, StateError, "orders@broker-a:0 has offsets 0 to 6, not 7"),
    ({"to": "end", "topic": "unknown"}, TopicNotExistError, "unknown"),
    ({"to": "end", "topic": "SCHEDULE_TOPIC_XXXX"}, OperationError, "is used by the brokers internally"),
    ({"to": "end", "topic": retry_topic(GROUP)}, OperationError, "messages that wait for a retry of group billing.*--force to purge"),
    ({"to": "end", "topic": dlq_topic(GROUP)}, OperationError, "dead letters of group billing.*--force to purge"),
    ({"to": "end", "queue": ("broker-a:1",)}, OperationError, "orders has no queue broker-a:1"),
    ({"to": "end", "queue": ("broker-a",)}, ConfigError, "expected BROKER:NUMBER"),
]


@pytest.mark.parametrize(("fields", "error", "words"), REFUSED)
async def test_what_can_not_be_meant_is_refused_with_words(
    lockstep_cluster: TestCluster, fields: dict[str, Any], error: type[Exception], words: str
) -> None:
    await fill(lockstep_cluster)
    with pytest.raises(error, match=words):
        await purge(lockstep_cluster, **fields)
    assert await bounds(lockstep_cluster) == {"broker-a": (0, 6)}


def test_nothing_is_purged_while_a_broker_does_not_respond() -> None:
    async def main() -> None:
        async with TestCluster(brokers=2) as cluster:
            await fill(cluster, 3, ("broker-a", "broker-b"))
            await cluster.pause("broker-b")
            with pytest.raises(OperationError, match=r"nothing was changed, the result is incomplete: broker broker-b .*no response"):
                await purge(cluster, "end")
            await cluster.resume("broker-b")
            await cluster.advance(seconds=40)
            assert await bounds(cluster) == {"broker-a": (0, 3), "broker-b": (0, 3)}
            await purge(cluster, "end", queue=("broker-b:0",))
            assert await bounds(cluster) == {"broker-a": (0, 3), "broker-b": (3, 3)}

    simulate(main)


def test_broker_that_fails_in_the_middle_is_named_with_those_that_were_purged() -> None:
    async def main() -> None:
        async with TestCluster(brokers=2) as cluster:
            await fill(cluster, 3, ("broker-a", "broker-b"))
            plan = await TopicPurge(topic=TOPIC, to="end").plan(AdminClient(Host.current(), cluster.nameserver))
            await cluster.kill("broker-b")
            with pytest.raises(OperationError, match=r"broker broker-b did not purge orders: .*it was purged at broker-a already"):
                await plan.carry_out()
            await cluster.restart("broker-b")
            await cluster.advance(seconds=5)
            assert await bounds(cluster) == {"broker-a": (3, 3), "broker-b": (0, 3)}

    simulate(main)


async def test_purge_that_takes_longer_than_other_requests_is_waited_for(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await fill(cluster)
    admin = AdminClient(Host.current(), cluster.nameserver)
    broker = by_name((await admin.route(TOPIC)).brokers)["broker-a"]
    await cluster.pause("broker-a")
    request = asyncio.ensure_future(admin.purge(broker, PurgeBody(TOPIC, (QueueOffset(0, 4),))))
    await cluster.advance(seconds=60)
    assert not request.done()
    await cluster.resume("broker-a")
    reply = await request
    assert [(queue.before, queue.after) for queue in reply.queues] == [(0, 4)]

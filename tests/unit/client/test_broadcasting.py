"""Broadcasting against a complete cluster under a virtual clock: each member has every message and continues from its own file."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from lockstep.client import (
    Backoff,
    ConcurrentlyContext,
    ConfigError,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PushConsumer,
    SubscriptionConflictError,
)
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.layout_publish import publish_layout
from lockstep.protocol.bodies import QueueOffset, ResetBody
from lockstep.protocol.errors import BrokerSystemError
from lockstep.runtime.host import Host
from lockstep.testing import simulate
from support.broadcast_world import DONE, GROUP, LATER, TOPIC, bodies, world


@pytest.mark.parametrize("kind", ["member", "ordered"])
def test_each_broadcast_member_gets_every_message_once_across_a_restart(kind: str) -> None:
    async def main() -> None:
        async with world(brokers=2) as w:
            await w.send(*bodies(0, 40))
            for first, end in ((0, 40), (40, 60)):
                async with getattr(w, kind)("one"), getattr(w, kind)("two"):
                    if first:
                        await w.send(*bodies(first, end))
                    await w.cluster.advance(seconds=3)
            assert Counter(w.of("one")) == Counter(w.of("two")) == Counter(bodies(0, 60))

    simulate(main)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (ConsumeFromWhere.FIRST_OFFSET, [b"old", b"new"]),
        (ConsumeFromWhere.LAST_OFFSET, [b"new"]),
        (ConsumeFromWhere.TIMESTAMP, [b"new"]),
    ],
)
def test_new_broadcast_member_starts_at_consume_from_where(where: ConsumeFromWhere, expected: list[bytes]) -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            await w.send(b"old")
            await w.cluster.advance(seconds=10)
            at_ms = Host.current().clock.wall_ms() - 5_000
            async with w.member("one", consume_from_where=where, consume_timestamp_ms=at_ms):
                await w.cluster.advance(seconds=1)
                await w.send(b"new")
                await w.cluster.advance(seconds=1)
            assert w.of("one") == expected

    simulate(main)


def test_recreated_topic_is_consumed_from_its_beginning_even_with_last_offset() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            await w.send(*bodies(0, 5))
            admin = AdminClient(Host.current(), w.cluster.nameserver)
            async with w.ordered("one", consume_from_where=ConsumeFromWhere.LAST_OFFSET):
                await w.cluster.advance(seconds=1)
                await w.send(b"seen")
                await w.cluster.advance(seconds=2)
            await publish_layout(admin, (await admin.route(TOPIC)).layout.deletion)
            await w.cluster.advance(seconds=2)
            await w.cluster.create_topic(TOPIC, queues=1)
            async with Producer("shop", nameserver=w.cluster.nameserver) as producer:
                for body in bodies(10, 30):
                    await producer.send(Message(TOPIC, body))
            async with w.ordered("one", consume_from_where=ConsumeFromWhere.LAST_OFFSET):
                await w.cluster.advance(seconds=40)
            assert w.of("one") == [b"seen", *bodies(10, 30)]

    simulate(main)


def test_queue_added_while_a_member_is_offline_is_consumed_from_its_beginning() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            admin = AdminClient(Host.current(), w.cluster.nameserver)
            async with w.member("one", consume_from_where=ConsumeFromWhere.LAST_OFFSET):
                await w.cluster.advance(seconds=2)
            more = alter_layout((await admin.route(TOPIC)).layout, dict.fromkeys({"broker-a"}, (2, 2)), writer=7)
            await publish_layout(admin, more)
            await w.cluster.advance(seconds=40)
            for queue_id in range(2):
                await w.producer.send(Message(TOPIC, b"%d" % queue_id), queue=MessageQueue(TOPIC, "broker-a", queue_id))
            async with w.member("one", consume_from_where=ConsumeFromWhere.LAST_OFFSET):
                await w.cluster.advance(seconds=2)
            assert sorted(w.of("one")) == bodies(0, 2)

    simulate(main)


@pytest.mark.parametrize("response", [LATER, ValueError("no")], ids=["later", "raises"])
def test_broadcast_message_that_a_concurrent_listener_fails_is_dropped(response: object, caplog: pytest.LogCaptureFixture) -> None:
    def judge(message: MessageExt) -> object:
        if message.body != b"bad":
            return DONE
        if isinstance(response, Exception):
            raise response
        return response

    async def main() -> None:
        async with world(queues=1) as w:
            await w.send(b"bad", b"good")
            for _ in range(2):
                async with w.member("one", judge):
                    await w.cluster.advance(seconds=60)
            assert w.of("one") == [b"bad", b"good"], "it never comes again"
            assert await w.cluster.group_status(GROUP) is None
            topics = await AdminClient(Host.current(), w.cluster.nameserver).topics()
            assert list(topics) == [TOPIC], "no retry topic, no dead letters"

    simulate(main)
    assert "message.dropped" in caplog.text


def test_failing_ordered_broadcast_listener_blocks_only_its_own_queue_on_that_member() -> None:
    async def main() -> None:
        async with world(queues=2) as w:
            fails = {b"0": 3}

            def judge(message: MessageExt) -> None:
                if fails.get(message.body, 0):
                    fails[message.body] -= 1
                    raise ValueError("no")

            retry = OrderedRetry(backoff=Backoff(first_ms=1_000, factor=1.0))
            used = (await w.producer.send(Message(TOPIC, b"0", sharding_key="one"))).queue
            await w.send(b"1", b"2", sharding_key="one")
            await w.send(b"elsewhere", selector=lambda queues, message: queues[1 - used.queue_id])
            async with w.ordered("one", judge, retry=retry), w.ordered("two", retry=retry):
                await w.cluster.advance(seconds=1)
                assert b"1" not in w.of("one")
                await w.cluster.advance(seconds=9)
            assert [body for body in w.of("one") if body != b"elsewhere"] == [b"0"] * 4 + [b"1", b"2"]
            assert [body for body in w.of("two") if body != b"elsewhere"] == bodies(0, 3)

    simulate(main)


def test_member_with_another_message_model_is_rejected() -> None:
    async def main() -> None:
        async with world() as w:
            clustering = PushConsumer(GROUP, nameserver=w.cluster.nameserver)
            clustering.subscribe(TOPIC)

            @clustering.concurrently
            async def listen(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                return DONE

            async with w.member("one"):
                with pytest.raises(SubscriptionConflictError, match="message_model: BROADCASTING here, CLUSTERING asked for"):
                    await clustering.start()
            async with clustering:
                with pytest.raises(SubscriptionConflictError, match="message_model: CLUSTERING here, BROADCASTING asked for"):
                    await w.member("one").start()

    simulate(main)


def test_second_broadcast_member_with_the_same_name_is_rejected() -> None:
    async def main() -> None:
        async with world() as w:
            async with w.member("one"):
                with pytest.raises(ConfigError, match="in use by another consumer"):
                    await w.member("one").start()
                await w.send(*bodies(0, 10))
                await w.cluster.advance(seconds=2)
            async with w.member("one"):
                await w.cluster.advance(seconds=2)
            assert sorted(w.of("one")) == bodies(0, 10)

    simulate(main)


def test_broadcast_group_status_has_members_but_no_owners_or_lag_and_reset_is_rejected() -> None:
    async def main() -> None:
        async with world(queues=2) as w:
            await w.send(*bodies(0, 10))
            async with w.member("one"), w.member("two"):
                await w.cluster.advance(seconds=3)
                report = await w.cluster.group_status(GROUP)
                assert report is not None
                assert (report.broadcasting, report.ordered, report.lag, len(report.members)) == (True, False, None, 2)
                assert {(queue.owner, queue.committed_offset, queue.lag) for queue in report.queues} == {(None, None, None)}
                admin = AdminClient(Host.current(), w.cluster.nameserver)
                with pytest.raises(BrokerSystemError, match="each member keeps its own progress"):
                    await admin.reset((await admin.brokers())[0], ResetBody(GROUP, TOPIC, (QueueOffset(0, 0),)))

    simulate(main)


def test_stop_waits_for_a_running_call_and_saves_its_result() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            done: list[bytes] = []

            def slow(seconds: float) -> PushConsumer:
                made = w.bare("one")

                @made.orderly
                async def listen(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
                    await asyncio.sleep(seconds)
                    done.append(messages[0].body)
                    return ConsumeOrderlyStatus.SUCCESS

                return made

            await w.send(b"a", b"b")
            async with slow(3):
                await w.cluster.advance(seconds=1)
            assert done == [b"a"]
            async with slow(0.1):
                await w.cluster.advance(seconds=1)
            assert done == [b"a", b"b"]

    simulate(main)


def test_broadcast_member_is_healthy_while_its_brokers_are_reachable() -> None:
    async def main() -> None:
        async with world() as w, w.member("one") as member:
            await w.cluster.advance(seconds=2)
            for _ in range(60):
                await w.cluster.advance(seconds=0.3)
                assert member.health().ok
            await w.cluster.kill("broker-a")
            await w.cluster.advance(seconds=2)
            assert not member.health().ok
            await w.cluster.restart("broker-a")
            await w.cluster.advance(seconds=5)
            assert member.health().ok

    simulate(main)


def test_concurrent_call_past_its_timeout_does_not_block_progress() -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            made = w.bare("one", consume_timeout_ms=2_000, stop_timeout_ms=100)

            @made.concurrently
            async def hang(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
                w.seen += [("one", message.body) for message in messages]
                if messages[0].body == b"0":
                    await asyncio.sleep(3_000)
                return DONE

            await w.send(*bodies(0, 3))
            async with made:
                await w.cluster.advance(seconds=6)
            async with w.member("one"):
                await w.cluster.advance(seconds=3)
            assert sorted(w.of("one")) == bodies(0, 3)

    simulate(main)


def test_stop_cancels_a_hanging_call_and_leaves_its_message_uncommitted(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with world(queues=1) as w:
            reported: list[float] = []
            made = w.bare("one", stop_timeout_ms=8_000)

            @made.orderly
            async def hang(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                w.seen += [("one", message.body) for message in messages]
                await context.cancelled.wait()
                reported.append(w.cluster.now)
                await asyncio.sleep(1_000)
                return ConsumeOrderlyStatus.SUCCESS

            await w.send(b"a")
            await made.start()
            await w.cluster.advance(seconds=1)
            began = w.cluster.now
            await made.stop()
            assert reported == [pytest.approx(began + 6, abs=0.2)], "in time to end by itself"
            assert w.cluster.now == pytest.approx(began + 8, abs=0.2)
            async with w.ordered("one"):
                await w.cluster.advance(seconds=2)
            assert w.of("one") == [b"a", b"a"]

    simulate(main)
    assert "consumer.stopped_unclean" not in caplog.text

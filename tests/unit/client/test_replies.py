"""A reply reaches the requester, by the broker from which the request came, or its sender is told that it did not."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import (
    LocalProtocolError,
    Message,
    MessageExt,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    Reply,
    ReplyTimeoutError,
    ReplyUndeliveredError,
    StateError,
)
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from lockstep.testing.stage import TEST
from support.requesting import GROUP, TOPIC, Gate, Replier, answer, world

pytestmark = pytest.mark.simulated


async def test_ordered_listener_and_pull_consumer_reply_too() -> None:
    async with world() as w:
        await w.replier.consumer.stop()
        ordered = PushConsumer("ordered", nameserver=w.cluster.nameserver).subscribe(TOPIC)

        @ordered.orderly
        async def reply(messages: Sequence[MessageExt], _: OrderlyContext) -> None:
            await ordered.reply(messages[0], b"in order")

        async with ordered:
            assert (await w.ask()).body == b"in order"
        async with PullConsumer("polling", nameserver=w.cluster.nameserver).subscribe(TOPIC) as polling:
            await polling.poll()  # what is answered already
            asking = w.ask()
            (request,) = await polling.poll()
            await polling.reply(request, b"polled")
            assert (await asking).body == b"polled"


async def test_message_of_a_listener_that_replied_is_done_as_any_other_and_a_retry_of_it_can_be_answered() -> None:
    async def second_time(consumer: PushConsumer, request: MessageExt) -> None:
        if not request.reconsume_times:
            raise ValueError("not yet")
        await answer(consumer, request)

    async with world() as w:
        await w.replier.consumer.stop()
        consumer = PushConsumer("retrying", nameserver=w.cluster.nameserver).subscribe(TOPIC)

        @consumer.concurrently
        async def handle(messages: Sequence[MessageExt], _: Any) -> None:
            await second_time(consumer, messages[0])

        async with consumer:
            assert (await w.ask(timeout_ms=60_000)).body == b"answer to AAPL"
            await w.cluster.settled("retrying")


@pytest.mark.parametrize("size", [1, BODY_BYTES_MAX])
async def test_reply_may_be_as_long_as_a_message(size: int) -> None:
    async def long(consumer: PushConsumer, request: MessageExt) -> None:
        await consumer.reply(request, bytes(size), properties={"p": "v" * 30_000})

    async with world(long) as w:
        assert await w.ask(timeout_ms=10_000) == Reply(bytes(size), {"p": "v" * 30_000})


async def test_invalid_reply_is_refused_before_it_is_sent_and_a_valid_one_still_counts() -> None:
    async def correct(consumer: PushConsumer, request: MessageExt) -> None:
        invalid: list[tuple[Any, dict[str, Any], str]] = [
            (b"", {}, "length is zero"),
            (bytes(BODY_BYTES_MAX + 1), {}, "over max value"),
            ("text", {}, "expected bytes"),
            (b"x", {"properties": {"TTL": "1"}}, "is reserved"),
            (b"x", {"properties": {"p": ""}}, "is empty"),
            (b"x", {"timeout_ms": 0}, "timeout_ms is 0"),
            (b"x", {"timeout_ms": None}, "timeout_ms is None"),
        ]
        for body, how, why in invalid:
            with pytest.raises(LocalProtocolError, match=why):
                await consumer.reply(request, body, **how)
        await answer(consumer, request)

    async with world(correct) as w:
        assert (await w.ask(timeout_ms=5_000)).body == b"answer to AAPL"
        assert not w.replier.errors


async def test_message_that_is_no_request_cannot_be_answered() -> None:
    async with world() as w:
        await w.producer.send(Message(TOPIC, b"plain"))
        await w.until_errors()
        (error,) = w.replier.errors
        assert isinstance(error, LocalProtocolError)
        assert "the message is no request" in str(error)
        assert w.replier.consumer.expired(w.replier.seen[0]) is False


async def test_request_is_expired_when_its_time_has_passed_and_a_reply_is_refused() -> None:
    gate = Gate()
    async with world(gate) as w:
        asking = w.ask(timeout_ms=1_000)
        await w.until_seen()
        (request,) = w.replier.seen
        assert request.expires_ms == request.born_ms + 1_000
        clock = Host.current().clock
        for ms, expired in ((request.expires_ms - 1, False), (request.expires_ms, True), (request.expires_ms + 1, True)):
            await w.cluster.advance(seconds=(ms - clock.wall_ms()) / 1_000)
            assert clock.wall_ms() == ms
            assert w.replier.consumer.expired(request) is expired
        gate.opened.set()
        with pytest.raises(ReplyTimeoutError):
            await asking
        await w.until_errors()
        assert isinstance(w.replier.errors[0], ReplyUndeliveredError)


async def test_replier_whose_clock_is_wrong_can_reply_all_the_same() -> None:
    """The requester decides whether a reply is late, by its own clock."""
    seen: list[bool] = []

    async with TestCluster(brokers=1) as cluster:
        await cluster.create_topic(TOPIC, queues=1)

        async def serve() -> None:
            async def note(consumer: PushConsumer, request: MessageExt) -> None:
                seen.append(consumer.expired(request))
                await answer(consumer, request)

            await Replier(cluster.nameserver, note).consumer.start()
            await asyncio.Event().wait()

        await cluster.start("replier", serve)
        cluster.set_wall_clock("replier", ahead_seconds=3_600)
        async with Producer("asking", nameserver=cluster.nameserver) as producer:
            assert (await producer.request(Message(TOPIC, b"x"), timeout_ms=20_000)).body == b"answer to x"
        assert seen == [True]


@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_reply_to_a_requester_that_is_gone_is_undelivered(how: str) -> None:
    gate = Gate()
    async with world(gate) as w:

        async def ask() -> None:
            async with Producer("passing", nameserver=w.cluster.nameserver) as producer:
                await producer.request(Message(TOPIC, b"from one that leaves"), timeout_ms=1_000 if how == "stop" else 60_000)

        await w.cluster.start("requester", ask)
        await w.until_seen()
        await getattr(w.cluster, how)("requester")
        w.cluster.failures()
        await w.cluster.advance(seconds=10)
        began = w.cluster.now
        gate.opened.set()
        await w.until_errors()
        assert "is connected to this broker: the reply was dropped" in str(w.replier.errors[0])
        assert w.cluster.now - began < 0.5, "its grace is over: nothing is waited for"


async def test_reply_to_a_requester_that_has_just_gone_waits_for_it_until_its_timeout() -> None:
    gate = Gate()
    async with world(gate) as w:

        async def ask() -> None:
            async with Producer("passing", nameserver=w.cluster.nameserver) as producer:
                await producer.request(Message(TOPIC, b"x"), timeout_ms=60_000)

        await w.cluster.start("requester", ask)
        await w.until_seen()
        await w.cluster.kill("requester")
        began = w.cluster.now
        gate.opened.set()
        await w.until_errors()
        assert isinstance(w.replier.errors[0], ReplyUndeliveredError)
        assert 2 < w.cluster.now - began <= 3.5, "the grace of 3 s, and the timeout of 3 s"


async def test_requester_with_a_new_connection_gets_its_reply() -> None:
    gate = Gate()
    async with world(gate) as w:
        asking = w.ask(timeout_ms=10_000)
        await w.until_seen()
        w.cluster.reset_connections(TEST, "broker-a")  # the consumer's too
        gate.opened.set()
        assert (await asking).body == b"answer to AAPL"


async def test_requester_that_is_cut_off_for_a_moment_gets_its_reply_when_it_is_back() -> None:
    gate = Gate()
    async with TestCluster(brokers=1) as cluster:
        await cluster.create_topic(TOPIC, queues=1)
        got: list[Reply] = []

        async def ask() -> None:
            async with Producer("asking", nameserver=cluster.nameserver) as producer:
                got.append(await producer.request(Message(TOPIC, b"x"), timeout_ms=20_000))

        replier = Replier(cluster.nameserver, gate)
        async with replier.consumer:
            await cluster.start("requester", ask)
            await cluster.until(lambda: replier.seen)
            cluster.reset_connections("requester", "broker-a")
            cluster.partition("requester", "broker-a")
            gate.opened.set()
            await cluster.advance(seconds=1.5)
            assert (got, replier.errors) == ([], [])
            cluster.heal()
            await cluster.until(lambda: got)
        assert (got[0].body, replier.errors) == (b"answer to x", [])


async def test_broker_that_is_killed_and_started_again_before_the_reply_passes_it_on() -> None:
    gate = Gate()
    async with world(gate) as w:
        asking = w.ask(timeout_ms=30_000)
        await w.until_seen()
        await w.cluster.kill("broker-a")
        gate.opened.set()
        await w.cluster.advance(seconds=1)
        await w.cluster.restart("broker-a")
        assert (await asking).body == b"answer to AAPL"


async def test_reply_by_a_broker_that_stays_away_is_undelivered_at_its_timeout() -> None:
    gate = Gate()
    async with world(gate) as w:
        asking = w.ask(timeout_ms=60_000)
        await w.until_seen()
        await w.cluster.kill("broker-a")
        began = w.cluster.now
        gate.opened.set()
        await w.until_errors()
        assert "not within 3000 ms: " in str(w.replier.errors[0])
        assert 2.8 < w.cluster.now - began < 3.2
        asking.cancel()
        await w.cluster.restart("broker-a")


async def test_reply_goes_on_at_the_replica_that_was_promoted() -> None:
    gate = Gate()
    async with TestCluster(brokers=1, replicas=1) as cluster:
        await cluster.create_topic(TOPIC, queues=1)
        replier = Replier(cluster.nameserver, gate)
        async with replier.consumer, Producer("asking", nameserver=cluster.nameserver) as producer:
            asking = asyncio.ensure_future(producer.request(Message(TOPIC, b"x"), timeout_ms=60_000))
            await cluster.until(lambda: replier.seen)
            await cluster.lose("broker-a")
            await cluster.promote("broker-a")
            gate.opened.set()
            assert (await asking).body == b"answer to x"


async def test_listener_that_drains_while_its_consumer_stops_can_reply_and_a_stopped_consumer_cannot() -> None:
    gate = Gate()
    async with world(gate) as w:
        asking = w.ask(timeout_ms=10_000)
        await w.until_seen()
        stopping = asyncio.ensure_future(w.replier.consumer.stop())
        await w.cluster.advance(seconds=0.1)
        gate.opened.set()
        assert (await asking).body == b"answer to AAPL"
        await stopping
        for call in (lambda: w.replier.consumer.reply(w.replier.seen[0], b"x"), lambda: asyncio.sleep(0, _expired(w))):
            with pytest.raises(StateError, match=f"{GROUP} is stopped: it can reply while it runs"):
                await call()


def _expired(w: Any) -> bool:
    expired: bool = w.replier.consumer.expired(w.replier.seen[0])
    return expired


async def test_cancelled_reply_that_is_written_still_counts() -> None:
    async def hesitate(consumer: PushConsumer, request: MessageExt) -> None:
        first = asyncio.ensure_future(consumer.reply(request, b"first"))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        await answer(consumer, request)

    async with world(hesitate) as w:
        assert (await w.ask()).body == b"first"
        await w.until_errors()
        assert "another reply has answered the request before" in str(w.replier.errors[0])

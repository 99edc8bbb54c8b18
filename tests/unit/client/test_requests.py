"""A request ends with the first reply that comes in time, or with an error that says what became of its message."""

import asyncio
import zlib
from typing import Any

import pytest

from lockstep.client import (
    Client,
    LocalProtocolError,
    Message,
    Outcome,
    Producer,
    PullConsumer,
    RemoteProtocolError,
    Reply,
    ReplyTimeoutError,
    ReplyUndeliveredError,
    SendTimeoutError,
    StateError,
    TooManyRequestsError,
)
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.messages.properties import SENT_PROPERTIES_BYTES_MAX
from support.fake_broker import fake_cluster, ignore, respond_later
from support.loops import turns, until
from support.producing import QUICK, message, producing, stop_and_wait_for_link_down
from support.requesting import GROUP, TOPIC, Gate, Replier, answer, push_reply, world
from support.send_trace import Trace

pytestmark = pytest.mark.simulated


async def test_request_returns_the_body_and_the_properties_of_the_reply() -> None:
    async def quote(consumer: Any, request: Any) -> None:
        await consumer.reply(request, b"187.3", properties={"currency": "USD"})

    async with world(quote, brokers=2, queues=2) as w:
        for _ in range(4):  # each queue in turn
            assert await w.ask() == Reply(b"187.3", {"currency": "USD"})
        assert {each.broker_name for each in w.replier.seen} == {"broker-a", "broker-b"}
        keyed = await w.producer.request(Message(TOPIC, b"x", sharding_key="k", properties={"tenant": "7"}))
        assert keyed.body == b"187.3"
        assert (w.replier.seen[-1].sharding_key, w.replier.seen[-1].all_properties["tenant"]) == ("k", "7")
        assert w.replier.seen[-1].all_properties["TTL"] == "3000", "the default"
        queue = w.replier.seen[0].queue_id
        named = next(each for each in await _queues(w) if (each.broker_name, each.queue_id) == ("broker-b", queue))
        await w.ask(queue=named)
        assert (w.replier.seen[-1].broker_name, w.replier.seen[-1].queue_id) == ("broker-b", queue)
        assert not w.replier.errors


async def _queues(w: Any) -> Any:
    async with PullConsumer("looking", nameserver=w.cluster.nameserver) as consumer:
        return await consumer.queues(TOPIC)


async def test_request_without_a_reply_times_out_at_its_deadline_and_its_message_is_stored() -> None:
    async def keep_silent(*_: object) -> None:
        return None

    async with world(keep_silent) as w:
        began = w.cluster.now
        why = "quotes@broker-a:0 offset 0: no consumer replied to the request within 700 ms"
        with pytest.raises(ReplyTimeoutError, match=why) as failed:
            await w.ask(timeout_ms=700)
        assert w.cluster.now - began == pytest.approx(0.7, abs=0.01)
        assert isinstance(failed.value, TimeoutError)
        assert (failed.value.result.queue_offset, len(w.replier.seen)) == (0, 1)
        assert w.producer.health().request_count == 0
        await w.cluster.settled(GROUP)


async def test_late_reply_is_dropped_and_counted_and_completes_no_later_request() -> None:
    gates = {b"first": Gate(), b"second": Gate()}

    async with world(lambda consumer, request: gates[request.body](consumer, request)) as w:
        with pytest.raises(ReplyTimeoutError):
            await w.ask(b"first", timeout_ms=500)
        second = w.ask(b"second", timeout_ms=5_000)
        await w.until_seen(2)
        gates[b"first"].opened.set()
        await w.until_errors()
        (error,) = w.replier.errors
        assert isinstance(error, ReplyUndeliveredError)
        assert "the time of the request has passed" in str(error)
        assert error.message_id == w.replier.seen[0].message_id
        assert (w.producer.health().request_count, w.producer.health().dropped_reply_count) == (1, 1)
        assert not second.done()
        gates[b"second"].opened.set()
        assert (await second).body == b"answer to second"
        assert w.producer.health().dropped_reply_count == 1


async def test_second_reply_is_dropped_wherever_it_comes_from() -> None:
    failed: list[Any] = []

    async def twice(consumer: Any, request: Any) -> None:
        failed.extend(filter(None, await asyncio.gather(answer(consumer, request), answer(consumer, request), return_exceptions=True)))

    async with world(twice) as w:
        other = Replier(w.cluster.nameserver, twice, group="others")
        async with other.consumer:
            assert (await w.ask()).body == b"answer to AAPL"
            await w.cluster.until(lambda: len(failed) == 3)
        assert {type(each) for each in failed} == {ReplyUndeliveredError}
        assert all("another reply has answered" in str(each) for each in failed)
        assert w.producer.health().dropped_reply_count == 3


async def test_requests_beyond_the_limit_are_refused_at_once_and_are_not_stored() -> None:
    gate = Gate()
    async with world(gate, request_count_max=2) as w:
        waiting = [w.ask(timeout_ms=60_000) for _ in range(2)]
        await w.until_seen(2)
        assert w.producer.health().request_count == 2
        why = "refused at once: 2 requests wait for their replies .*raise request_count_max"
        with pytest.raises(TooManyRequestsError, match=why) as refused:
            await w.ask()
        assert refused.value.outcome is Outcome.NOT_STORED
        gate.opened.set()
        assert {(await each).body for each in waiting} == {b"answer to AAPL"}
        assert (await w.ask()).body == b"answer to AAPL"
        assert len(w.replier.seen) == 3


async def test_requests_that_wait_for_a_route_count_for_the_limit() -> None:
    async with Producer("asking", nameserver="10.9.9.9:1", start_in_background=True, request_count_max=1) as producer:
        first = asyncio.ensure_future(producer.request(Message(TOPIC, b"1"), timeout_ms=500))
        await turns(2)
        with pytest.raises(TooManyRequestsError):
            await producer.request(Message(TOPIC, b"2"))
        with pytest.raises(SendTimeoutError, match="the message is not stored"):
            await first
        with pytest.raises(SendTimeoutError):
            await producer.request(Message(TOPIC, b"3"), timeout_ms=500)
        assert producer.health().request_count == 0


async def test_cancelled_request_waits_no_more() -> None:
    gate = Gate()
    async with world(gate) as w:
        asking = w.ask(timeout_ms=60_000)
        await w.until_seen()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert w.producer.health().request_count == 0
        gate.opened.set()
        await w.until_errors()
        assert "its requester waits no more" in str(w.replier.errors[0])


async def test_cancelled_request_that_is_not_written_is_withdrawn() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        broker = cluster.brokers["a"]
        await producer.send(message("first"))
        port = int(broker.address.rpartition(":")[2])
        await stop_and_wait_for_link_down(broker, producer)
        asking = asyncio.ensure_future(producer.request(message("withdrawn"), timeout_ms=60_000))
        await turns(5)
        asking.cancel()
        await asyncio.wait([asking])
        await broker.start(port)
        await producer.send(message("last"))
        assert [each.bodies for each in broker.sends] == [[b"first"], [b"last"]]
        assert (producer.in_flight_count, producer.health().request_count) == (0, 0)


async def test_close_waits_for_the_requests() -> None:
    gate = Gate()
    async with world(gate) as w:
        answered, silent = w.ask(timeout_ms=5_000), w.ask(timeout_ms=700)
        await w.until_seen(2)
        closing = asyncio.ensure_future(w.producer.close())
        with pytest.raises(ReplyTimeoutError):
            await silent
        assert not closing.done()
        with pytest.raises(StateError, match="producer asking is closed"):
            await w.ask()
        gate.opened.set()
        assert (await answered).body == b"answer to AAPL"
        await closing
        with pytest.raises(StateError, match="producer asking is closed"):
            await w.ask()


async def test_cancelled_close_fails_the_requests_and_a_producer_that_is_started_again_serves_new_ones() -> None:
    gate = Gate()
    async with world(gate) as w:
        asking = w.ask(timeout_ms=60_000)
        await w.until_seen()
        closing = asyncio.ensure_future(w.producer.close())
        await turns(2)
        closing.cancel()
        await asyncio.wait([closing, asking])
        assert isinstance(asking.exception(), StateError)
        gate.opened.set()
        await w.producer.start()
        assert (await w.ask()).body == b"answer to AAPL"
        assert w.producer.health().request_count == 0


async def test_request_whose_send_fails_raises_the_error_of_the_send() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send(message("first"))
        cluster.brokers["a"].script.extend([ignore] * 100)
        with pytest.raises(SendTimeoutError, match="in an unknown state") as failed:
            await producer.request(message(), timeout_ms=300)
        assert failed.value.outcome is Outcome.UNKNOWN
        assert producer.health().request_count == 0


async def test_reply_before_the_acknowledgement_of_the_send_counts() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        broker, held = cluster.brokers["a"], list[Any]()
        broker.script.append(respond_later(held))
        asking = asyncio.ensure_future(producer.request(message("x"), timeout_ms=1_000))
        await until(lambda: len(held) == 1)
        (sent,) = broker.sends
        pushed = await push_reply(sent.endpoint, sent.messages[0], b"early")
        assert (pushed.code, (await asking).body) == (ResponseCode.SUCCESS, b"early")
        assert producer.in_flight_count == 1
        held[0]()
        await until(lambda: not producer.in_flight_count)


async def test_request_names_its_client_its_time_and_its_cluster() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, QUICK) as producer:
        broker = cluster.brokers["a"]
        with pytest.raises(ReplyTimeoutError):
            await producer.request(message("x"), timeout_ms=300)
        (sent,) = broker.sends[0].messages
        properties = dict(sent.all_properties)
        assert len(properties.pop("CORRELATION_ID")) == 32
        assert properties.pop("REPLY_TO_CLIENT") == broker.heartbeats[-1].client_id
        assert properties.pop("TTL") == "300"
        assert properties.pop("CLUSTER")
        assert properties.keys() == {"UNIQ_KEY", "__LS_SEQ"}


async def test_reply_that_is_repeated_because_its_response_was_lost_is_accepted_again() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        broker = cluster.brokers["a"]
        asking = asyncio.ensure_future(producer.request(message("x"), timeout_ms=1_000))
        await until(lambda: len(broker.sends) == 1)
        sent = broker.sends[0]
        responses = [await push_reply(sent.endpoint, sent.messages[0], b"1", reply_id=each) for each in ("A", "A", "B")]
        assert [each.code for each in responses] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
        assert (await asking).body == b"1"
        assert producer.health().dropped_reply_count == 1


async def test_compressed_reply_of_rocketmq_is_decompressed_and_one_that_is_damaged_fails_its_request() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        plain = b"a long reply " * 500

        async def answered(body: bytes, flag: int) -> "tuple[asyncio.Future[Reply], Command]":
            held: list[Any] = []
            cluster.brokers["a"].script.append(respond_later(held))
            asking = asyncio.ensure_future(producer.request(message("x"), timeout_ms=1_000))
            await until(lambda: bool(held))
            held[0]()
            sent = cluster.brokers["a"].sends[-1]
            return asking, await push_reply(sent.endpoint, sent.messages[0], body, sys_flag=flag, TAGS="us", WAIT="true")

        asking, response = await answered(zlib.compress(plain), 0x001)
        assert await asking == Reply(plain, {"TAGS": "us"})
        assert response.code == ResponseCode.SUCCESS
        asking, response = await answered(b"no stream", 0x301)
        with pytest.raises(RemoteProtocolError, match="is not a zlib stream"):
            await asking
        assert (response.code, "is not a zlib stream" in (response.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_client_responds_to_a_reply_without_a_request_and_to_unknown_codes_as_before() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send(message("plain", topic="t"))
        with pytest.raises(ReplyTimeoutError):
            await producer.request(message("x"), timeout_ms=300)
        broker = cluster.brokers["a"]
        endpoint, (request,) = broker.sends[-1].endpoint, broker.sends[-1].messages
        late = await push_reply(endpoint, request, b"late")
        unknown = await push_reply(endpoint, request, b"?", CORRELATION_ID="other")
        assert (late.code, unknown.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR)
        assert "knows no request" in (unknown.remark or "")
        assert producer.health().dropped_reply_count == 1, "the other one is of nobody"
        other = await endpoint.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, {}, timeout_ms=1_000)
        assert other.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_connection_with_an_invalid_reply_is_cut() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send(message("x"))
        endpoint = cluster.brokers["a"].sends[-1].endpoint
        failed: asyncio.Future[Command] = endpoint.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {}, timeout_ms=1_000)
        with pytest.raises(ConnectionError):
            await failed
        await producer.send(message("y"))


async def test_producers_and_consumers_of_one_client_get_their_own_replies() -> None:
    """The consumer is connected before the producers: the broker learns their groups with a later heartbeat."""
    async with world() as w:
        client = Client(w.cluster.nameserver)
        watching = PullConsumer("watching", client=client).subscribe(TOPIC)
        async with watching, Producer("one", client=client) as one, Producer("two", client=client) as two:
            asked = [(producer, body) for producer in (one, two) for body in (b"1", b"2")]
            replies = await asyncio.gather(*(producer.request(Message(TOPIC, body)) for producer, body in asked))
            assert [each.body for each in replies] == [b"answer to 1", b"answer to 2"] * 2
            assert one.health().dropped_reply_count == two.health().dropped_reply_count == 0


async def test_hooks_see_the_send_of_a_request() -> None:
    seen: list[Any] = []
    async with world() as w:
        w.producer.add_hook(Trace("one", seen))
        await w.ask(b"AAPL")
        await turns(2)
        assert seen == [("one", "before", "request", [b"AAPL"]), ("one", "after", [0], "NoneType")]
        assert w.replier.seen[0].properties["trace-one"] == "one-span"
        with pytest.raises(LocalProtocolError):
            await w.producer.request(Message(TOPIC, b"x", sharding_key="k"), selector=lambda queues, _: queues[0])
        assert seen[-1] == ("one", "after", [], "LocalProtocolError")


@pytest.mark.parametrize("timeout_ms", [0, -1, 1.5, True, "3"])
async def test_invalid_timeout_is_refused(timeout_ms: Any) -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        with pytest.raises(LocalProtocolError, match="timeout_ms is"):
            await producer.request(message("x"), timeout_ms=timeout_ms)


async def test_message_whose_properties_leave_no_room_is_refused() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        with pytest.raises(LocalProtocolError, match="and those of a request, have"):
            await producer.request(Message("t", b"x", properties={"p": "v" * (SENT_PROPERTIES_BYTES_MAX - 2)}))
        assert producer.health().request_count == 0

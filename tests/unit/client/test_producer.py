"""A producer against brokers that answer, refuse, forget and fall silent on cue."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest

from lockstep.client import (
    BatchSendError,
    LocalProtocolError,
    Message,
    MessageQueue,
    NotDurable,
    Outcome,
    PrecedingSendFailed,
    Producer,
    QueueUnavailable,
    SendResult,
    SendStatus,
    SendTimeout,
    StateError,
    TopicNotExist,
    TransportError,
)
from lockstep.client.producer import patience
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.selector import queue_of_key
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.errors import (
    LayoutStale,
    MessageIllegal,
    NoPermission,
    OutOfSequence,
    RequestCodeNotSupported,
    RouteNotReady,
    ServiceNotAvailable,
    SystemBusy,
)
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.send import SendRecordsReply
from lockstep.protocol.properties import SHARDING_KEY
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.fake_broker import (
    FakeBroker,
    FakeCluster,
    Seen,
    answer_later,
    fake_cluster,
    hang_up,
    ignore,
    lose_answer,
    make_layout,
    refuse,
    store_and_hang_up,
)
from support.loops import until

pytestmark = pytest.mark.simulated

QUICK = ProducerConfig(send_timeout_ms=400, keyed_send_timeout_ms=1_200, attempt_timeout_ms=40)


def message(body: str = "x", topic: str = "t") -> Message:
    return Message(topic, body.encode())


@asynccontextmanager
async def producing(cluster: FakeCluster, config: ProducerConfig = QUICK) -> AsyncIterator[Producer]:
    async with Producer("orders", nameserver=cluster.address, **asdict(config)) as producer:
        yield producer


@asynccontextmanager
async def one_queue(config: ProducerConfig = QUICK) -> AsyncIterator[tuple[FakeBroker, Producer]]:
    """One broker, one queue, its link up: what follows is about that queue alone."""
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send(message("first"))
        yield cluster.brokers["a"], producer


async def stop_and_be_noticed(broker: FakeBroker, producer: Producer) -> None:
    assert producer._shared is not None
    link = producer._shared.instance.link(broker.name)
    assert link is not None
    await broker.stop()
    await until(lambda: not link.up)


async def sends(producer: Producer, bodies: Sequence[str], **how: object) -> list[SendResult | BaseException]:
    return await asyncio.gather(*[producer.send(message(body), **how) for body in bodies], return_exceptions=True)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------------ the plain way


@pytest.mark.both_loops
async def test_a_send_returns_where_its_message_was_stored() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        first = await producer.send(message("1"))
        second = await producer.send(message("2"))
        assert (first.status, first.queue, first.queue_offset) == (SendStatus.SEND_OK, MessageQueue("t", "a", 0), 0)
        assert second.queue_offset == 1
        assert first.message_id != second.message_id
        seen = cluster.brokers["a"].seen
        assert [one.bodies for one in seen] == [[b"1"], [b"2"]]
        assert seen[0].messages[0].message_id == first.message_id


async def test_unkeyed_sends_visit_every_queue_of_every_live_broker_in_turn() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        await producer.send(message())
        await until(lambda: len(cluster.brokers["a"].heartbeats) + len(cluster.brokers["b"].heartbeats) == 2)
        results = [await producer.send(message()) for _ in range(8)]
        assert sorted((result.queue.broker_name, result.queue.queue_id) for result in results) == sorted(
            [("a", 0), ("a", 1), ("b", 0), ("b", 1)] * 2
        )


async def test_what_gathers_behind_a_frame_in_flight_leaves_as_one_frame() -> None:
    async with one_queue() as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.append(answer_later(held))
        waiting = [asyncio.ensure_future(producer.send(message("0")))]
        await until(lambda: len(held) == 1)
        waiting += [asyncio.ensure_future(producer.send(message(str(n)))) for n in range(1, 9)]
        await asyncio.sleep(0)
        assert len(broker.seen) == 2, "one frame in flight per queue"
        held[0]()
        results = await asyncio.gather(*waiting)
        assert broker.seen[2].bodies == [b"%d" % n for n in range(1, 9)]
        assert [result.queue_offset for result in results] == list(range(1, 10))
        assert [one.place for one in broker.seen] == [(0, 0), (0, 1), (0, 2)]


async def test_a_frame_is_cut_at_its_limits() -> None:
    config = ProducerConfig(batch_count_max=3, attempt_timeout_ms=1_000)
    async with one_queue(config) as (broker, producer):
        await sends(producer, [str(n) for n in range(8)])
        assert [len(one.bodies) for one in broker.seen[1:]] == [3, 3, 2]


async def test_a_key_always_goes_to_its_queue_and_carries_key_and_layout() -> None:
    async with fake_cluster("a", "b", topics={"t": 3}) as cluster, producing(cluster) as producer:
        layout = cluster.topics["t"]
        for key in ("1001", "1002", "ключ", "z"):
            result = await producer.send(message(), sharding_key=key)
            assert result.queue == queue_of_key(layout, key)
            seen = cluster.brokers[result.queue.broker_name].seen[-1]
            assert (seen.header.layout_counter, seen.header.layout_writer) == (1, 7)
            assert seen.messages[0].all_properties[SHARDING_KEY] == key


async def test_a_selector_gets_the_layouts_queues_and_a_named_queue_is_taken_as_it_is() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        result = await producer.send(message(), selector=lambda queues, message, arg: queues[arg % len(queues)], arg=7)
        assert result.queue == cluster.topics["t"].write_queues[3]
        again = await producer.send(message(), queue=result.queue)
        assert again.queue == result.queue
        assert cluster.brokers["b"].seen[-1].header.layout_counter is None


async def test_a_batch_without_keys_is_one_frame_of_one_queue_in_order() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        results = await producer.send_batch([message(str(n)) for n in range(50)])
        assert {result.queue for result in results} == {results[0].queue}
        assert [result.queue_offset for result in results] == list(range(50))
        (seen,) = cluster.brokers[results[0].queue.broker_name].seen
        assert seen.bodies == [b"%d" % n for n in range(50)]
        assert [one.message_id for one in seen.messages] == [result.message_id for result in results]
        assert await producer.send_batch([]) == []


async def test_a_batch_with_keys_is_one_frame_per_queue_with_results_in_the_order_given() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        keys = [f"k{n % 7}" for n in range(40)]
        results = await producer.send_batch([message(str(n)) for n in range(40)], sharding_keys=keys)
        assert [result.queue for result in results] == [queue_of_key(cluster.topics["t"], key) for key in keys]
        for broker in cluster.brokers.values():
            assert len(broker.seen) == len({one.header.queue_id for one in broker.seen})
            for seen in broker.seen:
                for key in set(keys):
                    bodies = [int(one.body) for one in seen.messages if one.sharding_key == key]
                    assert bodies == sorted(bodies)


async def test_a_batch_of_several_topics_and_more_than_a_frame_comes_back_in_order() -> None:
    config = ProducerConfig(batch_count_max=4)
    async with fake_cluster("a", topics={"t": 1, "u": 1}) as cluster, producing(cluster, config) as producer:
        results = await producer.send_batch([message(str(n), "tu"[n % 2]) for n in range(20)])
        assert [result.queue.topic for result in results] == ["t", "u"] * 10
        assert [result.queue_offset for result in results] == [n // 2 for n in range(20)]


async def test_one_way_sends_carry_no_sequence_and_are_not_answered() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send_oneway(message("1"))
        await producer.send_oneway(message("2"), sharding_key="k")
        broker = cluster.brokers["a"]
        await until(lambda: sum(len(one.bodies) for one in broker.oneways) == 2)
        assert all(one.header.producer_id is None for one in broker.oneways)
        assert {one.header.layout_counter for one in broker.oneways} == {None, 1}


async def test_sends_without_start_after_close_or_twice_started_are_told_so() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        producer = Producer("orders", nameserver=cluster.address)
        assert repr(Producer("p")) == "<Producer p new>"
        with pytest.raises(StateError, match="not started"):
            await producer.send(message())
        async with producer:
            with pytest.raises(StateError, match="started before"):
                await producer.start()
        with pytest.raises(StateError, match="closed"):
            await producer.send(message())
        await producer.close()


async def test_leaving_waits_for_what_is_in_flight() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        held: list[Callable[[], None]] = []
        cluster.brokers["a"].script.append(answer_later(held))
        async with producing(cluster, ProducerConfig()) as producer:
            sending = asyncio.ensure_future(producer.send(message()))
            await until(lambda: len(held) == 1)
            asyncio.get_running_loop().call_soon(held[0])
        assert sending.done()
        assert (await sending).queue_offset == 0


async def test_no_nameserver_is_named_in_the_error() -> None:
    with pytest.raises(TransportError, match=r"no nameserver can be reached: 127\.0\.0\.1:1: "):
        await Producer("orders", nameserver="127.0.0.1:1").start()


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"sharding_key": "k", "queue": MessageQueue("t", "a", 0)}, "give one of them"),
        ({"arg": 7}, "arg is handed to a selector"),
        ({"sharding_key": ""}, "sharding_key is empty"),
        ({"queue": MessageQueue("u", "a", 0)}, "the message's topic is t"),
        ({"queue": MessageQueue("t", "a", 9)}, "none of the 1 writable queues"),
        ({"selector": lambda queues, message, arg: None}, "the selector answered None"),
    ],
)
async def test_arguments_that_can_not_be_are_refused_and_leave_nothing_in_flight(how: dict[str, object], what: str) -> None:
    async with one_queue() as (broker, producer):
        with pytest.raises(LocalProtocolError, match=what):
            await producer.send(message(), **how)  # type: ignore[arg-type]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)
        assert len(broker.seen) == 1


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        (message(), "got a Message: one message goes by send"),
        ((message() for _ in range(2)), "takes a list of messages, and got a generator"),
        ([message(), b"x"], "one of them is a bytes"),
    ],
    ids=["a message", "a generator", "bytes"],
)
async def test_a_batch_that_is_no_list_of_messages_is_refused(messages: object, what: str) -> None:
    async with one_queue() as (broker, producer):
        with pytest.raises(LocalProtocolError, match=what):
            await producer.send_batch(messages)  # type: ignore[arg-type]
        assert producer.in_flight_count == 0
        assert len(broker.seen) == 1


# ------------------------------------------------------------------------------------------------------- lost answers and retries


@pytest.mark.parametrize("mishap", [ignore, lose_answer, store_and_hang_up, hang_up])
@pytest.mark.parametrize("key", [None, "k"])
async def test_an_unanswered_frame_is_repeated_byte_for_byte_and_stored_once(mishap: Callable[..., None], key: str | None) -> None:
    async with one_queue() as (broker, producer):
        broker.script.append(mishap)
        result = await producer.send(message("once"), sharding_key=key)
        assert result.queue_offset == 1
        assert broker.stored == [b"first", b"once"]
        first, repeat = broker.seen[1], broker.seen[2]
        assert repeat.body == first.body
        assert repeat.header == first.header
        assert producer.possible_duplicates == 0


async def test_an_answer_that_comes_after_the_frame_was_written_again_is_as_good_as_any() -> None:
    async with one_queue() as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.extend([answer_later(held), *[ignore] * 100])
        sending = asyncio.ensure_future(producer.send(message("slow"), sharding_key="k"))
        await until(lambda: len(broker.seen) > 3)
        held[0]()
        assert (await sending).queue_offset == 1
        broker.script.clear()
        assert (await producer.send(message("next"))).queue_offset == 2


@pytest.mark.parametrize("mishap", [store_and_hang_up, hang_up])
async def test_a_lost_connection_is_reason_enough_to_repeat_the_frame(mishap: Callable[..., None]) -> None:
    async with one_queue(ProducerConfig(attempt_timeout_ms=20_000, keyed_send_timeout_ms=25_000)) as (broker, producer):
        broker.script.append(mishap)
        async with asyncio.timeout(10):
            assert (await producer.send(message("once"), sharding_key="k")).queue_offset == 1


async def test_an_unkeyed_send_whose_broker_died_after_it_was_written_moves_at_half_the_deadline_and_is_counted() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send_batch([message("warm")])
        await until(lambda: all(broker.heartbeats for broker in cluster.brokers.values()))
        dying = cluster.brokers["a"]
        stopping: list[asyncio.Future[None]] = []

        def die(broker: FakeBroker, seen: Seen) -> None:
            broker.store(seen)
            seen.endpoint.abort("killed")
            stopping.append(asyncio.ensure_future(broker.stop()))

        dying.script.append(die)
        results = await sends(producer, ["1", "2"])
        assert {result.queue.broker_name for result in results if isinstance(result, SendResult)} == {"b"}
        assert len(results) == 2
        assert producer.possible_duplicates == 1
        await asyncio.gather(*stopping)


async def test_an_unkeyed_send_stays_on_its_queue_until_half_the_deadline_then_moves_and_is_counted() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster) as producer:
        silent, other = cluster.brokers["a"], cluster.brokers["b"]
        await producer.send_batch([message("warm")])
        await until(lambda: len(silent.heartbeats) + len(other.heartbeats) == 2)
        while not silent.seen:
            await producer.send(message("warm"))
        silent.seen.clear()
        silent.script.extend([ignore] * 50)
        results = await sends(producer, ["1", "2"])
        assert [result.queue.broker_name for result in results if isinstance(result, SendResult)] == ["b", "b"]
        assert len(silent.seen) > 1, "the same queue is tried again first"
        assert {one.body for one in silent.seen} == {silent.seen[0].body}
        assert producer.possible_duplicates == len(silent.seen[0].bodies) == 1
        silent.script.clear()
        assert {(await producer.send(message("later"))).queue.broker_name for _ in range(4)} == {"b"}, "nor do later ones go there"
        await producer.send(message("named"), queue=MessageQueue("t", "a", 0))
        assert silent.seen[-1].place == (1, 0), "whatever of the abandoned frame still arrives is below the new epoch"
        assert {(await producer.send(message("later"))).queue.broker_name for _ in range(4)} == {"a", "b"}, "it answers again"


async def test_an_unkeyed_send_that_left_a_queue_which_may_have_stored_it_never_ends_as_not_stored() -> None:
    config = ProducerConfig(send_timeout_ms=300, attempt_timeout_ms=40)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, config=config) as producer:
        silent, other = cluster.brokers["a"], cluster.brokers["b"]
        await producer.send_batch([message("warm")])
        await until(lambda: len(silent.heartbeats) + len(other.heartbeats) == 2)
        while not silent.seen:
            await producer.send(message("warm"))
        silent.script.extend([ignore] * 50)
        other.script.extend([FakeBroker.take, *[refuse(ServiceNotAvailable("full"))] * 50])
        ends = await sends(producer, ["1", "2"])
        assert producer.possible_duplicates == 1, "one of them was written at a, and moved to b"
        (failed,) = [end for end in ends if not isinstance(end, SendResult)]
        assert isinstance(failed, SendTimeout)
        assert failed.outcome is Outcome.UNKNOWN


async def test_a_queue_that_lost_a_frame_gets_unkeyed_sends_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "STALL_MS", 20)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await sends(producer, ["1", "2"])
        broker = cluster.brokers["a"]
        broker.script.append(refuse(ServiceNotAvailable("full")))
        await sends(producer, ["3", "4", "5"])
        before = len(broker.seen)
        async with asyncio.timeout(10):
            while len(broker.seen) == before:
                await producer.send(message("again"))


async def test_an_unkeyed_send_that_was_never_written_moves_at_once_and_is_no_possible_duplicate() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        await sends(producer, [str(n) for n in range(8)])
        await stop_and_be_noticed(cluster.brokers["a"], producer)
        results = await sends(producer, [str(n) for n in range(8)])
        assert {result.queue.broker_name for result in results if isinstance(result, SendResult)} == {"b"}
        assert producer.possible_duplicates == 0


async def test_a_keyed_send_never_moves_and_says_which_queue_did_not_answer() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=200, attempt_timeout_ms=40)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        result = await producer.send(message("first"), sharding_key="k")
        owner = cluster.brokers[result.queue.broker_name]
        owner.script.extend([ignore] * 50)
        with pytest.raises(QueueUnavailable, match="in an unknown state") as caught:
            await producer.send(message("second"), sharding_key="k")
        assert (caught.value.queue, caught.value.outcome) == (result.queue, Outcome.UNKNOWN)
        assert sum(len(broker.stored) for broker in cluster.brokers.values()) == 1
        owner.script.clear()
        assert (await producer.send(message("third"), sharding_key="k")).queue_offset == 1
        assert owner.seen[-1].place == (1, 0)


async def test_a_keyed_send_to_a_broker_that_is_gone_is_not_stored_and_knows_it() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150)
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send(message("first"), sharding_key="k")
        broker = cluster.brokers["a"]
        await stop_and_be_noticed(broker, producer)
        with pytest.raises(QueueUnavailable, match=r"not connected.*not stored") as caught:
            await producer.send(message("second"), sharding_key="k")
        assert caught.value.outcome is Outcome.NOT_STORED


async def test_a_keyed_send_waits_for_its_brokers_return_on_another_port() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, ProducerConfig()) as producer:
        await producer.send(message("first"), sharding_key="k")
        broker = cluster.brokers["a"]
        await broker.stop()
        sending = asyncio.ensure_future(producer.send(message("second"), sharding_key="k"))
        broker.term += 1
        await broker.start()
        assert (await sending).queue_offset == 1
        assert [body.connection for body in broker.heartbeats] == [1, 2]
        assert len({body.session for body in broker.heartbeats}) == 1


async def test_an_unkeyed_send_without_any_broker_fails_at_its_deadline() -> None:
    config = ProducerConfig(send_timeout_ms=80)
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send(message())
        await stop_and_be_noticed(cluster.brokers["a"], producer)
        with pytest.raises(SendTimeout, match="topic t: not acknowledged") as caught:
            await producer.send(message())
        assert caught.value.outcome is Outcome.NOT_STORED


async def test_a_suffix_that_the_broker_lost_is_met_with_a_new_epoch_and_the_same_records() -> None:
    async with one_queue() as (broker, producer):
        await producer.send(message("lost"))
        broker.scopes.clear()
        broker.queues.clear()
        result = await producer.send(message("kept"), sharding_key="k")
        assert result.queue_offset == 0
        assert broker.stored == [b"kept"]
        assert [one.place for one in broker.seen[-2:]] == [(0, 2), (1, 0)]
        assert [one.bodies for one in broker.seen[-2:]] == [[b"kept"], [b"kept"]]


async def test_out_of_sequence_for_ever_fails_at_the_deadline() -> None:
    config = ProducerConfig(send_timeout_ms=150)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([refuse(OutOfSequence("always"), next_sequence=0)] * 500)
        with pytest.raises(OutOfSequence):
            await producer.send(message())
        assert len(broker.seen) < 50, "the answers are met with a growing pause"


async def test_a_late_repeat_that_is_a_duplicate_counts_as_stored() -> None:
    async with one_queue() as (broker, producer):

        def duplicate(broker: FakeBroker, seen: Seen) -> None:
            seen.endpoint.send(seen.command.reply(ResponseCode.DUPLICATE, None, to_plain(SendRecordsReply(-1, -1, 0))))

        broker.script.append(duplicate)
        result = await producer.send(message())
        assert (result.status, result.queue_offset, result.offset_message_id) == (SendStatus.SEND_OK, -1, "")


# ---------------------------------------------------------------------------------------------------------------------- refusals


async def test_an_unkeyed_send_refused_by_one_broker_goes_to_another_at_once_and_is_no_possible_duplicate() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, ProducerConfig()) as producer:
        await sends(producer, ["1", "2"])
        cluster.brokers["a"].script.extend([refuse(ServiceNotAvailable("disk"))] * 3)
        results = await sends(producer, ["3", "4"])
        assert all(isinstance(result, SendResult) for result in results)
        assert producer.possible_duplicates == 0


async def test_a_refusal_that_lasts_is_what_an_unkeyed_send_raises() -> None:
    config = ProducerConfig(send_timeout_ms=120)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([refuse(ServiceNotAvailable("5 bytes free, watermark 10"))] * 100)
        with pytest.raises(ServiceNotAvailable, match="5 bytes free"):
            await producer.send(message())
        assert len(broker.seen) < 10


async def test_a_keyed_send_waits_out_a_busy_broker_with_the_same_frame() -> None:
    async with one_queue() as (broker, producer):
        broker.script.extend([refuse(SystemBusy("later"))] * 2)
        result = await producer.send(message("k"), sharding_key="k")
        assert result.queue_offset == 1
        assert len({one.body for one in broker.seen[1:]}) == 1


async def test_a_keyed_send_refused_by_its_broker_does_not_go_to_another() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send_batch([message(str(n)) for n in range(8)], sharding_keys=[str(n) for n in range(8)])
        result = await producer.send(message("first"), sharding_key="k")
        owner = cluster.brokers[result.queue.broker_name]
        owner.script.extend([refuse(SystemBusy("later"))] * 2)
        again = await producer.send(message("second"), sharding_key="k")
        assert (again.queue, again.queue_offset) == (result.queue, result.queue_offset + 1)


async def test_a_refusal_that_no_retry_mends_is_raised_at_once() -> None:
    async with one_queue() as (broker, producer):
        broker.script.append(refuse(NoPermission("closed")))
        with pytest.raises(NoPermission, match="closed"):
            await producer.send(message("refused"))
        assert (await producer.send(message("next"))).queue_offset == 1
        assert broker.seen[-1].place == (0, 1), "what is certainly not stored gives its place to the next"


async def test_one_illegal_message_does_not_fail_its_neighbours() -> None:
    async with one_queue() as (broker, producer):

        def pick(broker: FakeBroker, seen: Seen) -> None:
            if b"bad" in seen.bodies:
                refuse(MessageIllegal("record 1 of the frame"))(broker, seen)
            else:
                broker.take(seen)

        broker.script.extend([pick] * 10)
        results = await sends(producer, ["1", "bad", "2"])
        assert isinstance(results[1], MessageIllegal)
        assert isinstance(results[0], SendResult)
        assert isinstance(results[2], SendResult)
        assert broker.stored == [b"first", b"1", b"2"]


async def test_one_illegal_message_of_a_batch_fails_only_those_of_its_key() -> None:
    async with one_queue() as (broker, producer):

        def pick(broker: FakeBroker, seen: Seen) -> None:
            refuse(MessageIllegal("body"))(broker, seen) if b"bad" in seen.bodies else broker.take(seen)

        broker.script.extend([pick] * 10)
        bodies = ["1", "2", "bad", "3", "4"]
        with pytest.raises(BatchSendError) as caught:
            await producer.send_batch([message(body) for body in bodies], sharding_keys=list("abcca"))
        assert [type(result) for result in caught.value.results] == [SendResult, SendResult, MessageIllegal, MessageIllegal, SendResult]
        assert broker.stored == [b"first", b"1", b"4", b"2"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_what_waits_behind_a_failed_send_of_its_key_fails_unsent_and_other_keys_go_on() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150, attempt_timeout_ms=40)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([ignore] * 20)
        first = asyncio.ensure_future(producer.send(message("1"), sharding_key="k"))
        await until(lambda: len(broker.seen) > 1)
        behind = asyncio.ensure_future(producer.send(message("2"), sharding_key="k", timeout_ms=5_000))
        other = asyncio.ensure_future(producer.send(message("3"), sharding_key="other", timeout_ms=5_000))
        with pytest.raises(QueueUnavailable):
            await first
        broker.script.clear()
        with pytest.raises(PrecedingSendFailed, match='sharding key "k"'):
            await behind
        assert (await other).queue_offset == 1
        assert broker.stored == [b"first", b"3"]


async def test_what_waits_for_the_in_flight_limit_behind_a_failed_send_of_its_key_fails_too() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150, attempt_timeout_ms=40, in_flight_count_max=1)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([ignore] * 20)
        first = asyncio.ensure_future(producer.send(message("1"), sharding_key="k"))
        await until(lambda: len(broker.seen) > 1)
        behind = asyncio.ensure_future(producer.send(message("2"), sharding_key="k"))
        other = asyncio.ensure_future(producer.send(message("3"), sharding_key="other", timeout_ms=5_000))
        await asyncio.wait([first])
        broker.script.clear()
        results = await asyncio.gather(first, behind, other, return_exceptions=True)
        assert [type(result) for result in results] == [QueueUnavailable, PrecedingSendFailed, SendResult]
        assert broker.stored == [b"first", b"3"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_what_a_batch_has_for_a_queue_is_one_parcel_and_keeps_its_place_among_sends_of_its_keys() -> None:
    async with one_queue() as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.append(answer_later(held))
        waiting: list[asyncio.Future[object]] = [asyncio.ensure_future(producer.send(message("0"), sharding_key="k1"))]
        await until(lambda: len(held) == 1)
        waiting.append(asyncio.ensure_future(producer.send(message("1"), sharding_key="k2")))
        waiting.append(asyncio.ensure_future(producer.send_batch([message(str(n)) for n in range(2, 9)], sharding_keys=list("abcabck"))))
        waiting.append(asyncio.ensure_future(producer.send(message("9"), sharding_key="b")))
        await asyncio.sleep(0)
        (sender,) = producer._topics.open_ones["t"].senders
        assert [parcel.count for parcel in sender._batcher.keyed] == [1, 7, 1]
        held[0]()
        await asyncio.gather(*waiting)
        assert broker.seen[2].bodies == [b"%d" % n for n in range(1, 10)]
        assert [one.sharding_key for one in broker.seen[2].messages] == ["k2", *"abcabck", "b"]


async def test_a_failed_batch_fails_what_waits_behind_any_of_its_keys() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150, attempt_timeout_ms=40)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([ignore] * 20)
        first = asyncio.ensure_future(producer.send_batch([message(key) for key in "abc"], sharding_keys=list("abc")))
        await until(lambda: len(broker.seen) > 1)
        behind = [asyncio.ensure_future(producer.send(message(key), sharding_key=key, timeout_ms=5_000)) for key in "abcd"]
        with pytest.raises(BatchSendError) as caught:
            await first
        assert [type(result) for result in caught.value.results] == [QueueUnavailable] * 3
        broker.script.clear()
        results = await asyncio.gather(*behind, return_exceptions=True)
        assert [type(result) for result in results] == [PrecedingSendFailed] * 3 + [SendResult]
        assert [result.key for result in results if isinstance(result, PrecedingSendFailed)] == ["a", "b", "c"]
        assert broker.stored == [b"first", b"d"]


async def test_of_a_batch_that_waits_behind_a_failed_send_only_the_messages_of_that_key_fail() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150, attempt_timeout_ms=40)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([ignore] * 20)
        first = asyncio.ensure_future(producer.send(message("0"), sharding_key="b"))
        await until(lambda: len(broker.seen) > 1)
        batch = producer.send_batch([message(str(n)) for n in range(1, 6)], sharding_keys=list("abcab"), timeout_ms=5_000)
        behind = asyncio.ensure_future(batch)
        with pytest.raises(QueueUnavailable):
            await first
        broker.script.clear()
        with pytest.raises(BatchSendError, match='sharding key "b"') as caught:
            await behind
        assert [type(result) for result in caught.value.results] == [
            SendResult,
            PrecedingSendFailed,
            SendResult,
            SendResult,
            PrecedingSendFailed,
        ]
        assert broker.stored == [b"first", b"1", b"3", b"4"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_a_batch_that_waits_for_the_in_flight_limit_behind_a_failed_key_fails_whole_and_what_waits_behind_it_too() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150, attempt_timeout_ms=40, in_flight_count_max=1)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([ignore] * 20)
        first = asyncio.ensure_future(producer.send(message("1"), sharding_key="k"))
        await until(lambda: len(broker.seen) > 1)
        behind = asyncio.ensure_future(producer.send_batch([message("2"), message("3")], sharding_keys=["j", "k"]))
        second = asyncio.ensure_future(producer.send(message("4"), sharding_key="j"))
        other = asyncio.ensure_future(producer.send(message("5"), sharding_key="other", timeout_ms=5_000))
        await asyncio.wait([first])
        broker.script.clear()
        results = await asyncio.gather(first, behind, second, other, return_exceptions=True)
        assert [type(result) for result in results] == [QueueUnavailable, BatchSendError, PrecedingSendFailed, SendResult]
        assert isinstance(results[1], BatchSendError)
        assert [type(result) for result in results[1].results] == [PrecedingSendFailed] * 2
        assert broker.stored == [b"first", b"5"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_what_a_batch_had_sent_before_it_was_refused_at_the_in_flight_limit_is_told() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150, attempt_timeout_ms=40, in_flight_count_max=2, batch_count_max=1)
    async with fake_cluster("a", topics={"t": 2}) as cluster, producing(cluster, config) as producer:
        await producer.send(message("first"), queue=MessageQueue("t", "a", 0))
        broker = cluster.brokers["a"]
        keys = [next(f"k{n}" for n in range(99) if queue_of_key(cluster.topics["t"], f"k{n}").queue_id == queue) for queue in (0, 1)]
        broker.script.extend([ignore] * 40)
        failing = asyncio.ensure_future(producer.send(message("1"), sharding_key=keys[0]))
        await until(lambda: len(broker.seen) > 1)
        messages, own = [message("2"), message("3"), message("4")], [keys[1], keys[0], keys[1]]
        batch = asyncio.ensure_future(producer.send_batch(messages, sharding_keys=own, timeout_ms=5_000))
        with pytest.raises(QueueUnavailable):
            await failing
        broker.script.clear()
        with pytest.raises(BatchSendError) as caught:
            await batch
        assert [type(result) for result in caught.value.results] == [SendResult, PrecedingSendFailed, PrecedingSendFailed]
        assert broker.stored == [b"first", b"2"]


async def test_selected_and_named_sends_of_a_queue_count_as_one_key() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150, attempt_timeout_ms=40)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([ignore] * 20)
        first = asyncio.ensure_future(producer.send(message("1"), selector=lambda queues, message, arg: queues[0]))
        await until(lambda: len(broker.seen) > 1)
        behind = asyncio.ensure_future(producer.send(message("2"), queue=MessageQueue("t", "a", 0), timeout_ms=5_000))
        keyed = asyncio.ensure_future(producer.send(message("3"), sharding_key="k", timeout_ms=5_000))
        await asyncio.wait([first])
        broker.script.clear()
        results = await asyncio.gather(first, behind, keyed, return_exceptions=True)
        assert [type(result) for result in results] == [QueueUnavailable, PrecedingSendFailed, SendResult]


async def test_unkeyed_sends_that_wait_for_a_dead_broker_go_on_at_one_that_recovers() -> None:
    config = ProducerConfig(attempt_timeout_ms=30)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send_batch([message("warm")])
        await until(lambda: all(broker.heartbeats for broker in cluster.brokers.values()))
        await cluster.brokers["a"].stop()
        other = cluster.brokers["b"]
        other.script.extend([ignore] * 1_000)
        stuck = asyncio.ensure_future(producer.send(message("stuck"), queue=MessageQueue("t", "b", 0)))
        await until(lambda: sum(b"stuck" in one.bodies for one in other.seen) > 1)
        waiting = [asyncio.ensure_future(producer.send(message(str(n)))) for n in range(10)]
        await asyncio.sleep(0)
        assert producer.in_flight_count == 11
        other.script.clear()
        results = await asyncio.gather(*waiting)
        assert {result.queue.broker_name for result in results} == {"b"}
        assert (await stuck).queue.broker_name == "b"
        assert producer.possible_duplicates == 0


async def test_a_batch_tells_what_became_of_each_message() -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster, producing(cluster) as producer:

        def refuse_queue_0(broker: FakeBroker, seen: Seen) -> None:
            refuse(NoPermission("queue 0"))(broker, seen) if seen.header.queue_id == 0 else broker.take(seen)

        cluster.brokers["a"].script.extend([refuse_queue_0] * 2)
        keys = [f"k{n}" for n in range(12)]
        with pytest.raises(BatchSendError, match="queue 0") as caught:
            await producer.send_batch([message(key) for key in keys], sharding_keys=keys)
        for key, result in zip(keys, caught.value.results, strict=True):
            refused = queue_of_key(cluster.topics["t"], key).queue_id == 0
            assert isinstance(result, NoPermission if refused else SendResult)


async def test_durable_is_asked_for_and_missed() -> None:
    async with one_queue() as (broker, producer):

        def weaker(broker: FakeBroker, seen: Seen) -> None:
            _, reply = broker.store(seen)
            seen.endpoint.send(seen.command.reply(ResponseCode.FLUSH_DISK_TIMEOUT, None, to_plain(reply)))

        broker.script.extend([weaker, weaker])
        assert (await producer.send(message())).status is SendStatus.FLUSH_DISK_TIMEOUT
        with pytest.raises(NotDurable, match="FLUSH_DISK_TIMEOUT") as missed:
            await producer.send(message(), require="durable")
        assert [(result.status.name, result.queue_offset) for result in missed.value.results] == [("FLUSH_DISK_TIMEOUT", 2)]
        broker.script.append(weaker)
        with pytest.raises(NotDurable, match="offset 3") as missed:
            await producer.send_batch([message("a"), message("b")], require="durable")
        assert [result.queue_offset for result in missed.value.results] == [3, 4]
        assert (await producer.send(message(), require="durable")).status is SendStatus.SEND_OK


async def test_a_frame_asks_for_what_the_most_careful_of_its_sends_asks() -> None:
    async with one_queue() as (broker, producer):
        broker.seen.clear()
        await asyncio.gather(producer.send(message("a")), producer.send(message("b"), require="durable"))
        await producer.send(message("c"))
        await producer.send_batch([message("d"), message("e")], require="durable")
        await producer.send_batch([message("f")])
        await producer.send(message("g"), require="written")
        await asyncio.gather(producer.send(message("h")), producer.send(message("i"), require="written"))
        await asyncio.gather(producer.send(message("j"), require="durable"), producer.send(message("k"), require="written"))
        await producer.send_batch([message("l")], require="written")
        assert [(one.bodies, one.header.durable) for one in broker.seen] == [
            ([b"a", b"b"], True),
            ([b"c"], None),
            ([b"d", b"e"], True),
            ([b"f"], None),
            ([b"g"], False),
            ([b"h", b"i"], None),
            ([b"j", b"k"], True),
            ([b"l"], False),
        ]


async def test_durable_is_not_asked_of_a_broker_that_does_not_know_it() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        cluster.brokers["a"].features = ("records", "sequences", "layouts")
        async with producing(cluster) as producer:
            await producer.send(message())
            for send in (producer.send(message(), require="durable"), producer.send_batch([message()], require="durable")):
                with pytest.raises(RequestCodeNotSupported, match="lacks durable_sends"):
                    await send
            assert producer.in_flight_count == 0


# ------------------------------------------------------------------------------------------------------------- layouts and topics


async def test_a_stale_layout_is_refreshed_and_the_key_is_picked_again() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, ProducerConfig()) as producer:
        await producer.send(message("first"), sharding_key="k")
        layout = cluster.put(make_layout("t", "a", queues=8, counter=2))
        results = await producer.send_batch([message(str(n)) for n in range(20)], sharding_keys=[f"k{n}" for n in range(20)])
        assert [result.queue for result in results] == [queue_of_key(layout, f"k{n}") for n in range(20)]
        broker = cluster.brokers["a"]
        assert sorted(broker.stored) == sorted([b"first", *[b"%d" % n for n in range(20)]])
        assert {one.header.layout_counter for one in broker.seen[2:]} == {2}
        for seen in broker.seen[2:]:
            assert {one.queue_id for one in seen.messages} == {seen.header.queue_id}


async def test_a_batch_that_waited_for_the_in_flight_limit_is_sent_by_the_layout_of_then() -> None:
    config = ProducerConfig(in_flight_count_max=1)
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send(message("first"))
        held: list[Callable[[], None]] = []
        broker = cluster.brokers["a"]
        broker.script.append(answer_later(held))
        first = asyncio.ensure_future(producer.send(message("1")))
        await until(lambda: len(held) == 1)
        keys = [f"k{n}" for n in range(20)]
        batch = asyncio.ensure_future(producer.send_batch([message(key) for key in keys], sharding_keys=keys))
        await asyncio.sleep(0)
        layout = cluster.put(make_layout("t", "a", queues=8, counter=2))
        producer._topics.layout_changed(layout)
        held[0]()
        assert [result.queue for result in await batch] == [queue_of_key(layout, key) for key in keys]
        assert {one.header.layout_counter for one in broker.seen[2:]} == {2}, "none was hashed over the old one"
        await first


async def test_a_cancelled_batch_is_withdrawn_although_a_higher_layout_has_split_it() -> None:
    async with one_queue(ProducerConfig()) as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.extend([answer_later(held)] * 2)
        first = asyncio.ensure_future(producer.send(message("1"), sharding_key="k"))
        await until(lambda: len(held) == 1)
        layout = make_layout("t", "a", queues=2, counter=2)
        blocking = asyncio.ensure_future(producer.send(message("2"), queue=layout.write_queues[0]))
        batch = asyncio.ensure_future(producer.send_batch([message("withdrawn")] * 8, sharding_keys=[f"k{n}" for n in range(8)]))
        await asyncio.sleep(0)
        producer._topics.layout_changed(layout)
        assert [len(sender._batcher.keyed) for sender in producer._topics.open_ones["t"].senders] == [2, 1]
        batch.cancel()
        await asyncio.wait([batch])
        assert batch.cancelled()
        assert producer.in_flight_count == 2
        held[0]()
        await until(lambda: len(held) == 2)
        held[1]()
        await asyncio.gather(first, blocking)
        assert b"withdrawn" not in broker.stored
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_a_keyed_send_whose_topic_was_deleted_while_it_was_in_flight_is_told_so() -> None:
    async with one_queue() as (broker, producer):
        held: list[Callable[[], None]] = []

        def stale_later(broker: FakeBroker, seen: Seen) -> None:
            held.append(lambda: refuse(LayoutStale("newer"))(broker, seen))

        broker.script.append(stale_later)
        sending = asyncio.ensure_future(producer.send(message("1"), sharding_key="k"))
        await until(lambda: len(held) == 1)
        producer._topics.layout_changed(make_layout("t", counter=2))
        held[0]()
        with pytest.raises(TopicNotExist, match="was deleted"):
            await sending


async def test_a_batch_with_a_key_that_can_not_be_leaves_nothing_in_flight() -> None:
    async with one_queue() as (broker, producer):
        for keys in (["a", ""], ["a", "b\x01"], ["a"], ["a", 1]):
            with pytest.raises(LocalProtocolError, match="sharding_key"):
                await producer.send_batch([message("1"), message("2")], sharding_keys=keys)  # type: ignore[arg-type]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)
        await producer.send(message("2"))
        assert broker.stored == [b"first", b"2"]


async def test_unkeyed_sends_pass_while_keyed_ones_wait_for_the_higher_layout() -> None:
    async with one_queue(ProducerConfig(keyed_send_timeout_ms=300)) as (broker, producer):
        broker.script.extend([refuse(LayoutStale("newer"))])
        keyed = asyncio.ensure_future(producer.send(message("keyed"), sharding_key="k"))
        await until(lambda: len(broker.seen) == 2)
        assert (await producer.send(message("unkeyed"))).queue_offset == 1
        with pytest.raises(QueueUnavailable) as caught:
            await keyed
        assert caught.value.outcome is Outcome.NOT_STORED


async def test_a_missing_topic_is_created_where_the_brokers_allow_it() -> None:
    async with fake_cluster("a", "b") as cluster, producing(cluster, ProducerConfig(topic_queue_count=3)) as producer:
        for broker in cluster.brokers.values():
            broker.auto_create = True
        results = await sends(producer, [str(n) for n in range(12)])
        assert all(isinstance(result, SendResult) for result in results)
        first, second = (broker.layouts["t"] for broker in cluster.brokers.values())
        assert first == second
        assert len(first.write_queues) == 6


async def test_a_first_send_waits_for_brokers_that_register_late_and_names_what_it_waited_for() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, ProducerConfig(send_timeout_ms=300)) as producer:
        cluster.ready = False
        with pytest.raises(RouteNotReady, match="knows no broker yet"):
            await producer.send(Message("t", b"early"))
        sending = asyncio.ensure_future(producer.send(Message("t", b"in time")))
        asked = cluster.asked
        await until(lambda: cluster.asked > asked)
        cluster.ready = True
        assert (await sending).status is SendStatus.SEND_OK


async def test_a_missing_topic_names_the_next_step_where_they_do_not() -> None:
    async with fake_cluster("a") as cluster, producing(cluster) as producer:
        results = await sends(producer, ["1", "2"])
        assert all(isinstance(result, TopicNotExist) for result in results)
        with pytest.raises(TopicNotExist, match="create it"):
            await producer.send(message())
    async with fake_cluster("a") as cluster, producing(cluster, ProducerConfig(auto_create_topics=False)) as producer:
        with pytest.raises(TopicNotExist, match="lockstep topic create t"):
            await producer.send(message())


# --------------------------------------------------------------------------------------------------- back-pressure and cancelling


@pytest.mark.real_network
async def test_sends_beyond_the_in_flight_limit_wait_and_a_peer_that_does_not_read_costs_no_more_memory() -> None:
    limits = {"in_flight_count_max": 64, "in_flight_bytes_max": 512 * 1024}
    config = ProducerConfig(**limits, keyed_send_timeout_ms=20_000, attempt_timeout_ms=20, compress_over_bytes=None)
    async with one_queue(config) as (broker, producer):
        (topic,) = producer._topics.open_ones.values()
        link = topic.senders[0].link
        assert link is not None
        assert link.endpoint is not None
        for endpoint, option in ((link.endpoint, socket.SO_SNDBUF), (broker.endpoints[0], socket.SO_RCVBUF)):
            assert endpoint._transport is not None
            endpoint._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 65_536)
        broker.stop_reading()
        body = "x" * 100_000
        sending = [asyncio.ensure_future(producer.send(message(f"{n:03}{body}"), sharding_key="k")) for n in range(40)]
        await until(lambda: producer.in_flight_bytes >= 512 * 1024)
        unsent: list[int] = []
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert producer.in_flight_bytes <= 512 * 1024 + 101_000
            unsent.append(link.endpoint.unsent_bytes)
        assert 0 < max(unsent) < 2 * config.batch_bytes_max, "a frame that can't leave is not written again and again"
        assert not any(one.done() for one in sending)
        broker.go_on_reading()
        results = await asyncio.gather(*sending)
        assert [result.queue_offset for result in results] == list(range(1, 41))
        assert [stored[:3] for stored in broker.stored[1:]] == [b"%03d" % n for n in range(40)]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_a_cancelled_send_is_withdrawn_while_it_waits() -> None:
    async with one_queue() as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.append(answer_later(held))
        first = asyncio.ensure_future(producer.send(message("1")))
        await until(lambda: len(held) == 1)
        second = asyncio.ensure_future(producer.send(message("withdrawn")))
        third = asyncio.ensure_future(producer.send(message("3")))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert second.cancelled()
        held[0]()
        await asyncio.gather(first, third)
        assert broker.stored == [b"first", b"1", b"3"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_a_send_that_is_cancelled_once_written_may_be_stored_and_the_next_one_goes_on() -> None:
    async with one_queue() as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.append(answer_later(held))
        first = asyncio.ensure_future(producer.send(message("1")))
        await until(lambda: len(held) == 1)
        first.cancel()
        await asyncio.wait([first])
        assert producer.in_flight_count == 1
        second = asyncio.ensure_future(producer.send(message("2")))
        held[0]()
        assert (await second).queue_offset == 2
        assert broker.stored == [b"first", b"1", b"2"]
        assert producer.in_flight_count == 0


async def test_a_cancelled_wait_for_the_in_flight_limit_leaves_nothing_behind() -> None:
    async with one_queue(ProducerConfig(in_flight_count_max=1)) as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.append(answer_later(held))
        first = asyncio.ensure_future(producer.send(message("1")))
        await until(lambda: len(held) == 1)
        waiting = [asyncio.ensure_future(producer.send(message(name))) for name in ("gone", "2")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        held[0]()
        await first
        await waiting[1]
        assert broker.stored == [b"first", b"1", b"2"]
        assert producer.in_flight_count == 0


async def test_a_topic_that_was_deleted_is_told_of_long_before_the_deadline() -> None:
    """The broker refuses, the nameserver says that the layout is over: neither the refused send nor those behind it wait any longer."""
    options = ProducerConfig(keyed_send_timeout_ms=20_000)
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, options) as producer:
        await producer.send(message("1"), sharding_key="k")
        broker = cluster.brokers["a"]
        cluster.put(make_layout("t", counter=2))
        broker.script.extend([refuse(TopicNotExist("there is no topic t"))] * 1_000)
        refused = await sends(producer, ["2", "3"], sharding_key="k")
        assert [type(error) for error in refused] == [TopicNotExist, TopicNotExist]
        assert all("was deleted" in str(error) for error in refused)
        assert producer.in_flight_count == 0
        with pytest.raises(TopicNotExist):
            await producer.send(message("4"), sharding_key="k")
        broker.script.clear()
        cluster.put(make_layout("t", "a", queues=1, counter=3))
        await producer.send(message("5"), sharding_key="k")
        assert broker.stored == [b"1", b"5"]


async def test_what_is_sent_to_a_topic_that_was_away_is_no_repeat_of_what_was_sent_before() -> None:
    """Its queues' sequences begin at 0 again: a broker that remembers those of before must not take them for repeats."""
    async with fake_cluster("a", topics={"t": 1}) as cluster, Producer("g", nameserver=cluster.address) as producer:
        await producer.send(Message("t", b"before"))
        closed = TopicLayout("t", LayoutVersion(2, 7), (LayoutEntry("a", 0, 1, 1),))
        for layout in (closed, make_layout("t", "a", queues=1, counter=3)):
            cluster.put(layout)
            assert producer._shared is not None
            await producer._shared.instance.route("t", refresh=True)
            if layout is closed:
                with pytest.raises(TopicNotExist, match="no writable queue"):
                    await producer.send(Message("t", b"meanwhile"))
        await producer.send(Message("t", b"after"))
        assert cluster.brokers["a"].stored == [b"before", b"after"]


# --------------------------------------------------------------------------------------------------------- an older broker


async def test_a_broker_that_lacks_what_sends_need_is_named_and_nothing_is_written() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster:
        cluster.brokers["b"].features = ("records", "layouts")
        async with Producer("g", nameserver=cluster.address) as producer:
            with pytest.raises(RequestCodeNotSupported, match=r"broker b lacks sequences \(it has: records, layouts\); use a newer broker"):
                await producer.send(Message("t", b"waits for the connections"), sharding_key="k")
            with pytest.raises(RequestCodeNotSupported, match="broker b lacks sequences"):
                await producer.send(Message("t", b"they are there"))
            assert producer.in_flight_count == 0
        assert cluster.brokers["b"].seen == []


async def test_a_broker_that_comes_back_older_or_newer_is_judged_anew() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        broker = cluster.brokers["a"]
        async with Producer("g", nameserver=cluster.address) as producer:
            await producer.send(Message("t", b"1"))
            for features in (("records",), ("records", "sequences", "layouts", "more")):
                port = int(broker.address.rpartition(":")[2])
                await stop_and_be_noticed(broker, producer)
                broker.features = features
                waiting = asyncio.ensure_future(producer.send(Message("t", b"2"), sharding_key="k"))
                await asyncio.sleep(0)
                await broker.start(port)
                if features == ("records",):
                    with pytest.raises(RequestCodeNotSupported, match="lacks sequences, layouts"):
                        await waiting
                else:
                    await waiting
        assert broker.stored == [b"1", b"2"]

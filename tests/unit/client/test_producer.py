"""A producer against scripted brokers that respond, refuse, lose responses and stop responding."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.client import LocalProtocolError, MessageQueue, Producer, SendStatus, StateError, TransportError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.routing import queue_of_key
from lockstep.protocol.messages.properties import SHARDING_KEY
from support.fake_broker import fake_cluster, respond_later
from support.loops import turns, until
from support.producing import held_send, keyed, message, one_queue, producing, send, sends

pytestmark = pytest.mark.simulated

TURNS = 5
"""Loop turns after which a frame that may leave has left."""


@pytest.mark.both_loops
async def test_send_returns_the_queue_and_offset_of_its_message() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        first = await producer.send(message("1"))
        second = await producer.send(message("2"))
        assert (first.status, first.queue, first.queue_offset) == (SendStatus.SEND_OK, MessageQueue("t", "a", 0), 0)
        assert second.queue_offset == 1
        assert first.message_id != second.message_id
        seen = cluster.brokers["a"].sends
        assert [one.bodies for one in seen] == [[b"1"], [b"2"]]
        assert seen[0].messages[0].message_id == first.message_id


async def test_unkeyed_sends_use_all_queues_of_all_live_brokers_round_robin() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        await producer.send(message())
        await until(lambda: len(cluster.brokers["a"].heartbeats) + len(cluster.brokers["b"].heartbeats) == 2)
        results = [await producer.send(message()) for _ in range(8)]
        assert sorted((result.queue.broker_name, result.queue.queue_id) for result in results) == sorted(
            [("a", 0), ("a", 1), ("b", 0), ("b", 1)] * 2
        )


async def test_sends_during_a_frame_in_flight_are_combined_into_one_frame() -> None:
    async with one_queue() as (broker, producer):
        held, respond = await held_send(broker, producer, "0")
        waiting = [held]
        for first in (1, 5):
            waiting += [send(producer, str(n)) for n in range(first, first + 4)]
            await turns(TURNS)  # a frame leaves at the end of a loop turn: each four would be one of their own
        respond()
        results = await asyncio.gather(*waiting)
        assert broker.sends[2].bodies == [b"%d" % n for n in range(1, 9)]
        assert [result.queue_offset for result in results] == list(range(1, 10))
        assert [one.place for one in broker.sends] == [(0, 0), (0, 1), (0, 2)]


async def test_frame_is_limited_by_batch_count_max() -> None:
    config = ProducerConfig(batch_count_max=3, attempt_timeout_ms=1_000)
    async with one_queue(config) as (broker, producer):
        await sends(producer, [str(n) for n in range(8)])
        assert [len(one.bodies) for one in broker.sends[1:]] == [3, 3, 2]


async def test_keyed_send_goes_to_the_queue_of_its_key_and_carries_key_and_layout() -> None:
    async with fake_cluster("a", "b", topics={"t": 3}) as cluster, producing(cluster) as producer:
        layout = cluster.layouts["t"]
        for key in ("1001", "1002", "ключ", "z"):
            result = await producer.send(message(sharding_key=key))
            assert result.queue == queue_of_key(layout, key)
            seen = cluster.brokers[result.queue.broker_name].sends[-1]
            assert (seen.header.layout_counter, seen.header.layout_writer) == (1, 7)
            assert seen.messages[0].all_properties[SHARDING_KEY] == key


async def test_selector_gets_all_queues_and_an_explicit_queue_is_used_unchanged() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        result = await producer.send(message(), selector=lambda queues, message: queues[7 % len(queues)])
        assert result.queue == cluster.layouts["t"].write_queues[3]
        again = await producer.send(message(), queue=result.queue)
        assert again.queue == result.queue
        assert cluster.brokers["b"].sends[-1].header.layout_counter is None


async def test_unkeyed_batch_is_one_frame_in_one_queue_in_order() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        results = await producer.send_batch([message(str(n)) for n in range(50)])
        assert {result.queue for result in results} == {results[0].queue}
        assert [result.queue_offset for result in results] == list(range(50))
        (seen,) = cluster.brokers[results[0].queue.broker_name].sends
        assert seen.bodies == [b"%d" % n for n in range(50)]
        assert [one.message_id for one in seen.messages] == [result.message_id for result in results]
        assert await producer.send_batch([]) == []


async def test_keyed_batch_is_one_frame_per_queue_with_results_in_message_order() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        keys = [f"k{n % 7}" for n in range(40)]
        results = await producer.send_batch(keyed(map(str, range(40)), keys))
        assert [result.queue for result in results] == [queue_of_key(cluster.layouts["t"], key) for key in keys]
        for broker in cluster.brokers.values():
            assert len(broker.sends) == len({one.header.queue_id for one in broker.sends})
            for seen in broker.sends:
                for key in set(keys):
                    bodies = [int(one.body) for one in seen.messages if one.sharding_key == key]
                    assert bodies == sorted(bodies)


async def test_batch_of_several_topics_and_frames_has_results_in_message_order() -> None:
    config = ProducerConfig(batch_count_max=4)
    async with fake_cluster("a", topics={"t": 1, "u": 1}) as cluster, producing(cluster, config) as producer:
        results = await producer.send_batch([message(str(n), "tu"[n % 2]) for n in range(20)])
        assert [result.queue.topic for result in results] == ["t", "u"] * 10
        assert [result.queue_offset for result in results] == [n // 2 for n in range(20)]


async def test_oneway_sends_carry_no_sequence_and_get_no_response() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send_oneway(message("1"))
        await producer.send_oneway(message("2", sharding_key="k"))
        broker = cluster.brokers["a"]
        await until(lambda: sum(len(one.bodies) for one in broker.oneways) == 2)
        assert all(one.header.producer_id is None for one in broker.oneways)
        assert {one.header.layout_counter for one in broker.oneways} == {None, 1}


async def test_send_before_start_or_after_close_and_a_start_while_it_runs_raise() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        producer = Producer("orders", nameserver=cluster.nameserver)
        assert repr(Producer("p")) == "<Producer p new>"
        with pytest.raises(StateError, match="not started"):
            await producer.send(message())
        async with producer:
            with pytest.raises(StateError, match="is running already"):
                await producer.start()
        with pytest.raises(StateError, match="closed"):
            await producer.send(message())
        await producer.close()


async def test_closing_a_producer_waits_for_sends_in_flight() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        async with producing(cluster, ProducerConfig()) as producer:
            sending, respond = await held_send(cluster.brokers["a"], producer, "1")
            asyncio.get_running_loop().call_soon(respond)
        assert sending.done()
        assert (await sending).queue_offset == 0


async def test_error_for_unreachable_nameservers_names_them() -> None:
    with pytest.raises(TransportError, match=r"no nameserver can be reached: 127\.0\.0\.1:1: "):
        await Producer("orders", nameserver="127.0.0.1:1").start()


async def test_batch_may_mix_messages_with_and_without_a_sharding_key() -> None:
    async with fake_cluster("a", "b", topics={"t": 2, "u": 2}) as cluster, producing(cluster) as producer:
        keys = ["k1", None, "k2", None, "k1"]
        messages = [message(str(number), topic, key) for topic in "tu" for number, key in enumerate(keys)]
        results = await producer.send_batch(messages)
        by_key: dict[tuple[str, str | None], set[MessageQueue]] = {}
        for sent, result in zip(messages, results, strict=True):
            by_key.setdefault((sent.topic, sent.sharding_key), set()).add(result.queue)
        for (topic, key), queues in by_key.items():
            assert len(queues) == 1
            if key is not None:
                assert queues == {queue_of_key(cluster.layouts[topic], key)}
        stored = {(seen.header.topic, body) for broker in cluster.brokers.values() for seen in broker.sends for body in seen.bodies}
        assert stored == {(sent.topic, sent.body) for sent in messages}


async def test_batch_with_a_keyed_message_has_the_deadline_of_keyed_sends() -> None:
    config = ProducerConfig(send_timeout_ms=300, keyed_send_timeout_ms=5_000, attempt_timeout_ms=5_000)
    async with one_queue(config) as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.extend([respond_later(held)] * 2)
        sending = asyncio.ensure_future(producer.send_batch([message("1"), message("2", sharding_key="k")]))
        await until(lambda: len(held) == 1)
        await asyncio.sleep(1)
        held[0]()
        await until(lambda: len(held) == 2)
        held[1]()
        assert len(await sending) == 2


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"key": "k", "queue": MessageQueue("t", "a", 0)}, "give one of them"),
        ({"key": "k", "selector": lambda queues, message: queues[0]}, "give one of them"),
        ({"queue": MessageQueue("u", "a", 0)}, "the message's topic is t"),
        ({"queue": MessageQueue("t", "a", 9)}, "not one of the 1 writable queues"),
        ({"selector": lambda queues, message: None}, "the selector returned None"),
    ],
)
@pytest.mark.parametrize("way", ["send", "send_batch", "send_oneway"])
async def test_invalid_send_arguments_are_rejected_and_nothing_remains_in_flight(way: str, how: dict[str, Any], what: str) -> None:
    async with one_queue() as (broker, producer):
        sent = message(sharding_key=how.get("key"))
        options = {name: value for name, value in how.items() if name != "key"}
        with pytest.raises(LocalProtocolError, match=what):
            await getattr(producer, way)([sent] if way == "send_batch" else sent, **options)
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)
        assert len(broker.sends) == 1


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        (message(), "not a Message: use send"),
        ((message() for _ in range(2)), "takes a list of messages, not a generator"),
        ([message(), b"x"], "one of them is a bytes"),
    ],
    ids=["a message", "a generator", "bytes"],
)
async def test_batch_that_is_not_a_list_of_messages_is_rejected(messages: object, what: str) -> None:
    async with one_queue() as (broker, producer):
        with pytest.raises(LocalProtocolError, match=what):
            await producer.send_batch(messages)  # type: ignore[arg-type]
        assert producer.in_flight_count == 0
        assert len(broker.sends) == 1

"""Producers during layout changes, creation and deletion of topics, and with brokers of other versions."""

import asyncio
from collections.abc import Callable

import pytest

from lockstep.client import Message, Outcome, QueueUnavailableError, SendResult, SendStatus, SendTimeoutError, TopicNotExistError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.routing import queue_of_key
from lockstep.protocol.errors import LayoutStaleError
from support.fake_broker import FakeBroker, Sent, fake_cluster, make_layout, refuse, respond_later
from support.loops import until
from support.producing import held_send, ignored, keyed, message, one_queue, producing, send, sends, stop_and_wait_for_link_down

pytestmark = pytest.mark.simulated


# ----------------------------------------------------------------------------------------------------------------------- layouts and topics


async def test_stale_layout_is_refreshed_and_the_queue_of_each_key_is_chosen_again() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, ProducerConfig()) as producer:
        await producer.send(message("first", sharding_key="k"))
        layout = cluster.put(make_layout("t", "a", queues=8, counter=2))
        results = await producer.send_batch([message(str(n), sharding_key=f"k{n}") for n in range(20)])
        assert [result.queue for result in results] == [queue_of_key(layout, f"k{n}") for n in range(20)]
        broker = cluster.brokers["a"]
        assert sorted(broker.stored) == sorted([b"first", *[b"%d" % n for n in range(20)]])
        assert {one.header.layout_counter for one in broker.sends[2:]} == {2}
        for seen in broker.sends[2:]:
            assert {one.queue_id for one in seen.messages} == {seen.header.queue_id}


async def test_batch_that_waited_for_the_in_flight_limit_uses_the_current_layout() -> None:
    config = ProducerConfig(in_flight_count_max=1)
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send(message("first"))
        broker = cluster.brokers["a"]
        first, respond = await held_send(broker, producer, "1")
        keys = [f"k{n}" for n in range(20)]
        batch = asyncio.ensure_future(producer.send_batch(keyed(keys, keys)))
        await asyncio.sleep(0)
        layout = cluster.put(make_layout("t", "a", queues=8, counter=2))
        producer._topics.layout_changed(layout)
        respond()
        assert [result.queue for result in await batch] == [queue_of_key(layout, key) for key in keys]
        assert {one.header.layout_counter for one in broker.sends[2:]} == {2}, "none was hashed over the old one"
        await first


async def test_cancelled_batch_is_withdrawn_even_if_a_higher_layout_has_split_it() -> None:
    async with one_queue(ProducerConfig()) as (broker, producer):
        first, respond = await held_send(broker, producer, "1", "k")
        layout = make_layout("t", "a", queues=2, counter=2)
        blocking = asyncio.ensure_future(producer.send(message("2"), queue=layout.write_queues[0]))
        batch = asyncio.ensure_future(producer.send_batch([message("withdrawn", sharding_key=f"k{n}") for n in range(8)]))
        await asyncio.sleep(0)
        producer._topics.layout_changed(layout)
        senders = [producer._topics.open_topics["t"].of_queue(queue) for queue in layout.write_queues]
        assert [len(sender._buffer.keyed) for sender in senders if sender is not None] == [2, 1]
        batch.cancel()
        await asyncio.wait([batch])
        assert batch.cancelled()
        assert producer.in_flight_count == 2
        respond()
        await asyncio.gather(first, blocking)
        assert b"withdrawn" not in broker.stored
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_keyed_send_in_flight_fails_if_its_topic_was_deleted() -> None:
    async with one_queue() as (broker, producer):
        sending, respond = await held_send(broker, producer, "1", "k", then=refuse(LayoutStaleError("newer")))
        producer._topics.layout_changed(make_layout("t", counter=2))
        respond()
        with pytest.raises(TopicNotExistError, match="was deleted"):
            await sending


@pytest.mark.parametrize("learnt_first", [True, False])
@pytest.mark.parametrize("key", ["k", None])
async def test_send_refused_because_its_topic_was_deleted_fails_immediately(learnt_first: bool, key: str | None) -> None:
    """A producer that knows of the deletion has no reason to wait until the deadline."""
    async with one_queue() as (broker, producer):
        sending, respond = await held_send(broker, producer, "1", key, then=refuse(TopicNotExistError("t is not here")))
        begun_s = asyncio.get_running_loop().time()
        steps = [lambda: producer._topics.layout_changed(make_layout("t", counter=2)), respond]
        for step in steps if learnt_first else reversed(steps):
            step()
            await asyncio.sleep(0.005)
        with pytest.raises(TopicNotExistError, match="was deleted"):
            await sending
        assert asyncio.get_running_loop().time() - begun_s < 1
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


@pytest.mark.parametrize("key", ["k", None])
async def test_send_waiting_for_the_in_flight_limit_fails_when_its_topic_is_deleted(key: str | None) -> None:
    async with one_queue(ProducerConfig(in_flight_count_max=1)) as (broker, producer):
        held: list[Callable[[], None]] = []
        broker.script.extend([respond_later(held)] * 2)
        first = asyncio.ensure_future(producer.send(message("1", sharding_key=key)))
        await until(lambda: len(held) == 1)
        second = asyncio.ensure_future(producer.send(message("2", sharding_key=key)))
        await asyncio.sleep(0.005)
        begun_s = asyncio.get_running_loop().time()
        producer._topics.layout_changed(make_layout("t", counter=2))
        await until(lambda: len(held) == 2)
        assert not first.done(), "it was written again, and its responses are pending"
        held[0]()
        assert (await first).status is SendStatus.SEND_OK
        with pytest.raises(TopicNotExistError, match="was deleted"):
            await second
        assert asyncio.get_running_loop().time() - begun_s < 2.5
        assert broker.stored == [b"first", b"1"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_send_waiting_for_its_broker_fails_when_its_topic_is_deleted() -> None:
    async with one_queue(ProducerConfig()) as (broker, producer):
        await stop_and_wait_for_link_down(broker, producer)
        sending = send(producer, "1", "k")
        await asyncio.sleep(3)
        begun_s = asyncio.get_running_loop().time()
        producer._topics.layout_changed(make_layout("t", counter=2))
        with pytest.raises(TopicNotExistError, match="was deleted"):
            await sending
        assert asyncio.get_running_loop().time() == begun_s


async def test_send_of_unknown_state_ends_as_unknown_when_its_topic_is_deleted() -> None:
    async with one_queue(ProducerConfig()) as (broker, producer):
        sending = await ignored(broker, send(producer, "1", "k"))
        await stop_and_wait_for_link_down(broker, producer)
        begun_s = asyncio.get_running_loop().time()
        producer._topics.layout_changed(make_layout("t", counter=2))
        with pytest.raises(QueueUnavailableError, match="its topic was deleted") as caught:
            await sending
        assert caught.value.outcome is Outcome.UNKNOWN
        assert asyncio.get_running_loop().time() - begun_s < 1


async def test_unkeyed_sends_proceed_while_keyed_sends_wait_for_the_higher_layout() -> None:
    async with one_queue(ProducerConfig(keyed_send_timeout_ms=300)) as (broker, producer):
        broker.script.extend([refuse(LayoutStaleError("newer"))])
        keyed = asyncio.ensure_future(producer.send(message("keyed", sharding_key="k")))
        await until(lambda: len(broker.sends) == 2)
        assert (await producer.send(message("unkeyed"))).queue_offset == 1
        with pytest.raises(QueueUnavailableError) as caught:
            await keyed
        assert caught.value.outcome is Outcome.NOT_STORED
        assert "LAYOUT_STALE: newer" in str(caught.value)


async def test_nameservers_are_polled_every_second_while_keyed_sends_wait_for_the_higher_layout() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, ProducerConfig()) as producer:
        await producer.send(message("first"))
        requested = cluster.requested
        cluster.brokers["a"].script.append(refuse(LayoutStaleError("newer")))
        sending = asyncio.ensure_future(producer.send(message("1", sharding_key="k")))
        await until(lambda: cluster.requested >= requested + 3)
        layout = cluster.put(make_layout("t", "a", queues=2, counter=2))
        result = await sending
        assert result.queue == queue_of_key(layout, "k")
        assert cluster.brokers["a"].sends[-1].header.layout_counter == 2


async def test_keyed_send_is_resent_unchanged_if_the_higher_layout_was_lost() -> None:
    """The layout because of which the send was refused was only on a wiped disk. No nameserver knows it, so it never returns."""
    async with one_queue(ProducerConfig()) as (broker, producer):
        broker.script.append(refuse(LayoutStaleError("newer")))
        begun_s = asyncio.get_running_loop().time()
        result = await producer.send(message("1", sharding_key="k"))
        assert result.status is SendStatus.SEND_OK
        assert asyncio.get_running_loop().time() - begun_s < 10
        assert broker.stored == [b"first", b"1"]


async def test_keyed_send_waiting_for_the_higher_layout_ends_at_its_deadline_despite_other_sends() -> None:
    """It is not written after the deadline, because then its outcome would be unknown."""

    def stale_or_slow(broker: FakeBroker, seen: Sent) -> None:
        if seen.header.layout_counter is None:
            asyncio.get_running_loop().call_later(0.02, broker.take, seen)
        else:
            refuse(LayoutStaleError("newer"))(broker, seen)

    async with one_queue(ProducerConfig()) as (broker, producer):
        broker.otherwise = stale_or_slow
        loop, waiting = asyncio.get_running_loop(), True

        async def send_on() -> None:
            while waiting:
                await producer.send(message("unkeyed"))

        others = [asyncio.ensure_future(send_on()) for _ in range(4)]
        begun_s = loop.time()
        with pytest.raises(QueueUnavailableError) as caught:
            await producer.send(message("1", sharding_key="k"), timeout_ms=2_000)
        ended_s = loop.time()
        waiting = False
        await asyncio.gather(*others)
        assert caught.value.outcome is Outcome.NOT_STORED
        assert ended_s - begun_s < 2.1
        assert [seen.bodies for seen in broker.sends].count([b"1"]) == 1


@pytest.mark.parametrize("repeated", [False, True])
async def test_sends_refused_for_a_newer_layout_are_resent_before_later_sends(repeated: bool) -> None:
    async with one_queue(ProducerConfig()) as (broker, producer):
        held: list[Callable[[], None]] = []
        stale = refuse(LayoutStaleError("newer"))
        broker.script.extend([stale, respond_later(held, stale)] if repeated else [respond_later(held, stale)])
        first = asyncio.ensure_future(sends(producer, ["1", "2", "3"], sharding_key="k"))
        await until(lambda: len(held) == 1)
        second = asyncio.ensure_future(sends(producer, ["4", "5"], sharding_key="k"))
        await until(lambda: producer.in_flight_count == 5)
        producer._topics.layout_changed(make_layout("t", "a", queues=1, counter=2))
        held[0]()
        await asyncio.gather(first, second)
        assert broker.stored == [b"first", b"1", b"2", b"3", b"4", b"5"]


async def test_missing_topic_is_created_if_the_brokers_allow_it() -> None:
    async with fake_cluster("a", "b") as cluster, producing(cluster, ProducerConfig(topic_queue_count=3)) as producer:
        for broker in cluster.brokers.values():
            broker.auto_create = True
        results = await sends(producer, [str(n) for n in range(12)])
        assert all(isinstance(result, SendResult) for result in results)
        first, second = (broker.layouts["t"] for broker in cluster.brokers.values())
        assert first == second
        assert len(first.write_queues) == 6


async def test_first_send_waits_for_brokers_to_register_and_its_error_states_the_reason() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, ProducerConfig(send_timeout_ms=300)) as producer:
        cluster.ready = False
        with pytest.raises(SendTimeoutError, match=r"knows no broker yet.*not stored"):
            await producer.send(Message("t", b"early"))
        sending = asyncio.ensure_future(producer.send(Message("t", b"in time")))
        requested = cluster.requested
        await until(lambda: cluster.requested > requested)
        cluster.ready = True
        assert (await sending).status is SendStatus.SEND_OK


async def test_error_for_a_missing_topic_states_the_next_step() -> None:
    async with fake_cluster("a") as cluster, producing(cluster) as producer:
        results = await sends(producer, ["1", "2"])
        assert all(isinstance(result, TopicNotExistError) for result in results)
        with pytest.raises(TopicNotExistError, match="create it"):
            await producer.send(message())
    async with fake_cluster("a") as cluster, producing(cluster, ProducerConfig(auto_create_topics=False)) as producer:
        with pytest.raises(TopicNotExistError, match="lockstep topic create t"):
            await producer.send(message())

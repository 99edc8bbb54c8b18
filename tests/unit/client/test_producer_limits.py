"""The in-flight limit, and sends that are cancelled."""

import asyncio
import socket

import pytest

from lockstep.client import Message, Producer, TopicNotExistError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.routing import Route, queue_of_key
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.fake_broker import fake_cluster, make_layout, refuse
from support.loops import until
from support.producing import held_send, message, one_queue, producing, send, sends

pytestmark = pytest.mark.simulated


@pytest.mark.real_network
async def test_sends_beyond_the_in_flight_limit_wait_and_a_peer_that_does_not_read_does_not_grow_the_buffer() -> None:
    limits = {"in_flight_count_max": 64, "in_flight_bytes_max": 512 * 1024}
    config = ProducerConfig(**limits, keyed_send_timeout_ms=20_000, attempt_timeout_ms=20, compress_over_bytes=None)
    async with one_queue(config) as (broker, producer):
        (topic,) = producer._topics.open_topics.values()
        assert producer._shell is not None
        link = producer._shell.instance.link(topic.machine_for(Route(("k",), queue_of_key), 0).queue.broker_name)
        assert link is not None
        assert link.endpoint is not None
        for endpoint, option in ((link.endpoint, socket.SO_SNDBUF), (broker.endpoints[0], socket.SO_RCVBUF)):
            assert endpoint._transport is not None
            endpoint._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, 65_536)
        broker.stop_reading()
        body = "x" * 100_000
        sending = [asyncio.ensure_future(producer.send(message(f"{n:03}{body}", sharding_key="k"))) for n in range(40)]
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


async def test_cancelled_pending_send_is_withdrawn() -> None:
    async with one_queue() as (broker, producer):
        first, respond = await held_send(broker, producer, "1")
        second, third = send(producer, "withdrawn"), send(producer, "3")
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert second.cancelled()
        respond()
        await asyncio.gather(first, third)
        assert broker.stored == [b"first", b"1", b"3"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_send_cancelled_in_flight_may_be_stored_and_does_not_block_the_next() -> None:
    async with one_queue() as (broker, producer):
        first, respond = await held_send(broker, producer, "1")
        first.cancel()
        await asyncio.wait([first])
        assert producer.in_flight_count == 1
        second = asyncio.ensure_future(producer.send(message("2")))
        respond()
        assert (await second).queue_offset == 2
        assert broker.stored == [b"first", b"1", b"2"]
        assert producer.in_flight_count == 0


async def test_send_cancelled_while_waiting_for_the_in_flight_limit_leaks_no_slot() -> None:
    async with one_queue(ProducerConfig(in_flight_count_max=1)) as (broker, producer):
        first, respond = await held_send(broker, producer, "1")
        waiting = [asyncio.ensure_future(producer.send(message(name))) for name in ("gone", "2")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        respond()
        await first
        await waiting[1]
        assert broker.stored == [b"first", b"1", b"2"]
        assert producer.in_flight_count == 0


async def test_sends_to_a_deleted_topic_fail_before_their_deadline() -> None:
    """The broker refuses and the nameserver reports the deletion, so neither the refused send nor later ones wait for their deadline."""
    options = ProducerConfig(keyed_send_timeout_ms=20_000)
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, options) as producer:
        await producer.send(message("1", sharding_key="k"))
        broker = cluster.brokers["a"]
        cluster.put(make_layout("t", counter=2))
        broker.script.extend([refuse(TopicNotExistError("there is no topic t"))] * 1_000)
        refused = await sends(producer, ["2", "3"], sharding_key="k")
        assert [type(error) for error in refused] == [TopicNotExistError, TopicNotExistError]
        assert all("was deleted" in str(error) for error in refused)
        assert producer.in_flight_count == 0
        with pytest.raises(TopicNotExistError):
            await producer.send(message("4", sharding_key="k"))
        broker.script.clear()
        cluster.put(make_layout("t", "a", queues=1, counter=3))
        await producer.send(message("5", sharding_key="k"))
        assert broker.stored == [b"1", b"5"]


async def test_send_to_a_recreated_topic_is_not_taken_for_a_duplicate() -> None:
    """The sequences of its queues start at 0 again. A broker that remembers the earlier ones must not treat the sends as duplicates."""
    async with fake_cluster("a", topics={"t": 1}) as cluster, Producer("g", nameserver=cluster.nameserver) as producer:
        await producer.send(Message("t", b"before"))
        closed = TopicLayout("t", LayoutVersion(2, 7), (LayoutEntry("a", 0, 1, 1),))
        for layout in (closed, make_layout("t", "a", queues=1, counter=3)):
            cluster.put(layout)
            assert producer._shell is not None
            await producer._shell.instance.watch.route("t", refresh=True)
            if layout is closed:
                with pytest.raises(TopicNotExistError, match="no writable queue"):
                    await producer.send(Message("t", b"meanwhile"))
        await producer.send(Message("t", b"after"))
        assert cluster.brokers["a"].stored == [b"before", b"after"]

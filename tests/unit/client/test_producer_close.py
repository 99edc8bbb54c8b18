"""The end of a producer: each send ends, and what is in flight goes on until then."""

import asyncio

import pytest

from lockstep.client import Message, Producer, StateError
from support.fake_broker import fake_cluster
from support.producing import message, stop_and_be_noticed

pytestmark = pytest.mark.simulated


async def test_a_send_that_opens_its_topic_in_the_turn_of_the_close_fails_as_closed() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        producer = Producer("g", nameserver=cluster.address)
        await producer.start()
        sending = asyncio.ensure_future(producer.send(Message("t", b"x")))
        closing = asyncio.ensure_future(producer.close())
        await asyncio.wait([sending, closing], timeout=60)
        assert closing.done()
        assert isinstance(sending.exception(), StateError)


async def test_a_send_that_waits_for_its_broker_while_the_producer_closes_is_stored_when_the_broker_is_back() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        broker = cluster.brokers["a"]
        producer = Producer("g", nameserver=cluster.address)
        await producer.start()
        await producer.send(message("1", sharding_key="k"))
        port = int(broker.address.rpartition(":")[2])
        await stop_and_be_noticed(broker, producer)
        sending = asyncio.ensure_future(producer.send(message("2", sharding_key="k")))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        await broker.start(port)
        assert (await sending).queue_offset == 1
        await closing

"""Closing a producer: each send ends, and sends in flight continue until then."""

import asyncio

import pytest

from lockstep.client import Client, Message, Outcome, Producer, SendError, StateError, TopicNotExistError
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from support.fake_broker import fake_cluster, ignore
from support.loops import until
from support.producing import message, stop_and_wait_for_link_down

pytestmark = pytest.mark.simulated


async def test_send_that_opens_its_topic_during_close_fails_as_closed() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        producer = Producer("g", nameserver=cluster.nameserver)
        await producer.start()
        sending = asyncio.ensure_future(producer.send(Message("t", b"x")))
        closing = asyncio.ensure_future(producer.close())
        await asyncio.wait([sending, closing], timeout=60)
        assert closing.done()
        assert isinstance(sending.exception(), StateError)


async def test_pending_send_during_close_is_stored_when_its_broker_returns() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        broker = cluster.brokers["a"]
        producer = Producer("g", nameserver=cluster.nameserver)
        await producer.start()
        await producer.send(message("1", sharding_key="k"))
        port = int(broker.address.rpartition(":")[2])
        await stop_and_wait_for_link_down(broker, producer)
        sending = asyncio.ensure_future(producer.send(message("2", sharding_key="k")))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        await broker.start(port)
        assert (await sending).queue_offset == 1
        await closing


@pytest.mark.parametrize("deleted", [False, True])
async def test_cancelled_close_ends_every_send(deleted: bool) -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        broker = cluster.brokers["a"]
        producer = Producer("g", nameserver=cluster.nameserver, in_flight_count_max=4, batch_count_max=1)
        await producer.start()
        await producer.send(message("1", sharding_key="k"))
        broker.script += [ignore] * 9
        sent = [asyncio.ensure_future(producer.send(message("2", sharding_key=key))) for key in "kkjkj"]
        sent.append(asyncio.ensure_future(producer.send(message("3"))))
        batch = asyncio.ensure_future(producer.send_batch([message("4"), message("5", sharding_key="k")]))
        await until(lambda: len(broker.sends) == 2)
        if deleted:
            assert producer._topics is not None
            producer._topics.layout_changed(TopicLayout("t", LayoutVersion(2, 7), ()))
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([*sent, batch, closing], timeout=60)
        assert closing.cancelled()
        errors = [task.exception() for task in sent]
        assert all(isinstance(error, SendError | StateError | TopicNotExistError) for error in errors), errors
        assert [error.outcome for error in errors if isinstance(error, SendError)].count(Outcome.UNKNOWN) == 1, "one was written"
        assert batch.exception() is not None
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


@pytest.mark.parametrize("again", ["start", "close"])
async def test_start_or_close_during_a_start_leaves_no_connection(again: str) -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        client = Client(cluster.nameserver)
        producer = Producer("g", client=client)
        starting = asyncio.ensure_future(producer.start())
        await asyncio.sleep(0)
        if again == "start":
            with pytest.raises(StateError, match="is starting already"):
                await producer.start()
            await starting
            await producer.send(message("1"))
        await producer.close()
        if again == "close":
            with pytest.raises(StateError, match="closed while it was started"):
                await starting
        assert [instance.closing for instance in client._instances] == [True]

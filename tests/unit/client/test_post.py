"""`post` returns the future of a send: order, back-pressure, errors, cancellation and hooks as with `send`."""

import asyncio
from typing import Any

import pytest

from lockstep.client import LocalProtocolError, MessageIllegalError, StateError, TopicNotExistError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.hooks import Sending
from support.fake_broker import fake_cluster, ignore, refuse
from support.loops import until
from support.producing import QUICK, message, one_queue, producing

pytestmark = pytest.mark.simulated


async def test_post_returns_before_the_broker_responds_and_creates_no_task() -> None:
    async with one_queue() as (_, producer):
        tasks = len(asyncio.all_tasks())
        futures = [await producer.post(message(str(n))) for n in range(100)]
        assert len(asyncio.all_tasks()) == tasks
        assert not any(future.done() for future in futures)
        assert producer.in_flight_count == 100
        results = await asyncio.gather(*futures)
        assert [result.queue_offset for result in results] == list(range(1, 101))
        assert producer.in_flight_count == 0


async def test_posts_of_a_key_are_stored_in_order_and_within_the_in_flight_limit() -> None:
    async with one_queue(ProducerConfig(in_flight_count_max=4)) as (broker, producer):
        futures, most = [], 0
        for number in range(50):
            futures.append(await producer.post(message(str(number), sharding_key="k")))
            most = max(most, producer.in_flight_count)
        await asyncio.gather(*futures)
        assert most == 4
        assert broker.stored[1:] == [str(number).encode() for number in range(50)]


async def test_posts_and_sends_of_a_key_share_one_order() -> None:
    async with one_queue(ProducerConfig(in_flight_count_max=3)) as (broker, producer):
        sending = []
        for number in range(0, 30, 2):
            sending.append(asyncio.ensure_future(producer.send(message(str(number), sharding_key="k"))))
            await asyncio.sleep(0)
            sending.append(await producer.post(message(str(number + 1), sharding_key="k")))
        await asyncio.gather(*sending)
        assert broker.stored[1:] == [str(number).encode() for number in range(30)]


async def test_refusal_of_the_broker_fails_the_future_and_other_errors_are_raised_at_once() -> None:
    async with one_queue() as (broker, producer):
        broker.script.append(refuse(MessageIllegalError("no")))
        future = await producer.post(message("bad"))
        with pytest.raises(MessageIllegalError):
            await future
        with pytest.raises(TopicNotExistError):
            await producer.post(message("x", topic="missing"))
        with pytest.raises(LocalProtocolError):
            await producer.post(message("x", sharding_key="k"), selector=lambda queues, _: queues[0])
    with pytest.raises(StateError):
        await producer.post(message("late"))


async def test_cancelled_future_of_a_waiting_post_is_not_written() -> None:
    async with one_queue() as (broker, producer):
        futures = [await producer.post(message(str(n))) for n in range(3)]
        futures[1].cancel()
        await asyncio.gather(futures[0], futures[2])
        await until(lambda: producer.in_flight_count == 0)
        assert broker.stored[1:] == [b"0", b"2"]


class Recorder:
    """A hook that records the ends of sends."""

    def __init__(self) -> None:
        self.ends: list[Any] = []

    def before_send(self, sending: Sending) -> None:
        sending.properties["trace"] = "1"

    def after_send(self, sending: Sending) -> None:
        self.ends.append((sending.method, [result.queue_offset for result in sending.results], type(sending.error).__name__))


async def test_hooks_see_the_end_of_each_post() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, QUICK) as producer:
        broker, hook = cluster.brokers["a"], Recorder()
        producer.add_hook(hook)
        await (await producer.post(message("stored")))
        assert broker.sends[0].messages[0].properties["trace"] == "1"
        broker.script.append(refuse(MessageIllegalError("no")))
        refused = await producer.post(message("refused"))
        with pytest.raises(MessageIllegalError):
            await refused
        broker.script.append(ignore)
        cancelled = await producer.post(message("cancelled"))
        cancelled.cancel()
        with pytest.raises(TopicNotExistError):
            await producer.post(message("x", topic="missing"))
        await until(lambda: len(hook.ends) == 4)
    expected = [("post", [0], "NoneType"), ("post", [], "MessageIllegalError"), ("post", [], "CancelledError")]
    assert sorted(hook.ends) == sorted([*expected, ("post", [], "TopicNotExistError")])

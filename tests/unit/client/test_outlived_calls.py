"""A call that outlives its consumer: consumers of this process wait for it before they lock its queue, other processes don't."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PushConsumer
from lockstep.runtime.host import RunningCalls
from lockstep.testing import TestCluster, simulate

S = ConsumeOrderlyStatus
STUBBORN_S = 30.0


def consumer(cluster: TestCluster, listener: Any) -> PushConsumer:
    made = PushConsumer("billing", nameserver=cluster.nameserver, stop_timeout_ms=500, drain_timeout_ms=500)
    made.subscribe("orders")
    made.orderly(listener)
    return made


def test_queue_is_not_locked_again_in_the_process_while_a_call_of_a_stopped_consumer_runs() -> None:
    events: list[tuple[str, float]] = []

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            now = asyncio.get_running_loop().time
            await cluster.create_topic("orders", queues=1)

            async def stubborn(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                until = now() + STUBBORN_S
                while now() < until:
                    try:
                        await asyncio.sleep(until - now())
                    except asyncio.CancelledError:
                        continue
                events.append(("ended", now()))
                return S.SUCCESS

            async def next_one(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                events.append(("next", now()))
                return S.SUCCESS

            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", b"0", sharding_key="k"))
                async with consumer(cluster, stubborn):
                    await cluster.advance(seconds=2)
                async with consumer(cluster, next_one):
                    await cluster.until(lambda: len(events) == 2, "both calls", timeout=60)

    simulate(main)
    assert [what for what, _ in events] == ["ended", "next"]
    assert events[1][1] - events[0][1] < 1.0, "its end is what is waited for, not the next look"


def test_another_process_gets_the_queue_while_an_old_call_still_runs() -> None:
    events: list[str] = []

    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=1)

            async def stubborn(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                while not events:
                    try:
                        await asyncio.sleep(1)
                    except asyncio.CancelledError:
                        continue
                return S.SUCCESS

            async def other() -> None:
                async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                    events.append("next")
                    return S.SUCCESS

                async with consumer(cluster, listen) as made:
                    await made.wait_closed()

            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                await producer.send(Message("orders", b"0", sharding_key="k"))
                async with consumer(cluster, stubborn):
                    await cluster.advance(seconds=2)
                await cluster.start("other", other)
                await cluster.until(lambda: events, "the other one's call", timeout=10)

    simulate(main)


def test_running_calls_are_counted_by_key_and_the_last_one_notifies() -> None:
    calls, reported = RunningCalls(), list[str]()
    assert not calls.notify_when_ended("a", lambda: reported.append("never"))
    calls.begin("a")
    calls.begin("a")
    calls.begin("b")
    assert calls.notify_when_ended("a", lambda: reported.append("a"))
    calls.end("b")
    calls.end("a")
    assert reported == []
    calls.end("a")
    assert reported == ["a"]
    assert not calls.notify_when_ended("a", lambda: reported.append("never"))


def test_call_may_end_in_any_thread() -> None:
    calls, reported = RunningCalls(), threading.Event()
    calls.begin("a")
    assert calls.notify_when_ended("a", reported.set)
    thread = threading.Thread(target=calls.end, args=("a",))
    thread.start()
    thread.join()
    assert reported.is_set()


@pytest.mark.parametrize("plain", [False, True])
def test_regular_stop_leaves_no_running_call(plain: bool) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=1)
            bodies: list[bytes] = []

            async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                bodies.extend(message.body for message in messages)
                return S.SUCCESS

            def listen_plainly(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
                bodies.extend(message.body for message in messages)
                return S.SUCCESS

            async with Producer("shop", nameserver=cluster.nameserver) as producer:
                for round_ in range(2):
                    async with consumer(cluster, listen_plainly if plain else listen) as made:
                        await producer.send(Message("orders", b"%d" % round_, sharding_key="k"))
                        await cluster.until(lambda round_=round_: len(bodies) > round_, "its call", timeout=5)  # type: ignore[misc]
                        assert made._instance is not None
                        calls = made._instance.host.calls
                    assert not calls._running

    simulate(main)

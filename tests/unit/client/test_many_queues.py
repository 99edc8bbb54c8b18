"""Thousands of queues: the cost of an event of a broker, a layout or a queue is linear in the queues it concerns.

Cost is counted in executed lines of the producer. With four times the queues it may be five times as high. If each queue visited all
the others, it would be sixteen times as high.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest

from lockstep.client import LatencyFaults, MessageQueue, Producer, SendResult
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.queue_machine import QueueMachine, SendConnection
from lockstep.client.producer.machines.topic_machine import SPREAD, TopicMachine
from lockstep.client.producer.pacing.turn_share import SHARE_US_MIN
from lockstep.client.producer.pacing.write_scheduler import WriteScheduler
from lockstep.protocol.errors import SystemBusyError
from support.clocks import WorkClock
from support.counting import Steps
from support.fake_broker import FakeCluster, fake_cluster, ignore, make_layout, refuse
from support.loops import until
from support.producing import message, producing

pytestmark = pytest.mark.simulated

CONFIG = ProducerConfig(send_timeout_ms=60_000, keyed_send_timeout_ms=60_000, attempt_timeout_ms=500)
FEW, MANY = 30, 120
PRODUCER = "/client/producer/"


class Case:
    """A producer that has sent one message to each queue."""

    def __init__(self, cluster: FakeCluster, producer: Producer, count: int) -> None:
        self.cluster = cluster
        self.producer = producer
        self.count = count
        self.broker = cluster.brokers["a"]
        self.queues = cluster.layouts["t"].write_queues

    def to_each(self, *, keyed: bool = False) -> list["asyncio.Future[SendResult]"]:
        """Start one send per queue: to that queue if `keyed`, otherwise unkeyed."""
        return [asyncio.ensure_future(self.producer.send(message(), **({"queue": queue} if keyed else {}))) for queue in self.queues]

    def link_up(self) -> bool:
        assert self.producer._shell is not None
        link = self.producer._shell.instance.link("a")
        return link is not None and link.up

    async def stop_broker(self) -> None:
        self.port = int(self.broker.address.rpartition(":")[2])
        await self.broker.stop()
        await until(lambda: not self.link_up())


@asynccontextmanager
async def sent_once(count: int, latencies: LatencyFaults | None = None) -> AsyncIterator[Case]:
    options = asdict(CONFIG) | {"latency_faults": latencies}
    async with fake_cluster("a", topics={"t": count}) as cluster, Producer("g", nameserver=cluster.nameserver, **options) as producer:
        case = Case(cluster, producer, count)
        await asyncio.gather(*case.to_each(keyed=True))
        yield case


async def first_sends(case: Case) -> None:
    async with producing(case.cluster, CONFIG) as producer:
        case.producer = producer
        await asyncio.gather(*case.to_each())


async def restart_while_each_queue_has_a_frame_in_flight(case: Case, *, keyed: bool = False) -> None:
    case.broker.script.extend([ignore] * case.count)
    sends = case.to_each(keyed=keyed)
    await until(lambda: not case.broker.script)
    await case.stop_broker()
    await case.broker.start(case.port)
    await asyncio.gather(*sends)


async def restart_while_nothing_is_sent(case: Case) -> None:
    await case.stop_broker()
    await case.broker.start(case.port)
    await until(case.link_up)


async def sends_while_the_broker_is_down(case: Case) -> None:
    await case.stop_broker()
    sends = case.to_each() + case.to_each(keyed=True)
    await asyncio.sleep(1)
    await case.broker.start(case.port)
    await asyncio.gather(*sends)


async def every_queue_refuses_once(case: Case) -> None:
    case.broker.script.extend([refuse(SystemBusyError("too many requests"))] * case.count)
    await asyncio.gather(*case.to_each())


async def no_queue_answers_in_time(case: Case) -> None:
    case.broker.script.extend([ignore] * case.count)
    await asyncio.gather(*case.to_each())


async def a_higher_layout(case: Case) -> None:
    layout = make_layout("t", "a", queues=case.count + 1, counter=2)
    await case.stop_broker()
    sends = case.to_each(keyed=True)
    await asyncio.sleep(0.1)
    case.cluster.put(layout)
    case.producer._topics.layout_changed(layout)
    await case.broker.start(case.port)
    await asyncio.gather(*sends)


async def the_topic_is_deleted(case: Case) -> None:
    await case.stop_broker()
    sends = case.to_each(keyed=True)
    await asyncio.sleep(0.1)
    case.producer._topics.layout_changed(make_layout("t", counter=2))
    await asyncio.gather(*sends, return_exceptions=True)
    await case.broker.start(case.port)


async def one_batch_for_each_queue(case: Case) -> None:
    for number in range(case.count):
        await case.producer.send_batch([message(sharding_key=str(number))])


async def a_selector_for_each_message(case: Case) -> None:
    for number in range(case.count):
        await case.producer.send(message(), selector=lambda queues, _, number=number: queues[number])


WORK = [
    first_sends,
    restart_while_each_queue_has_a_frame_in_flight,
    restart_while_nothing_is_sent,
    sends_while_the_broker_is_down,
    every_queue_refuses_once,
    no_queue_answers_in_time,
    a_higher_layout,
    the_topic_is_deleted,
    one_batch_for_each_queue,
    a_selector_for_each_message,
]


@pytest.mark.parametrize("latencies", [None, LatencyFaults()], ids=["", "latency faults"])
@pytest.mark.parametrize("work", WORK)
async def test_cost_of_each_event_is_linear_in_the_queues(work: Callable[[Case], Awaitable[None]], latencies: LatencyFaults | None) -> None:
    async def steps(count: int) -> int:
        async with sent_once(count, latencies) as case:
            with Steps(PRODUCER) as counted:
                await work(case)
            return counted.count

    few = await steps(FEW)
    assert await steps(MANY) <= 5 * few + 2_000


async def test_reconnect_of_a_broker_does_not_visit_idle_queues() -> None:
    async with sent_once(FEW) as case:
        with Steps(PRODUCER) as few:
            await restart_while_nothing_is_sent(case)
    async with sent_once(MANY) as case:
        with Steps(PRODUCER) as many:
            await restart_while_nothing_is_sent(case)
    assert many.count == few.count


async def test_queue_state_is_created_at_its_first_send() -> None:
    async with fake_cluster("a", topics={"t": 5_000}) as cluster, producing(cluster) as producer:
        await producer.send(message(), queue=MessageQueue("t", "a", 17))
        assert len(producer._topics.open_topics["t"]._by_queue) == 1


async def test_loop_turn_serves_as_many_queues_as_it_has_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[int] = []
    run, turn = TopicMachine.run, WriteScheduler._run_due

    def counted(self: TopicMachine, machine: QueueMachine, now_ms: int, connection: SendConnection | None) -> None:
        served[-1] += 1
        run(self, machine, now_ms, connection)

    def turned(self: WriteScheduler) -> None:
        served.append(0)
        turn(self)

    step_us, count = 500, 300
    async with sent_once(count) as case:
        assert case.producer._shell is not None
        case.producer._shell._writes._now_us = WorkClock(step_us).monotonic_us
        monkeypatch.setattr(TopicMachine, "run", counted)
        monkeypatch.setattr(WriteScheduler, "_run_due", turned)
        await restart_while_each_queue_has_a_frame_in_flight(case, keyed=True)
    assert sum(served) >= 3 * count
    assert max(served) == SHARE_US_MIN // step_us


async def test_many_sends_in_flight_fill_frames_on_a_topic_of_many_queues() -> None:
    count = 2_000
    async with sent_once(count) as case:
        frames = len(case.broker.sends)
        results = await asyncio.gather(*[case.producer.send(message()) for _ in range(count)])
        assert SPREAD <= len({result.queue for result in results}) <= count // 4
        assert len(case.broker.sends) - frames <= count // 4


async def test_each_queue_sends_its_own_pending_messages_after_a_broker_restart() -> None:
    async with sent_once(FEW) as case:
        await case.stop_broker()
        sends = case.to_each()
        await asyncio.sleep(0.1)
        await case.broker.start(case.port)
        results = await asyncio.gather(*sends)
        assert len({result.queue for result in results}) == FEW

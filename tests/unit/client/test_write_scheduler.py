"""When the queues of a producer write: once per loop turn, with one write per connection."""

import asyncio
from typing import cast

import pytest

from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.pacing.write_scheduler import WriteScheduler
from lockstep.protocol.command import Command
from lockstep.runtime.clock import Clock
from lockstep.runtime.connections.endpoint import Endpoint
from support.loops import turns
from support.recorder import record

pytestmark = pytest.mark.both_loops


class Queue:
    """A fake QueueMachine that writes one frame when it is run."""

    def __init__(self, scheduler: WriteScheduler, endpoint: Endpoint | None, fails: bool = False) -> None:
        self.scheduler = scheduler
        self.endpoint = endpoint
        self.fails = fails
        self.waiting: list[int] = []
        self.gone: list[list[int]] = []

    def add(self, item: int) -> None:
        self.waiting.append(item)
        self.scheduler.add(TOPIC, cast(QueueMachine, self))

    def responded(self) -> None:
        self.scheduler.add_last(TOPIC, cast(QueueMachine, self))

    def run(self, endpoint: Endpoint | None) -> None:
        if self.fails:
            raise RuntimeError("a bug")
        taken, self.waiting = self.waiting, []
        self.gone.append(taken)
        if endpoint is not None:
            endpoint.oneway(1, body=bytes(taken))


TOPIC = cast(TopicMachine, object())


def scheduler_of() -> WriteScheduler:
    return WriteScheduler(
        lambda topic, queue, endpoint: cast(Queue, queue).run(endpoint),
        lambda queue: cast(Queue, queue).endpoint,
        Clock(),
    )


async def test_queues_of_a_connection_are_written_together_at_the_end_of_the_loop_turn() -> None:
    endpoint, transport = record(None)
    scheduler = scheduler_of()
    queues = [Queue(scheduler, endpoint) for _ in range(3)]
    for number, queue in enumerate([*queues, *queues]):
        queue.add(number)
    assert transport.writes == []
    await turns(1)
    assert [queue.gone for queue in queues] == [[[0, 3]], [[1, 4]], [[2, 5]]]
    assert len(transport.writes) == 1
    endpoint.abort("")


async def test_each_connection_has_its_own_write_and_queues_without_a_connection_are_run_too() -> None:
    (one, first), (other, second) = record(None), record(None)
    scheduler = scheduler_of()
    lone = Queue(scheduler, None)
    for queue in (Queue(scheduler, one), lone, Queue(scheduler, other)):
        queue.add(7)
    await turns(1)
    assert (len(first.writes), len(second.writes), lone.gone) == (1, 1, [[7]])
    one.abort("")
    other.abort("")


async def test_senders_woken_by_a_response_are_included_in_the_write_of_the_same_turn() -> None:
    endpoint, transport = record(None)
    scheduler = scheduler_of()
    loop = asyncio.get_running_loop()
    queues = [Queue(scheduler, endpoint) for _ in range(2)]
    for queue in queues:
        # Two responses in one read: each wakes a sender, then its queue asks for a later write.
        loop.call_soon(queues[1].add, 1)
        queue.responded()
    await turns(1)
    assert queues[1].gone == [[1, 1]]
    assert len(transport.writes) == 1
    endpoint.abort("")


async def test_failing_queue_does_not_hold_back_other_frames() -> None:
    endpoint, transport = record(None)
    scheduler = scheduler_of()
    Queue(scheduler, endpoint).add(1)
    Queue(scheduler, endpoint, fails=True).add(2)
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await turns(1)
    assert len(reported) == len(transport.writes) == 1
    endpoint.send(Command(0, 1))
    await turns(1)
    assert len(transport.writes) == 2
    endpoint.abort("")

"""When the queues of a producer write: once in a loop turn, one write per connection, behind those who were just answered."""

import asyncio
from typing import cast

import pytest

from lockstep.client.producer.queue_machine import QueueMachine
from lockstep.client.producer.write_scheduler import WriteScheduler
from lockstep.protocol.command import Command
from lockstep.runtime.endpoint import Endpoint
from support.loops import turns
from support.recorder import record

pytestmark = pytest.mark.both_loops


class Link:
    def __init__(self, endpoint: Endpoint | None) -> None:
        self.endpoint = endpoint


class Queue:
    """Stands for a QueueMachine: writes one frame when it departs."""

    def __init__(self, departures: WriteScheduler, link: Link, fails: bool = False) -> None:
        self.departures = departures
        self.link = link
        self.fails = fails
        self.waiting: list[int] = []
        self.gone: list[list[int]] = []

    def add(self, item: int) -> None:
        self.waiting.append(item)
        self.departures.add(cast(QueueMachine, self))

    def answered(self) -> None:
        self.departures.add_behind(cast(QueueMachine, self))

    def depart(self) -> None:
        if self.fails:
            raise RuntimeError("a bug")
        taken, self.waiting = self.waiting, []
        self.gone.append(taken)
        if self.link.endpoint is not None:
            self.link.endpoint.oneway(1, body=bytes(taken))


async def test_queues_of_one_connection_leave_in_one_write_at_the_end_of_the_turn() -> None:
    endpoint, transport = record(None)
    departures = WriteScheduler()
    link = Link(endpoint)
    queues = [Queue(departures, link) for _ in range(3)]
    for number, queue in enumerate([*queues, *queues]):
        queue.add(number)
    assert transport.writes == []
    await turns(1)
    assert [queue.gone for queue in queues] == [[[0, 3]], [[1, 4]], [[2, 5]]]
    assert len(transport.writes) == 1
    endpoint.abort("")


async def test_each_connection_has_its_own_write_and_a_queue_without_one_departs_too() -> None:
    (one, first), (other, second) = record(None), record(None)
    departures = WriteScheduler()
    lone = Queue(departures, Link(None))
    for queue in (Queue(departures, Link(one)), lone, Queue(departures, Link(other))):
        queue.add(7)
    await turns(1)
    assert (len(first.writes), len(second.writes), lone.gone) == (1, 1, [[7]])
    one.abort("")
    other.abort("")


async def test_who_was_just_answered_sends_first_and_no_turn_is_lost() -> None:
    endpoint, transport = record(None)
    departures = WriteScheduler()
    loop = asyncio.get_running_loop()
    link = Link(endpoint)
    queues = [Queue(departures, link) for _ in range(2)]
    for queue in queues:
        # Two answers in one read: each wakes a sender, then its queue asks to depart behind it.
        loop.call_soon(queues[1].add, 1)
        queue.answered()
    await turns(1)
    assert queues[1].gone == [[1, 1]]
    assert len(transport.writes) == 1
    endpoint.abort("")


async def test_a_queue_that_fails_holds_nobody_s_frames_back() -> None:
    endpoint, transport = record(None)
    departures = WriteScheduler()
    link = Link(endpoint)
    Queue(departures, link).add(1)
    Queue(departures, link, fails=True).add(2)
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    await turns(1)
    assert len(told) == len(transport.writes) == 1
    endpoint.send(Command(0, 1))
    await turns(1)
    assert len(transport.writes) == 2
    endpoint.abort("")

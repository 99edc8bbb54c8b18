"""The shelf: messages leave it in order, once, and count as done only when somebody says so."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.client.consumer.listener import Fence
from lockstep.client.consumer.ownership import Sent
from lockstep.client.consumer.poll_model import PollModel
from lockstep.client.consumer.process_queue import FlowLimits, ProcessQueue
from lockstep.client.consumer.queue_worker import Grant, QueueWorker
from lockstep.client.consumer.shared_ownership import SharedOwnership
from lockstep.protocol.bodies import LockAnswer, Verdict
from lockstep.protocol.message import MessageExt
from lockstep.protocol.queue import MessageQueue

QUEUES = tuple(MessageQueue("orders", "a", number) for number in range(2))


@dataclass(frozen=True)
class Stored:
    queue: MessageQueue
    queue_offset: int


@dataclass
class Queue:
    """One held queue, and what the test knows of it."""

    queue: MessageQueue
    shelf: PollModel
    matched: list[int] = field(default_factory=list)
    end: int = 0
    begun: int = 0
    """Where it was placed last: at the start, by a seek."""
    handed: list[int] = field(default_factory=list)
    """Since then."""
    done: int = 0
    """What the caller has said is done."""

    def __post_init__(self) -> None:
        self.own = SharedOwnership("reports", self.queue)
        self.own.want()
        self.own.lock_answered(Sent(self.own, None, None, 0), LockAnswer("reports", "orders", self.queue.queue_id, Verdict.OK, epoch=1))
        self.holding = Grant(1, Fence("reports", "orders", "a", 0, 1), ProcessQueue(0, 0, FlowLimits(1_000, 1 << 30, 1 << 30)))
        clock = SimpleNamespace(boot_ms=lambda: 0)
        tasks = SimpleNamespace(spawn=lambda coroutine, name: coroutine.close())
        self.worker = cast(
            QueueWorker,
            SimpleNamespace(
                queue=self.queue,
                own=self.own,
                session=SimpleNamespace(changed=lambda own: None, trigger=lambda: None),
                use=SimpleNamespace(host=SimpleNamespace(clock=clock), tasks=tasks),
                call_started_ms=0,
                look=lambda: None,
            ),
        )

    def arrive(self, wanted: list[bool]) -> None:
        """A pull's answer: those of the next messages that the subscription wants."""
        first = self.holding.messages.next_offset
        self.end = max(self.end, first + len(wanted))
        new = [first + index for index, want in enumerate(wanted) if want]
        self.matched = sorted({*self.matched, *new} - {first + index for index, want in enumerate(wanted) if not want})
        messages = [cast(MessageExt, Stored(self.queue, offset)) for offset in new]
        if self.holding.messages.put(messages, first + len(wanted), len(wanted)):
            self.shelf.moved(self.worker, self.holding)
        self.holding.run_wake.set()

    @property
    def position(self) -> int:
        position = self.shelf.position(self.queue)
        assert position is not None
        return position


QUEUE = st.integers(0, len(QUEUES) - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), QUEUE, st.lists(st.booleans(), min_size=1, max_size=6)),
        st.tuples(st.just("take"), st.integers(1, 4), st.none()),
        st.tuples(st.just("settle"), st.none(), st.none()),
        st.tuples(st.just("seek"), QUEUE, st.integers(0, 12)),
        st.tuples(st.just("pause"), QUEUE, st.none()),
        st.tuples(st.just("resume"), QUEUE, st.none()),
    ),
    min_size=20,
    max_size=60,
)


@settings(max_examples=150)
@given(STEPS)
def test_messages_leave_in_order_and_once_and_only_settling_says_that_they_are_done(steps: list[tuple[str, Any, Any]]) -> None:
    async def main() -> None:
        shelf = PollModel()
        held = [Queue(queue, shelf) for queue in QUEUES]
        runners = [asyncio.ensure_future(shelf.serve(each.worker, each.holding)) for each in held]
        await asyncio.sleep(0)
        for what, one, other in steps:
            apply(shelf, held, what, one, other)
            await asyncio.sleep(0)
            for each in held:
                assert each.handed == [offset for offset in each.matched if each.begun <= offset < each.position], "in order, each once"
                assert each.own.offset == each.done, "nothing else says that it is done"
        for each in held:
            shelf.resume(each.queue)
        while batch := shelf.take(5):
            note(held, batch)
        for each in held:
            assert each.handed == [offset for offset in each.matched if offset >= each.begun], "nothing stays behind"
        for runner in runners:
            runner.cancel()
        await asyncio.wait(runners)

    asyncio.run(main())


def apply(shelf: PollModel, held: list[Queue], what: str, one: Any, other: Any) -> None:
    if what == "arrive":
        held[one].arrive(other)
    elif what == "take":
        batch = shelf.take(one)
        assert len(batch) <= one
        assert len({cast(Any, message).queue for message in batch}) <= 1, "of one queue"
        assert not any(cast(Any, message).queue in shelf.paused for message in batch)
        note(held, batch)
    elif what == "settle":
        back = {worker.queue for worker, _ in shelf.settle()}
        for each in held:
            assert (each.queue in back) == (each.position < each.done), "what went back is told, and left to the caller"
            each.done = max(each.done, each.position)
    elif what == "seek":
        each = held[one]
        place = min(other, each.end)
        shelf.seek(each.queue, place)
        each.begun, each.handed = place, []
        each.matched = [offset for offset in each.matched if offset < place]  # the rest is fetched anew
    elif what == "pause":
        shelf.pause(QUEUES[one])
    else:
        shelf.resume(QUEUES[one])


def note(held: list[Queue], batch: list[MessageExt]) -> None:
    for message in batch:
        stored = cast(Any, message)
        held[stored.queue.queue_id].handed.append(stored.queue_offset)

"""PollModel returns messages in order and once, and counts those that it returned as done only after settle."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.poll_model import PollModel
from lockstep.client.consumer.calls.process_queue import FlowLimits, ProcessQueue
from lockstep.client.consumer.calls.runner import AbstractQueueWorker
from lockstep.client.consumer.grants.ownership import GrantPolicy, QueueOwnership
from lockstep.protocol.bodies import LockResult, LockVerdict
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.topics.queue import MessageQueue

QUEUES = tuple(MessageQueue("orders", "a", number) for number in range(2))


@dataclass(frozen=True)
class Stored:
    queue: MessageQueue
    queue_offset: int


@dataclass
class Queue:
    """A held queue and the test's model of it."""

    queue: MessageQueue
    polls: PollModel
    matched: list[int] = field(default_factory=list)
    end: int = 0
    begun: int = 0
    """Its latest position from the start or a seek."""
    handed: list[int] = field(default_factory=list)
    """Offsets polled since then."""
    done: int = 0
    """Offsets that the caller has committed, and filtered ones that follow them."""
    sought: bool = False
    """Whether a seek has moved the position since the last settle."""

    def __post_init__(self) -> None:
        self.own = QueueOwnership("reports", self.queue, GrantPolicy.SHARED)
        self.own.want()
        response = LockResult("reports", "orders", self.queue.queue_id, LockVerdict.OK, generation=1)
        self.own.handle_lock_response(self.own.grant_requested(), response)
        self.grant = Grant(1, None, ProcessQueue(0, 0, FlowLimits(1_000, 1 << 30, 1 << 30)))
        clock = SimpleNamespace(boot_ms=lambda: 0)
        held = SimpleNamespace(
            queue=self.queue,
            ownership=self.own,
            session=SimpleNamespace(changed=lambda ownership: None, trigger=lambda: None),
            ctx=SimpleNamespace(host=SimpleNamespace(clock=clock)),
            polled_ms=0,
            fetch=lambda grant, runner: None,
            look=lambda: None,
        )
        self.runner = self.polls.runner(cast(AbstractQueueWorker, held), self.grant)

    def arrive(self, wanted: list[bool]) -> None:
        """Store the response to a pull: of the next messages those that the subscription selects (`wanted`)."""
        first = self.grant.messages.next_offset
        self.end = max(self.end, first + len(wanted))
        new = [first + index for index, want in enumerate(wanted) if want]
        self.matched = sorted({*self.matched, *new} - {first + index for index, want in enumerate(wanted) if not want})
        messages = [cast(MessageExt, Stored(self.queue, offset)) for offset in new]
        at_done = self.position == self.done and not self.sought
        if self.grant.messages.put(messages, first + len(wanted), len(wanted)):
            self.runner.position_moved()
            if at_done:
                self.done = self.position
        self.grant.run_wake.set()

    @property
    def position(self) -> int:
        position = self.polls.position(self.queue)
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
def test_polled_messages_are_ordered_and_unique_and_only_settle_marks_them_done(steps: list[tuple[str, Any, Any]]) -> None:
    async def main() -> None:
        polls = PollModel()
        held = [Queue(queue, polls) for queue in QUEUES]
        runners = [asyncio.ensure_future(each.runner.run()) for each in held]
        await asyncio.sleep(0)
        for what, one, other in steps:
            apply(polls, held, what, one, other)
            await asyncio.sleep(0)
            for each in held:
                assert each.handed == [offset for offset in each.matched if each.begun <= offset < each.position], "in order, each once"
                assert each.own.offset == each.done, "nothing else says that it is done"
        for each in held:
            polls.resume(each.queue)
        while batch := polls.take(5):
            note(held, batch)
        for each in held:
            assert each.handed == [offset for offset in each.matched if offset >= each.begun], "nothing stays behind"
        for runner in runners:
            runner.cancel()
        await asyncio.wait(runners)

    asyncio.run(main())


def apply(polls: PollModel, held: list[Queue], what: str, one: Any, other: Any) -> None:
    if what == "arrive":
        held[one].arrive(other)
    elif what == "take":
        batch = polls.take(one)
        assert len(batch) <= one
        assert len({cast(Any, message).queue for message in batch}) <= 1, "of one queue"
        assert not any(cast(Any, message).queue in polls.paused for message in batch)
        note(held, batch)
    elif what == "settle":
        back = {runner.worker.queue for runner in polls.mark_done()}
        for each in held:
            assert (each.queue in back) == (each.position < each.done), "truncated queues are reported, and left to the caller"
            each.done, each.sought = max(each.done, each.position), each.queue in back
    elif what == "seek":
        each = held[one]
        place = min(other, each.end)
        polls.seek(each.queue, place)
        each.begun, each.handed, each.sought = place, [], True
        each.matched = [offset for offset in each.matched if offset < place]  # the rest is fetched again
    elif what == "pause":
        polls.pause(QUEUES[one])
    else:
        polls.resume(QUEUES[one])


def note(held: list[Queue], batch: list[MessageExt]) -> None:
    for message in batch:
        stored = cast(Any, message)
        held[stored.queue.queue_id].handed.append(stored.queue_offset)

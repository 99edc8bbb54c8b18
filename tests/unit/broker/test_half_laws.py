"""The laws of transactions (invariants.md, H1 to H5) for any order of sends, decisions, starts, power cuts and rounds of retention."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.tables.check_schedule import PAUSE_MS_MAX
from lockstep.protocol.bodies import HalfMessage
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK
from lockstep.protocol.names import HALF_TOPIC
from support.check_bench import SENDER, Bench
from support.effort import examples
from support.timer_machine import TimerMachine

NAMES = ["send", "send", "commit", "commit", "roll back", "commit all", "start", "start by a snapshot", "power cut", "carry"]
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.lists(st.integers(0, 50), min_size=1, max_size=4)), max_size=25)
REFUSALS = {COMMIT: ResponseCode.TRANSACTION_SHOULD_ROLLBACK, ROLLBACK: ResponseCode.TRANSACTION_SHOULD_COMMIT}
"""The decision that comes too late, and its answer."""
QUEUES = 3


class Model:
    """What was sent, how it was decided, and what has to be in the queues."""

    def __init__(self, machine: TimerMachine) -> None:
        self.machine = machine
        self.bench = Bench(machine)
        self.sender = self.bench.connect(SENDER)
        self.halves: list[HalfMessage] = []
        self.queue_ids: list[int] = []
        """Number of a half message → its queue."""
        self.outcomes: dict[int, tuple[int, tuple[int, int]]] = {}
        """Number of a half message → the decision, and the first answer."""
        self.repeatable: set[int] = set()
        """Numbers of those that are decided and whose records are there. Without its record the outcome is not known any more."""
        self.unsynced: list[int] = []
        """Numbers in the order of their decisions, which a power cut may take back."""
        self.stored: list[list[int]] = [[] for _ in range(QUEUES)]
        """Queue id → numbers of its messages."""

    async def take(self, step: str, choices: list[int]) -> None:
        machine = self.machine
        if step == "send":
            await self.send(choices[0] % QUEUES, len(choices))
        elif step == "commit all" and self.open():
            await self.decide(COMMIT, self.open())
        elif step in ("commit", "roll back") and (known := sorted({*self.open(), *self.repeatable})):
            await self.decide(COMMIT if step == "commit" else ROLLBACK, [known[choice % len(known)] for choice in choices])
        elif step in ("start", "start by a snapshot", "power cut"):
            await machine.restart(snapshot=step == "start by a snapshot", power=step == "power cut")
            if step == "power cut":
                self.take_back()
            self.bench.attach()
            await self.bench.checks.look()
        elif step == "carry":
            await self.carry()

    def open(self) -> list[int]:
        return [number for number in range(len(self.halves)) if number not in self.outcomes]

    async def send(self, queue_id: int, count: int) -> None:
        """Send a frame. It is answered when the disk has the log, with all decisions before it."""
        bodies = [b"%d" % (len(self.halves) + number) for number in range(count)]
        self.halves += await self.machine.halves(*bodies, queue_id=queue_id, client_id=SENDER)
        self.queue_ids += [queue_id] * count
        self.unsynced.clear()

    async def decide(self, outcome: int, numbers: list[int]) -> None:
        """Decide about messages in one request, some of which may be decided before or named twice."""
        code, places = await self.machine.end(outcome, *(self.halves[number] for number in numbers))
        if any(number in self.outcomes and self.outcomes[number][0] != outcome for number in numbers):
            assert (code, places) == (REFUSALS[outcome], []), "none of them is decided"
            return
        assert code == ResponseCode.SUCCESS
        for number in numbers:
            if number not in self.outcomes:
                queue_id = self.queue_ids[number]
                place = (queue_id, len(self.stored[queue_id])) if outcome == COMMIT else (-1, -1)
                self.outcomes[number] = outcome, place
                if outcome == COMMIT:
                    self.stored[queue_id].append(number)
                self.repeatable.add(number)
                self.unsynced.append(number)
        assert places == [self.outcomes[number][1] for number in numbers], "the first answers"

    def take_back(self) -> None:
        """After a power cut the first of the decisions since the last sync hold. The messages of the others are open again."""
        are_open = [self.machine.state.transactions.find(self.halves[number].offset) is not None for number in self.unsynced]
        assert are_open == sorted(are_open), "the log has a first part of what was written"
        for number, is_open in zip(self.unsynced, are_open, strict=True):
            if is_open:
                outcome, (queue_id, offset) = self.outcomes.pop(number)
                self.repeatable.remove(number)
                if outcome == COMMIT:
                    del self.stored[queue_id][offset:]
        self.unsynced.clear()

    async def carry(self) -> None:
        """Remove what the log has, so that open messages are stored again."""
        machine = self.machine
        await machine.fill(2)
        machine.clock.now_ms += 100_000
        await machine.look()
        await machine.fill(1)
        await machine.remove_old()
        first, _ = machine.store.bounds(HALF_TOPIC, 0)
        self.repeatable = {number for number in self.repeatable if self.halves[number].offset >= first}
        self.unsynced.clear()

    async def check(self) -> None:
        """Compare the broker with the model: what is visible, and what is open."""
        machine = self.machine
        for queue_id, numbers in enumerate(self.stored):
            first, end = machine.store.bounds("orders", queue_id)
            assert end == len(numbers)
            assert await machine.arrived(queue_id=queue_id) == [b"%d" % number for number in numbers[first:]]
        assert len(machine.state.transactions) == len(self.open())

    async def check_questions(self) -> None:
        await self.bench.checks.look()
        self.sender.got.clear()
        await self.bench.after(PAUSE_MS_MAX)
        asked = {(fields["tranStateTableOffset"], fields["msgId"]) for fields, _ in self.sender.got}
        assert asked == {(self.halves[number].offset, self.halves[number].message_id) for number in self.open()}


async def run(steps: list[tuple[str, list[int]]], seed: int) -> None:
    machine = await TimerMachine(seed, segment_bytes=32 << 10, retention_ms=60_000, tail_bytes=8 << 10).start()
    model = Model(machine)
    await model.bench.checks.look()
    for step, choices in steps:
        await model.take(step, choices)
        await model.check()
    await model.check_questions()
    assert machine.store.damage.lost() == []
    await machine.stop()


@examples(1600)
@given(STEPS, st.integers(0, 1_000))
def test_messages_are_delivered_once_if_they_were_committed_and_open_ones_are_asked_about(
    steps: list[tuple[str, list[int]]], seed: int
) -> None:
    """`seed`: that of what a power cut leaves of unsynced writes."""
    asyncio.run(run(steps, seed))

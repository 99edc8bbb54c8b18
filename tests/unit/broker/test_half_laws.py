"""The laws of transactions (invariants.md, H1 to H5) for any order of sends, decisions, starts, power cuts and rounds of retention."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.tables.check_schedule import PAUSE_MS_MAX
from lockstep.protocol.bodies import HalfMessage
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK
from support.check_bench import SENDER, Bench
from support.effort import examples
from support.timer_machine import TimerMachine

NAMES = ["half", "frame", "commit", "commit", "roll back", "commit all", "start", "start by a snapshot", "power cut", "carry"]
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 50)), max_size=25)
REFUSALS = {COMMIT: ResponseCode.TRANSACTION_SHOULD_ROLLBACK, ROLLBACK: ResponseCode.TRANSACTION_SHOULD_COMMIT}
"""The decision that comes too late, and its answer."""


class Model:
    """What was sent, how it was decided, and what has to be in the queue."""

    def __init__(self, machine: TimerMachine) -> None:
        self.machine = machine
        self.bench = Bench(machine)
        self.sender = self.bench.connect(SENDER)
        self.halves: list[HalfMessage] = []
        self.bodies: list[bytes] = []
        self.outcomes: dict[int, tuple[int, tuple[int, int]]] = {}
        """Number of a half message → the decision, and the first answer."""
        self.stored: list[bytes] = []

    async def send(self, count: int) -> None:
        bodies = [b"m%d" % (len(self.bodies) + number) for number in range(count)]
        self.halves += await self.machine.halves(*bodies, client_id=SENDER)
        self.bodies += bodies

    async def decide(self, outcome: int, *numbers: int) -> None:
        """Decide about messages of which none was decided the other way, or about one."""
        code, places = await self.machine.end(outcome, *(self.halves[number] for number in numbers))
        known = [self.outcomes.get(number) for number in numbers]
        if any(each is not None and each[0] != outcome for each in known):
            assert code == REFUSALS[outcome]
            return
        assert code == ResponseCode.SUCCESS
        for number, before, place in zip(numbers, known, places, strict=True):
            if before is None:
                expected = (2, len(self.stored)) if outcome == COMMIT else (-1, -1)
                self.outcomes[number] = outcome, expected
                self.stored += [self.bodies[number]] * (outcome == COMMIT)
            assert place == self.outcomes[number][1], "the first answer"

    def open(self) -> list[int]:
        return [number for number in range(len(self.halves)) if number not in self.outcomes]

    async def take(self, step: str, choice: int) -> None:
        machine = self.machine
        if step in ("half", "frame"):
            await self.send(1 if step == "half" else 2 + choice % 3)
        elif step == "commit all" and self.open():
            await self.decide(COMMIT, *self.open())
        elif step in ("commit", "roll back") and self.halves:
            await self.decide(COMMIT if step == "commit" else ROLLBACK, choice % len(self.halves))
        elif step == "power cut":
            await machine.store.sync()
            await machine.restart(power=True)
        elif step in ("start", "start by a snapshot"):
            await machine.restart(snapshot=step != "start")
        elif step == "carry":
            await machine.fill(2)
            machine.clock.now_ms += 100_000
            await machine.look()
            await machine.fill(1)
            await machine.remove_old()
        if step in ("power cut", "start", "start by a snapshot"):
            self.bench.attach()
            await self.bench.checks.look()

    async def check(self) -> None:
        """Compare the broker with the model: what is visible, what is open, and what is asked about."""
        machine = self.machine
        first, end = machine.store.bounds("orders", 2)
        assert end == len(self.stored)
        assert await machine.arrived() == self.stored[first:]
        assert len(machine.state.transactions) == len(self.open())
        self.sender.got.clear()
        await self.bench.after(PAUSE_MS_MAX)
        asked = {(fields["tranStateTableOffset"], fields["msgId"]) for fields, _ in self.sender.got}
        assert asked == {(self.halves[number].offset, self.halves[number].message_id) for number in self.open()}


async def run(steps: list[tuple[str, int]]) -> None:
    machine = await TimerMachine(segment_bytes=32 << 10, retention_ms=60_000, tail_bytes=8 << 10).start()
    model, carried = Model(machine), False
    await model.bench.checks.look()
    for step, choice in steps:
        if carried and step in ("commit", "roll back"):  # the outcome of a message that retention has removed is not known any more
            left = model.open()
            if left:
                await model.decide(COMMIT if step == "commit" else ROLLBACK, left[choice % len(left)])
        else:
            await model.take(step, choice)
        carried = carried or step == "carry"
    await model.bench.checks.look()
    await model.check()
    await machine.stop()


@examples(1600)
@given(STEPS)
def test_messages_are_delivered_once_if_they_were_committed_and_open_ones_are_asked_about(steps: list[tuple[str, int]]) -> None:
    asyncio.run(run(steps))

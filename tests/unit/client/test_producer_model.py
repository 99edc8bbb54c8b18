"""A topic machine against brokers that store, refuse, don't respond, and get writes late: the outcome of each send is correct.

A run is drawn from a seed. At its end all faults are healed, and the stored records are compared with the outcomes of the sends.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from lockstep.broker.tables.sequence_table import ACCEPT, SequenceTable, StoredFrame
from lockstep.client.errors import Outcome
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.effects import Complete, Fail, PossibleDuplicates, Refuse, Release, Write
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.routing import UNKEYED, Route, queue_of_key
from lockstep.client.producer.machines.send_fifo import NEVER_MS
from lockstep.client.producer.machines.sequencer import Sequencer
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.protocol.codes import ResponseCode as C
from lockstep.protocol.command import Command
from lockstep.protocol.errors import TransportError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.send import SendRecordsHeader
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.fake_broker import sequence_of
from support.producing import new_encoder

BROKERS = ("a", "b")
REFUSALS = (C.SYSTEM_BUSY, C.SYSTEM_ERROR, C.NO_PERMISSION, C.SERVICE_NOT_AVAILABLE)
STORED, NOT_STORED, UNKNOWN = "stored", "not stored", "unknown"


def layout(queues: int, counter: int) -> TopicLayout:
    return TopicLayout("t", LayoutVersion(counter, 7), tuple(LayoutEntry(name, queues, queues, 1) for name in BROKERS))


def names_of(pending: PendingSend) -> list[str]:
    """Return the names of the messages, which are their bodies."""
    return [message.body.decode() for message in pending.messages]


@dataclass
class Caller:
    """A caller that waits for the outcomes of its messages."""

    left: int
    cancelled: bool = False

    def done(self) -> bool:
        return self.cancelled or not self.left


@dataclass(eq=False)
class Sent:
    """A message and its outcomes."""

    name: str
    key: str | None
    caller: Caller
    ends: list[str] = field(default_factory=list)
    released: int = 0


@dataclass
class Written:
    """A write in flight."""

    write: Write
    machine: QueueMachine
    fields: dict[str, object]
    names: list[str]


@dataclass
class Connection:
    broker: str
    open: bool = True
    backlog_bytes: int = 0
    coming: list[Written] = field(default_factory=list)
    """Writes that have not arrived at the broker. They arrive even after the client has closed the connection."""
    silent: list[Written] = field(default_factory=list)
    """Writes at the broker that never get a response."""


class Broker:
    """A broker that stores frames as the table of sequences decides."""

    def __init__(self, layout: TopicLayout) -> None:
        self.layout = layout
        self.queues: dict[int, list[str]] = {}
        self._sequences = SequenceTable()

    def take(self, written: Written) -> int:
        header = from_plain(SendRecordsHeader, written.fields)
        scope, frame = sequence_of(header)
        verdict = self._sequences.check_frame(scope, frame, now_ms=1)
        if verdict is not ACCEPT:
            return C.DUPLICATE if verdict.stored else verdict.code
        if header.layout_counter is not None and header.layout_counter < self.layout.version.counter:
            return C.LAYOUT_STALE
        if any(name.startswith("bad") for name in written.names):
            return C.MESSAGE_ILLEGAL
        self.queues.setdefault(header.queue_id, []).extend(written.names)
        self._sequences.record_frame(scope, frame, StoredFrame(0, 0, 1))
        return C.SUCCESS


class RandomRun:
    def __init__(self, seed: int, *, layouts: bool) -> None:
        self.random = Random(seed)
        self.layouts = layouts
        self.now_ms = 1_000
        self.sent: dict[str, Sent] = {}
        self.sends: list[PendingSend] = []
        self.may_be_twice = 0
        first = layout(self.random.choice([1, 2]), 1)
        config = ProducerConfig(attempt_timeout_ms=300, batch_count_max=self.random.choice([2, 5, 50]))
        self.topic = TopicMachine(first, config, lambda: Sequencer("0" * 32), new_encoder(), lambda _: 0, BROKERS)
        self.brokers = {name: Broker(first) for name in BROKERS}
        self.connections = {name: Connection(name) for name in BROKERS}
        self.all = list(self.connections.values())

    def send(self) -> None:
        """Send a message, or a batch of several keys."""
        keys = [self.random.choice([None, "k", "j", "l"]) for _ in range(self.random.choice([1, 1, 3]))]
        end_ms = self.now_ms + self.random.choice([200, 900, 4_000, 9_000])
        caller = Caller(len(keys))
        keyed = {place: key for place, key in enumerate(keys) if key is not None}
        shares = self.topic.of_keys(keyed)
        if len(keyed) < len(keys):
            shares.append((self.topic.next(self.now_ms), [place for place in range(len(keys)) if place not in keyed]))
        for machine, places in shares:
            names = [("bad" if self.random.random() < 0.04 else "m") + str(len(self.sent) + n) for n in range(len(places))]
            own = [keyed[place] for place in places if place in keyed]
            self.sent.update({name: Sent(name, keys[place], caller) for name, place in zip(names, places, strict=True)})
            messages = [Message("t", name.encode(), sharding_key=keys[place]) for name, place in zip(names, places, strict=True)]
            route = Route(own, queue_of_key) if own else UNKEYED
            pending = PendingSend(messages, route, 100 * len(names), caller, self.now_ms, end_ms, places=places)
            pending.version = self.topic.layout.version if own else None
            self.sends.append(pending)
            machine.add(pending)

    def cancel(self) -> None:
        pending = self.random.choice(self.sends[-8:])
        if not pending.waiter.done():
            pending.waiter.cancelled = True  # type: ignore[attr-defined]
            for other in self.sends:
                if other.waiter is pending.waiter:
                    self.release(self.topic.withdraw(other))

    def deliver(self, *, healed: bool = False) -> bool:
        """Deliver some write, perhaps with a response."""
        carrying = [each for each in self.all if each.coming]
        if not carrying:
            return False
        connection = carrying[0] if healed else self.random.choice(carrying)
        written = connection.coming.pop(0)
        chance = 1.0 if healed else self.random.random()
        code = self.random.choice(REFUSALS) if chance < 0.08 else self.brokers[connection.broker].take(written)
        if code == C.SUCCESS and chance < 0.1:
            code = C.SYSTEM_ERROR  # the handler failed after it had stored the frame
        if connection.open and 0.1 <= chance < 0.22:
            connection.silent.append(written)
        elif connection.open:
            where = {"queueOffset": 1, "physicalOffset": 5, "storeHost": "10.0.0.1:1"}
            self.topic.handle_response(written.machine, written.write.frame, Command(code, remark="no", fields=where), self.now_ms)
        return True

    def close(self, name: str) -> None:
        connection = self.connections[name]
        if connection.open:
            connection.open = False
            for written in connection.silent + connection.coming:
                written.machine.write_lost(written.write.frame, TransportError("closed"))
            self.topic.link_changed(name, up=False)

    def connect(self, name: str) -> None:
        if not self.connections[name].open:
            self.connections[name] = Connection(name)
            self.all.append(self.connections[name])
            self.topic.link_changed(name, up=True)

    def change_layout(self) -> None:
        higher = layout(self.random.randint(1, 3), self.topic.layout.version.counter + 1)
        for name in BROKERS:
            if self.random.random() < 0.8:
                self.brokers[name].layout = higher
        self.topic.adopt(higher, [name for name in BROKERS if self.connections[name].open])

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.35:
            self.send()
        elif chance < 0.65:
            self.deliver()
        elif chance < 0.70 and self.sends:
            self.cancel()
        elif chance < 0.86:
            self.now_ms += self.random.choice([1, 40, 90, 200, 500])
        elif chance < 0.90:
            self.close(self.random.choice(BROKERS))
        elif chance < 0.96:
            self.connect(self.random.choice(BROKERS))
        elif self.layouts:
            self.change_layout()
        self.note()
        if self.random.random() < 0.7:
            self.run()

    def run(self) -> None:
        for _ in range(400):
            due = [machine for machine in self.topic.machines if machine.run_at_ms <= self.now_ms] + self.topic.due
            self.topic.due = []
            if not due:
                return
            for machine in dict.fromkeys(due):
                connection = self.connections[machine.queue.broker_name]
                self.topic.run(machine, self.now_ms, connection if connection.open else None)
                self.note(machine, connection)
        raise AssertionError("it asks to be run again and again")

    def note(self, machine: QueueMachine | None = None, connection: Connection | None = None) -> None:
        effects = [effect for each in self.topic.machines for effect in each.effects]
        for each in self.topic.machines:
            each.effects.clear()
        for effect in effects:
            match effect:
                case Write(frame):
                    assert machine is not None
                    assert connection is not None
                    names = [name for pending in frame.sends for name in names_of(pending)]
                    assert len(names) == frame.sealed.count
                    connection.coming.append(Written(effect, machine, dict(frame.fields), names))
                case Complete(frame):
                    self.end([pending for pending in frame.sends if not pending.failed], STORED)
                    self.release(frame.sends)
                case Fail():
                    self.end(effect.failed, UNKNOWN if effect.outcome is Outcome.UNKNOWN else NOT_STORED)
                    self.release(effect.released)
                    self.end(effect.later, NOT_STORED)
                    self.release(effect.later)
                    if not self.layouts:
                        self.check_behind([name for pending in effect.failed for name in names_of(pending)])
                case Refuse(pending):
                    self.end([pending], NOT_STORED)
                    self.release([pending])
                case Release(sends):
                    self.release(sends)
                case PossibleDuplicates(count):
                    self.may_be_twice += count

    def check_behind(self, failed: list[str]) -> None:
        """After a failed send, every send of its key that was called later has ended too."""
        called = list(self.sent)
        for name in failed:
            for other in called[called.index(name) :]:
                sent = self.sent[other]
                assert sent.key is None or sent.key != self.sent[name].key or sent.ends or sent.caller.cancelled, (name, sent)

    def end(self, sends: list[PendingSend], end: str) -> None:
        for pending in sends:
            if not pending.waiter.done():
                pending.waiter.left -= pending.count  # type: ignore[attr-defined]
                for name in names_of(pending):
                    self.sent[name].ends.append(UNKNOWN if end == NOT_STORED and pending.may_be_stored else end)

    def release(self, sends: list[PendingSend]) -> None:
        for pending in sends:
            for name in names_of(pending):
                self.sent[name].released += 1

    def heal(self) -> None:
        """Connect every broker with the current layout, deliver every write, and advance time until no send is pending."""
        for name in BROKERS:
            self.connect(name)
            self.brokers[name].layout = self.topic.layout
        for _ in range(3_000):
            self.run()
            if self.deliver(healed=True):
                self.note()
            elif all(machine.idle for machine in self.topic.machines):
                return
            else:
                at_ms = min(machine.run_at_ms for machine in self.topic.machines)
                assert at_ms < NEVER_MS, "something waits, and nothing is due"
                self.now_ms = max(self.now_ms + 1, at_ms)
        raise AssertionError("something waits for ever")


@pytest.mark.parametrize("layouts", [False, True])
@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_every_send_ends_once_with_the_correct_outcome_for_any_schedule(first_seed: int, layouts: bool) -> None:
    for seed in range(first_seed, first_seed + 50):
        course = RandomRun(seed, layouts=layouts)
        for _ in range(80):
            course.step()
        course.heal()
        queues = [queue for broker in course.brokers.values() for queue in broker.queues.values()]
        stored = Counter(name for queue in queues for name in queue)
        for name, sent in course.sent.items():
            assert sent.released == 1, (seed, sent)
            assert len(sent.ends) == 1 or (sent.caller.cancelled and not sent.ends), (seed, sent)
            assert NOT_STORED not in sent.ends or not stored[name], (seed, sent)
            assert STORED not in sent.ends or stored[name], (seed, sent)
            assert sent.key is None or stored[name] <= 1, (seed, sent)
        assert sum(count - 1 for count in stored.values()) <= course.may_be_twice, seed
        if not layouts:  # the order of a key ends with its layout
            called = list(course.sent)
            for queue in queues:
                for key in "kjl":
                    places = [called.index(name) for name in queue if course.sent[name].key == key]
                    assert places == sorted(places), (seed, key, queue)

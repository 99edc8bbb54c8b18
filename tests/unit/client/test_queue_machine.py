"""A producer's queue as a state machine: the effects of each input, without event loop, clock or connection."""

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.client.errors import Outcome
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.effects import (
    Complete,
    ExpectLayout,
    Fail,
    PossibleDuplicates,
    RefreshRoute,
    Release,
    SendEffect,
    Write,
)
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.queue_machine import KEYED_RETRY_MS, QueueMachine
from lockstep.client.producer.machines.routing import UNKEYED, Route, queue_of_key, route_of
from lockstep.client.producer.machines.send_fifo import NEVER_MS
from lockstep.client.producer.machines.sequencer import Sequencer
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import RETRY_AFTER_FIELD, Command
from lockstep.protocol.errors import TopicNotExistError, TransportError
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, MessageQueue, TopicLayout
from support.producing import new_encoder

CONFIG = ProducerConfig(attempt_timeout_ms=1_000)
STORED = {"queueOffset": 7, "physicalOffset": 4_711, "storeHost": "10.0.0.1:10911"}
C = ResponseCode


def layout(*brokers: str, queues: int = 1, counter: int = 1) -> TopicLayout:
    return TopicLayout("t", LayoutVersion(counter, 7), tuple(LayoutEntry(name, queues, queues, 1) for name in brokers))


class Connection:
    """An open connection without unsent bytes."""

    backlog_bytes = 0


class Waiter:
    """A waiting caller."""

    cancelled = False

    def done(self) -> bool:
        return self.cancelled


@dataclass
class Topic:
    """A topic machine with its clock and connections; its effects are recorded."""

    machine: TopicMachine
    now_ms: int = 1_000
    connections: dict[str, Connection] = field(default_factory=dict)
    done: list[SendEffect] = field(default_factory=list)

    @classmethod
    def of(cls, *brokers: str, queues: int = 1) -> "Topic":
        made = cls(TopicMachine(layout(*brokers, queues=queues), CONFIG, lambda: Sequencer("0" * 32), new_encoder(), lambda _: 0, brokers))
        made.connections = {name: Connection() for name in brokers}
        return made

    def queue(self, broker: str = "a", number: int = 0) -> QueueMachine:
        machine = self.machine.of_queue(MessageQueue("t", broker, number))
        assert machine is not None
        return machine

    def send(self, body: str, key: str | None = None, *, ms: int = 10_000, broker: str = "a") -> PendingSend:
        """Send to a queue of `broker`. If `key` is given, the send can be routed again by the layout."""
        message, end_ms = Message("t", body.encode(), sharding_key=key), self.now_ms + ms
        pending = PendingSend((message,), route_of(message, None, None), 100, Waiter(), self.now_ms, end_ms)
        pending.version = None if key is None else self.machine.layout.version
        self.queue(broker).add(pending)
        return pending

    def run(self, ms: int = 0) -> list[SendEffect]:
        """Advance by `ms`, then run each queue that is due until none is."""
        self.now_ms += ms
        requested: list[SendEffect] = []
        for _ in range(50):
            due = [one for one in self.machine.machines if one.run_at_ms <= self.now_ms] + self.machine.due
            self.machine.due = []
            if not due:
                break
            for machine in dict.fromkeys(due):
                self.machine.run(machine, self.now_ms, self.connections.get(machine.queue.broker_name))
            requested += self.taken()
        else:
            raise AssertionError("it asks to be run again and again")
        return requested

    def taken(self) -> list[SendEffect]:
        requested: list[SendEffect] = []
        for machine in self.machine.machines:
            requested += machine.effects
            machine.effects.clear()
        self.done += requested
        return requested

    def response(self, write: Write, code: int, remark: str = "", broker: str = "a", **fields: object) -> list[SendEffect]:
        self.machine.handle_response(self.queue(broker), write.frame, Command(code, remark=remark, fields=fields), self.now_ms)
        return self.taken() + self.run()


def only(effects: list[SendEffect], kind: type) -> list[SendEffect]:
    return [effect for effect in effects if type(effect) is kind]


def write_of(effects: list[SendEffect]) -> Write:
    (write,) = only(effects, Write)
    assert isinstance(write, Write)
    return write


def fail_of(effects: list[SendEffect]) -> Fail:
    (fail,) = only(effects, Fail)
    assert isinstance(fail, Fail)
    return fail


def names(sends: list[PendingSend]) -> list[object]:
    return [pending.messages[0].body.decode() for pending in sends]


def test_pending_sends_leave_in_one_frame_and_sends_in_the_meantime_in_the_next() -> None:
    topic = Topic.of("a")
    for body in "12":
        topic.send(body)
    assert topic.queue().run_at_ms == 0
    first = write_of(topic.run())
    assert (names(first.frame.sends), first.timeout_ms) == (["1", "2"], 10_000)
    topic.send("3")
    assert topic.run() == [], "one frame is in flight"
    done = topic.response(first, C.SUCCESS, **STORED)
    (complete,) = only(done, Complete)
    assert isinstance(complete, Complete)
    assert (complete.result.first_offset, names(complete.frame.sends)) == (7, ["1", "2"])
    assert names(write_of(done).frame.sends) == ["3"]


def test_no_run_is_due_once_all_sends_are_stored() -> None:
    topic = Topic.of("a")
    topic.send("1")
    topic.response(write_of(topic.run()), C.SUCCESS, **STORED)
    assert (topic.queue().run_at_ms, topic.queue().idle, topic.machine.due) == (NEVER_MS, True, [])


@pytest.mark.parametrize("code", [C.SUCCESS, C.FLUSH_DISK_TIMEOUT, C.SLAVE_NOT_AVAILABLE, C.FLUSH_SLAVE_TIMEOUT, C.DUPLICATE])
def test_codes_that_mean_stored_complete_the_frame(code: int) -> None:
    topic = Topic.of("a")
    topic.send("1", "k")
    done = topic.response(write_of(topic.run()), code, **STORED)
    assert [type(effect) for effect in done] == [Complete]


@pytest.mark.parametrize("unanswered_before", [False, True])
@pytest.mark.parametrize(
    ("code", "again", "route"),
    [
        (C.SYSTEM_ERROR, True, False),
        (C.SYSTEM_BUSY, True, False),
        (C.SERVICE_NOT_AVAILABLE, True, False),
        (C.NOT_LEADER, True, True),
        (C.NOT_ENOUGH_REPLICAS, True, True),
        (C.TOPIC_NOT_EXIST, True, True),
        (C.NO_PERMISSION, False, False),
        (C.MESSAGE_ILLEGAL, False, False),
    ],
)
def test_keyed_frame_is_retried_or_fails_by_the_response_code_and_never_moves(
    code: int, again: bool, route: bool, unanswered_before: bool
) -> None:
    topic = Topic.of("a", "b")
    topic.send("1", "k")
    write = write_of(topic.run())
    if unanswered_before:
        write = write_of(topic.run(1_000))
    done = topic.response(write, code, "no")
    assert bool(only(done, RefreshRoute)) is route
    if again:
        assert only(done, Fail) == []
        again_write = write_of(topic.run(1_000))
        assert again_write.frame.sealed is write.frame.sealed, "the same bytes, the same sequence"
    else:
        fail = fail_of(done)
        assert (names(fail.failed), fail.keys) == (["1"], {"k"})
        assert fail.outcome is (Outcome.UNKNOWN if unanswered_before else Outcome.NOT_STORED)
    assert only(topic.done, PossibleDuplicates) == []


@pytest.mark.parametrize("code", [C.SERVICE_NOT_AVAILABLE, C.LAYOUT_STALE])
def test_refused_unkeyed_frame_moves_to_another_broker_immediately(code: int) -> None:
    topic = Topic.of("a", "b")
    topic.send("1")
    done = topic.response(write_of(topic.run()), code, "full")
    assert names(write_of(done).frame.sends) == ["1"]
    assert write_of(done).frame.fields["queueId"] == 0
    assert topic.queue("a").idle
    assert not topic.queue("b").idle
    assert only(topic.done, PossibleDuplicates) == [], "it is certainly not stored"


def test_unkeyed_frame_without_response_moves_after_half_its_time_as_a_possible_duplicate() -> None:
    topic = Topic.of("a", "b")
    topic.send("1", ms=4_000)
    topic.run()
    written = [write_of(topic.run(1_000)).frame]
    assert names(written[0].sends) == ["1"]
    done = topic.run(1_000)
    assert only(done, PossibleDuplicates) == [PossibleDuplicates(1)]
    assert names(write_of(done).frame.sends) == ["1"]
    assert write_of(done).frame is not written[0]
    assert topic.queue("a").idle


def test_retry_waits_for_the_brokers_retry_after() -> None:
    topic = Topic.of("a")
    topic.send("1")
    topic.response(write_of(topic.run()), C.SYSTEM_BUSY, "busy", **{RETRY_AFTER_FIELD: 400})
    assert topic.run(399) == []
    assert topic.queue().run_at_ms == topic.now_ms + 1
    assert names(write_of(topic.run(1)).frame.sends) == ["1"]


@pytest.mark.parametrize("code", [C.OUT_OF_SEQUENCE, C.STALE_EPOCH])
def test_lost_suffix_starts_a_new_epoch_with_the_same_records(code: int) -> None:
    topic = Topic.of("a")
    topic.send("1")
    topic.response(write_of(topic.run()), C.SUCCESS, **STORED)
    topic.send("2")
    write = write_of(topic.run())
    assert (write.frame.sealed.epoch, write.frame.sealed.first) == (0, 1)
    again = write_of(topic.response(write, code, "lost"))
    assert (again.frame.sealed.epoch, again.frame.sealed.first, names(again.frame.sends)) == (1, 0, ["2"])


@pytest.mark.parametrize("answered", [True, False])
def test_frame_that_had_no_response_before_its_stream_was_lost_may_have_been_stored(answered: bool) -> None:
    """Its message may have been read before the broker lost it, or before its topic was deleted."""
    topic = Topic.of("a")
    pending = topic.send("1", "k")
    write = write_of(topic.run())
    if not answered:
        topic.queue().write_lost(write.frame, ConnectionError("closed"))
        write = write_of(topic.run(1_000))
    write_of(topic.response(write, C.OUT_OF_SEQUENCE, "lost"))
    assert pending.may_be_stored is not answered


def test_illegal_message_fails_alone_out_of_its_frame() -> None:
    topic = Topic.of("a")
    for body in ("1", "bad", "3"):
        topic.send(body, body)
    done = topic.response(write_of(topic.run()), C.MESSAGE_ILLEGAL, "bad")
    ends: dict[object, str] = {}
    for _ in range(3):
        write = write_of(done)
        (pending,) = write.frame.sends
        name = pending.messages[0].body.decode()
        bad = name == "bad"
        ends[name] = "refused" if bad else "stored"
        done = topic.response(write, C.MESSAGE_ILLEGAL if bad else C.SUCCESS, "bad", **STORED)
    assert ends == {"1": "stored", "bad": "refused", "3": "stored"}
    assert [names(effect.failed) for effect in topic.done if isinstance(effect, Fail)] == [["bad"]]


def test_sends_refused_as_layout_stale_are_rerouted_before_pending_sends() -> None:
    topic = Topic.of("a")
    topic.send("1", "k")
    write = write_of(topic.run())
    topic.send("2", "k")
    done = topic.response(write, C.LAYOUT_STALE, "older")
    assert only(done, ExpectLayout) == [ExpectLayout(LayoutVersion(1, 7))]
    assert only(done, Write) == [], "keyed sends wait for the higher layout"
    topic.machine.adopt(layout("a", queues=2, counter=2), ["a"])
    written = [effect for effect in topic.taken() + topic.run() if isinstance(effect, Write)]
    assert [names(effect.frame.sends) for effect in written] == [["1", "2"]]
    assert written[0].frame.fields["layoutCounter"] == 2
    assert written[0].frame.fields["queueId"] == queue_of_key(topic.machine.layout, "k").queue_id


def test_wait_for_a_higher_layout_is_limited() -> None:
    topic = Topic.of("a")
    topic.send("1", "k", ms=30_000)
    topic.response(write_of(topic.run()), C.LAYOUT_STALE, "older")
    assert topic.run(KEYED_RETRY_MS - 1) == []
    assert names(write_of(topic.run(1)).frame.sends) == ["1"]


def test_send_that_expires_in_flight_fails_as_unknown_with_later_sends_of_its_key_and_its_frame_continues() -> None:
    topic = Topic.of("a")
    for body, key, ms in (("1", "k", 300), ("2", "k", 9_000), ("3", "j", 9_000)):
        topic.send(body, key, ms=ms)
    write = write_of(topic.run())
    topic.send("4", "k")
    fail = fail_of(topic.run(300))
    assert (names(fail.failed), fail.outcome, names(fail.later), fail.released) == (["1", "2"], Outcome.UNKNOWN, ["4"], [])
    again = topic.send("5", "k")
    done = topic.response(write, C.SUCCESS, **STORED)
    (complete,) = only(done, Complete)
    assert isinstance(complete, Complete)
    assert [pending.failed for pending in complete.frame.sends] == [True, True, False]
    assert write_of(done).frame.sends == [again], "it was called after the failure"


def test_unkeyed_sends_move_and_keyed_sends_wait_without_a_connection() -> None:
    topic = Topic.of("a", "b")
    topic.machine.link_changed("a", up=False)
    del topic.connections["a"]
    topic.send("keyed", "k")
    topic.send("unkeyed")
    assert names(write_of(topic.run()).frame.sends) == ["unkeyed"]
    assert not topic.queue("b").idle
    topic.connections["a"] = Connection()
    topic.machine.link_changed("a", up=True)
    assert names(write_of(topic.run()).frame.sends) == ["keyed"]


def test_send_that_is_never_written_does_not_fail_by_the_refusal_of_an_earlier_one() -> None:
    topic = Topic.of("a")
    topic.send("x", key="k")
    refused = topic.response(write_of(topic.run()), C.NO_PERMISSION, "user billing may not Pub topic:t")
    assert str(fail_of(refused).cause) == "NO_PERMISSION: user billing may not Pub topic:t"
    topic.machine.link_changed("a", up=False)
    del topic.connections["a"]
    topic.send("y", key="k", ms=3_000)
    assert fail_of(topic.run(3_000)).cause is None


def test_frame_lost_with_its_connection_is_resent_on_the_next_and_may_be_stored() -> None:
    topic = Topic.of("a")
    topic.send("1", "k", ms=5_000)
    write = write_of(topic.run())
    topic.queue().write_lost(write.frame, TransportError("closed"))
    topic.machine.link_changed("a", up=False)
    del topic.connections["a"]
    assert topic.run() == []
    topic.connections["a"] = Connection()
    topic.machine.link_changed("a", up=True)
    assert write_of(topic.run()).frame is write.frame
    topic.queue().write_lost(write.frame, TransportError("closed"))
    del topic.connections["a"]
    fail = fail_of(topic.run(5_000))
    assert (fail.outcome, names(fail.released)) == (Outcome.UNKNOWN, ["1"])


def test_cancelled_send_is_withdrawn_only_before_it_is_written() -> None:
    topic = Topic.of("a")
    written = topic.send("1")
    topic.run()
    waits = topic.send("2")
    withdrawn: list[PendingSend] = []
    for pending in (written, waits):
        pending.waiter.cancelled = True  # type: ignore[attr-defined]
        withdrawn += topic.machine.withdraw(pending)
    assert withdrawn == [waits]


@pytest.mark.parametrize("refused", [True, False])
def test_expiry_of_a_send_cancelled_in_flight_does_not_fail_later_sends(refused: bool) -> None:
    topic = Topic.of("a")
    first = topic.send("1", "k", ms=300)
    write = write_of(topic.run())
    second = topic.send("2", "k", ms=9_000)
    first.waiter.cancelled = True  # type: ignore[attr-defined]
    topic.machine.withdraw(first)
    if refused:
        topic.response(write, C.SYSTEM_BUSY, "busy", **{RETRY_AFTER_FIELD: 1_000})
    ended = topic.run(300) + topic.run(50) + topic.run(900)
    assert [pending for effect in ended if isinstance(effect, Fail) for pending in [*effect.failed, *effect.later]] == []
    assert write_of(ended).frame.sends == [second]
    released = [effect.released if isinstance(effect, Fail) else effect.sends for effect in ended if isinstance(effect, Fail | Release)]
    assert [pending for sends in released for pending in sends] == [first]


def test_deletion_of_the_topic_fails_pending_sends_as_not_stored() -> None:
    topic = Topic.of("a")
    topic.send("in flight", "k")
    write = write_of(topic.run())
    topic.send("waits", "j")
    topic.machine.adopt(layout(counter=2), [])
    assert names(fail_of(topic.run()).failed) == ["waits"]
    assert topic.response(write, C.SUCCESS, **STORED)
    assert topic.queue().idle


def test_first_send_to_a_queue_of_a_deleted_topic_fails_as_not_stored() -> None:
    topic = Topic.of("a", queues=2)
    topic.send("1")
    topic.response(write_of(topic.run()), C.SUCCESS, **STORED)
    topic.machine.adopt(layout(counter=2), [])
    topic.taken()
    late = PendingSend((Message("t", b"late"),), UNKEYED, 100, Waiter(), topic.now_ms, topic.now_ms + 1_000)
    topic.queue(number=1).add(late)
    fail = fail_of(topic.run())
    assert (fail.failed, fail.outcome, type(fail.cause)) == ([late], Outcome.NOT_STORED, TopicNotExistError)


# ------------------------------------------------------------------------------------------------------------------ any sequence

CODES = [C.SUCCESS, C.SYSTEM_ERROR, C.SYSTEM_BUSY, C.NO_PERMISSION, C.MESSAGE_ILLEGAL, C.OUT_OF_SEQUENCE, C.LAYOUT_STALE]
STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from([None, "k", "j"]), st.sampled_from([50, 700, 4_000])),
    st.tuples(st.just("response"), st.sampled_from(CODES), st.just(0)),
    st.tuples(st.just("lose"), st.just(None), st.just(0)),
    st.tuples(st.just("cancel"), st.just(None), st.integers(0, 20)),
    st.tuples(st.just("pass"), st.just(None), st.sampled_from([1, 60, 500, 1_500])),
    st.tuples(st.just("link"), st.sampled_from(["a", "b"]), st.integers(0, 1)),
    st.tuples(st.just("layout"), st.just(None), st.integers(1, 3)),
)


@given(st.lists(STEPS, max_size=60))
@settings(max_examples=300, deadline=None)
def test_every_send_ends_once_and_each_queue_has_at_most_one_frame_in_flight(steps: list[tuple[str, object, int]]) -> None:
    """For any sequence of inputs: released once, completed at most once, by its deadline."""
    topic, sent, counter = Topic.of("a", "b", queues=2), list[PendingSend](), 1
    open_writes: list[tuple[QueueMachine, Write]] = []
    ended: dict[int, int] = {}
    released: dict[int, int] = {}

    def note(effects: list[SendEffect]) -> None:
        for effect in effects:
            match effect:
                case Write():
                    (machine,) = [one for one in topic.machine.machines if one._frame is effect.frame]
                    open_writes.append((machine, effect))
                case Complete():
                    for pending in effect.frame.sends:
                        released[id(pending)] = released.get(id(pending), 0) + 1
                        if not pending.failed:
                            ended[id(pending)] = ended.get(id(pending), 0) + 1
                case Fail():
                    for pending in [*effect.failed, *effect.later]:
                        ended[id(pending)] = ended.get(id(pending), 0) + 1
                    for pending in [*effect.released, *effect.later]:
                        released[id(pending)] = released.get(id(pending), 0) + 1
                case Release():
                    for pending in effect.sends:
                        released[id(pending)] = released.get(id(pending), 0) + 1

    for kind, what, number in steps:
        if kind == "send":
            assert what is None or isinstance(what, str)
            machine = topic.machine.machine_for(UNKEYED if what is None else Route((what,), queue_of_key), topic.now_ms)
            message = Message("t", b"x", sharding_key=what)
            route = route_of(message, None, None)
            sent.append(PendingSend((message,), route, 100, Waiter(), topic.now_ms, topic.now_ms + number))
            sent[-1].version = None if what is None else topic.machine.layout.version
            machine.add(sent[-1])
        elif kind == "response" and open_writes:
            assert isinstance(what, int)
            machine, write = open_writes.pop(0)
            topic.machine.handle_response(machine, write.frame, Command(what, remark="no", fields=STORED), topic.now_ms)
        elif kind == "lose" and open_writes:
            machine, write = open_writes.pop()
            machine.write_lost(write.frame, TransportError("closed"))
        elif kind == "cancel" and number < len(sent):
            sent[number].waiter.cancelled = True  # type: ignore[attr-defined]
            for pending in topic.machine.withdraw(sent[number]):
                released[id(pending)] = released.get(id(pending), 0) + 1
        elif kind == "link":
            assert isinstance(what, str)
            if number:
                topic.connections.setdefault(what, Connection())
            else:
                topic.connections.pop(what, None)
            topic.machine.link_changed(what, up=bool(number))
        elif kind == "layout":
            counter += 1
            topic.machine.adopt(layout("a", "b", queues=number, counter=counter), list(topic.connections))
        note(topic.taken())
        note(topic.run(number if kind == "pass" else 0))
        frames = [one._frame for one in topic.machine.machines if one._frame is not None]
        assert len({id(pending) for frame in frames for pending in frame.sends}) == sum(len(frame.sends) for frame in frames)
    for machine, write in open_writes:
        machine.write_lost(write.frame, TransportError("closed"))
    topic.connections.clear()
    for _ in range(12):
        note(topic.run(1_000))
    for pending in sent:
        cancelled = pending.waiter.done()
        assert released.get(id(pending), 0) == 1, "what counts as in flight is released once"
        assert ended.get(id(pending), 0) == 1 or (cancelled and ended.get(id(pending), 0) <= 1)
    assert all(machine.idle for machine in topic.machine.machines)


async def test_queue_machine_requires_no_event_loop() -> None:
    """The machine is run in a thread without a loop."""
    await asyncio.to_thread(test_pending_sends_leave_in_one_frame_and_sends_in_the_meantime_in_the_next)

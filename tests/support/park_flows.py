"""One queue with parked keys: its broker and its owner are those of the product, and what is around them is here.

The broker is `Parking` over the real tables, the owner `ParkMachine` with the real `Lanes` and `ProcessQueue`. Here are the network, in
which requests and responses are lost, the log that forgets what it has not synced, pulls that are held or on their way, the listener, and
deaths. After each step the laws hold:

    P-K1  a later message of a key is not accepted before an earlier one, so none is left out by both flows
    P-K2  what was accepted comes again only if that was not committed
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum

from lockstep.broker.groups.group_state import GroupState
from lockstep.broker.groups.group_tables import CoordinationConfig
from lockstep.broker.groups.parking import Parking
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.park_table import KeyFilter, ParkFilter, ParkTable
from lockstep.broker.groups.tables.progress_table import Progress
from lockstep.broker.journal import Journal, decode_changes
from lockstep.client.consumer.calls.lanes import KeyLane, Lanes
from lockstep.client.consumer.calls.parking.effects import (
    Effect,
    EndStaleGrant,
    LetPull,
    PassOn,
    Pause,
    PullPage,
    RequestLocks,
    RunSoon,
    SendParkEnd,
    StopPull,
    TakeBack,
    WakeRunner,
)
from lockstep.client.consumer.calls.parking.machine import Conditions, ParkMachine
from lockstep.client.consumer.calls.parking.park_request import ParkOutcome, ParkRequest
from lockstep.client.consumer.calls.parking.replay import Replay
from lockstep.client.consumer.calls.process_queue import FlowLimits, ProcessQueue
from lockstep.protocol.bodies import Limits, ParkState
from lockstep.protocol.done_ranges import Ranges, contains
from lockstep.protocol.errors import ParkRefusedError, TransportError
from lockstep.protocol.headers.park import ParkEndHeader, ParkEndReply, ParkHeader
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.properties import encode_properties
from lockstep.protocol.topics.layouts import LayoutTable
from lockstep.testing import message

QUEUE: QueueKey = ("billing", "orders", 0)
LIMITS = FlowLimits(count_max=1_000, bytes_max=1 << 30, span_max=10_000)
CONFIG = CoordinationConfig("broker-a", Limits(1 << 24, 1 << 18, 1 << 22))
NOW = Conditions(held=True, paused=False, connected=True)
PAGE = 4


class LawBrokenError(AssertionError):
    """A law does not hold."""


def law(holds: bool, otherwise: str) -> None:
    """Raise LawBrokenError unless the law holds."""
    if not holds:
        raise LawBrokenError(otherwise)


class Fate(Enum):
    """What becomes of a request."""

    ANSWERED = "answered"
    LOST = "its response is lost, with the connection"
    UNDELIVERED = "it does not arrive, and the connection is lost"


def stored(key: str | None) -> bytes:
    """Return a message's stored properties, as predicates get them."""
    return b"\x02" + (b"" if key is None else encode_properties({"__SHARDINGKEY": key}))


@dataclass
class Reading:
    """A pull that was read, and has no response."""

    hidden: ParkFilter | None
    found: list[int]
    end: int


@dataclass
class Call:
    """A call of the listener with one message."""

    lane: KeyLane
    batch: list[MessageExt]
    replay: Replay | None
    request: ParkRequest | None = None
    """The PARK of the message, while it has no response."""

    @property
    def offset(self) -> int:
        return self.batch[0].queue_offset


class Owner:
    """One grant."""

    def __init__(self, offset: int, done: Ranges) -> None:
        self.queue = ProcessQueue(offset, 0, LIMITS, done)
        self.machine = ParkMachine(self.queue)
        self.lanes = Lanes(offset, 0, unkeyed_together=False)
        self.calls: dict[str | int | None, Call] = {}
        """Lane → the call that runs."""
        self.accepted: set[int] = set()
        """Offsets that were accepted in the main flow."""
        self.replayed: set[int] = set()
        """Offsets that were accepted in replays."""
        self.due: dict[Replay, None] = {}
        """The replays whose turn or pause has come."""
        self.requests: dict[Replay, PullPage | SendParkEnd] = {}
        """Requests that have no response."""
        self.pull_stops = 0
        self.answers: deque[tuple[list[int], int]] = deque()
        """(offsets, end) of answered pulls that have not arrived."""

    @property
    def replays(self) -> dict[str | int | None, Replay]:
        return self.machine.replays

    @property
    def unsure(self) -> list[str]:
        """Return the keys whose PARK has no response."""
        return [str(key) for key, call in self.calls.items() if call.request is not None]


class Flows:
    """`held_pulls_count`: the broker notes what a held pull has passed (PullProcessor, in the product)."""

    def __init__(self, *, held_pulls_count: bool = True) -> None:
        self.keys: list[str | None] = []
        self.log: list[bytes] = []
        """The synced records of the journal."""
        self.reading: Reading | None = None
        self.held: int | None = None
        """The offset of a pull that is held."""
        self.owner: Owner | None = None
        self.accepted: list[int] = []
        """Offsets that the listener has accepted, in either flow."""
        self.copied: list[int] = []
        self.certain: set[int] = set()
        """Offsets that the broker knows as accepted, whatever happens."""
        self.now = NOW
        self._promised: set[int] = set()
        self._held_pulls_count = held_pulls_count
        self._start_broker()
        self.state.progress.set_progress(QUEUE, Progress(1, 0))
        self.sync()

    # ------------------------------------------------------------------------------------------------------------- broker

    def _start_broker(self) -> None:
        self.state = GroupState(CONFIG, LayoutTable(), self, Journal())
        self.parking = Parking(self.state)
        for record in self.log:
            for change in decode_changes(record):
                (self.state.parks if change[0].startswith("park.") else self.state.progress).apply(change)

    @property
    def table(self) -> ParkTable:
        return self.state.parks

    @property
    def progress(self) -> Progress:
        found = self.state.progress.get(QUEUE)
        assert found is not None
        return found

    @property
    def end(self) -> int:
        return len(self.keys)

    def bounds(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, self.end

    def end_offset(self, topic: str, queue_id: int) -> int:
        return self.end

    def produce(self, *keys: str | None) -> None:
        self.keys += keys

    def sync(self) -> None:
        """Sync the log: what the tables say now outlives a crash."""
        self.log += self.state.journal.encode(1 << 30)
        self.certain |= self._promised
        self._promised.clear()

    def crash(self) -> None:
        """Kill the broker: what is not synced is gone, and so are the connections and the memory of what pulls have passed."""
        self._promised.clear()
        self._start_broker()
        self.disconnect()

    def disconnect(self) -> None:
        """End the owner's connection: its pull, its requests and the answers that have not arrived are gone."""
        self.reading = self.held = None
        if self.owner is not None:
            self.owner.answers.clear()
            for replay in list(self.owner.requests):
                self._report(replay, TransportError("the connection is lost"))

    def select(self, offset: int, hidden: ParkFilter | KeyFilter | None, examined: int = 1_000) -> tuple[list[int], int]:
        """Return the offsets that pass a filter, at most PAGE of them, and the end of what was examined."""
        found: list[int] = []
        end = min(self.end, offset + examined)
        while offset < end and len(found) < PAGE:
            if hidden is None or hidden.keep(stored(self.keys[offset]), offset):
                found.append(offset)
            offset += 1
        return found, offset

    def copy(self) -> None:
        """Copy a page of each key that is dropped to the dead-letter topic, and end the drops that no owner ends."""
        for row in list(self.table):
            if row.state is not ParkState.DROPPING:
                continue
            found, end = self.select(row.next, KeyFilter(row.key))
            for offset in found:
                law(offset not in self.certain, f"{offset} was committed, and is copied")
                self._handle(offset)
                self.copied.append(offset)
            if end > row.next:
                self.table.advance(row, end)
            elif self.owner is None:
                self.parking.end_unpolled_drop(row)

    # ---------------------------------------------------------------------------------------------------------- main flow

    def pull(self) -> None:
        """Read a page for the owner's next pull. It may wait for the disk until `answer`."""
        assert self.owner is not None
        assert self.reading is None
        assert not self.owner.answers
        offset = self.owner.queue.next_offset if self.held is None else self.held
        hidden = self.parking.filter(QUEUE)
        self.reading = Reading(hidden, *self.select(offset, hidden))

    def answer(self) -> None:
        """Answer the pull that was read, or hold it if it found nothing. Read it again if it must not be answered."""
        reading, self.reading = self.reading, None
        assert reading is not None
        assert self.owner is not None
        if (reading.found or self._held_pulls_count) and not self.parking.note_passed(QUEUE, reading.hidden, reading.end):
            self.pull()
            return self.answer()
        if reading.found:
            self.held = None
            self.owner.answers.append((reading.found, reading.end))
        else:
            self.held = reading.end

    def expire(self) -> None:
        """Answer a held pull at its deadline."""
        assert self.owner is not None
        assert self.held is not None
        self.owner.answers.append(([], self.held))
        self.held = None

    def arrive(self) -> None:
        """Let the owner receive an answer, and take its messages if it may."""
        assert self.owner is not None
        offsets, end = self.owner.answers.popleft()
        found = [message("orders", b"%d" % each, sharding_key=self.keys[each], queue_offset=each) for each in offsets]
        self.owner.queue.put(found, end, 100)
        self._take()

    def _take(self) -> None:
        owner = self.owner
        assert owner is not None
        if owner.queue.waiting and owner.machine.may_take:
            kept, left_out = owner.machine.split(owner.queue.take(owner.queue.waiting))
            owner.lanes.put(kept)
            owner.queue.finish(left_out)

    def callable(self) -> list[str | int]:
        """Return the lanes that have a call of the main flow, or may have one, and no PARK without a response."""
        owner = self.owner
        assert owner is not None
        ready = [lane.key for lane in owner.lanes._ready if lane.key not in owner.replays]
        running = [key for key, call in owner.calls.items() if call.replay is None and call.request is None]
        return [key for key in (*running, *ready) if key is not None]

    def _begin_call(self, lane: str | int) -> Call:
        """Return the call of a lane. Calls of lanes that are ready before it begin as well."""
        owner = self.owner
        assert owner is not None
        while lane not in owner.calls:
            taken = owner.lanes.take(1)
            assert taken is not None, lane
            owner.calls[taken[0].key] = Call(*taken, owner.replays.get(taken[0].key))
        return owner.calls[lane]

    def call(self, lane: str | int) -> None:
        """Let the listener accept the next message of a lane."""
        owner = self.owner
        assert owner is not None
        call = self._begin_call(lane)
        del owner.calls[lane]
        self._accept(call.offset)
        if call.replay is None:
            owner.accepted.add(call.offset)
            owner.queue.finish(call.batch)
        else:
            owner.replayed.add(call.offset)
            owner.machine.accepted(call.replay, call.batch)
        owner.lanes.finished(call.lane, call.batch)
        self._carry_out()

    def fail(self, lane: str, fate: Fate = Fate.ANSWERED) -> None:
        """Let the next message of a lane, of either flow, fail for the last time: its key is parked, unless it is not called again."""
        owner = self.owner
        assert owner is not None
        call = self._begin_call(lane)
        if self._is_due(call):
            call.request = ParkRequest()
            owner.machine.park_begins(call.batch[0])
            self.park_again(lane, fate)
        else:
            del owner.calls[lane]
            owner.lanes.finished(call.lane, call.batch)

    def park_again(self, key: str, fate: Fate = Fate.ANSWERED) -> None:
        """Send a PARK, or repeat one that has no response."""
        owner = self.owner
        assert owner is not None
        call = owner.calls[key]
        assert call.request is not None
        if fate is not Fate.UNDELIVERED:
            self.parking.park(ParkHeader(*QUEUE, 0, call.offset, 3, "poisoned"), key.encode(), 0)
        if fate is Fate.ANSWERED:
            self.sync()
        else:
            self.disconnect()
        outcome = call.request.outcome(None if fate is Fate.ANSWERED else TransportError("no response"))
        if outcome is None:
            return
        call.request = None
        del owner.calls[key]
        owner.machine.park_ended(call.batch[0])
        if outcome is ParkOutcome.PARKED:
            self._parked(key, call)
        elif self._is_due(call):
            owner.lanes.failed(call.lane, call.batch, 0)
            owner.lanes.wake(0)
        else:
            owner.lanes.finished(call.lane, call.batch)
        self._carry_out()

    def _is_due(self, call: Call) -> bool:
        """Return whether the message of a failed call is called again (LaneRunner._due)."""
        owner = self.owner
        assert owner is not None
        if call.replay is not None:
            if call.replay.drop:
                owner.machine.left_out(call.replay, 1)
                self._carry_out()
            return owner.machine.goes_on(call.replay) and not call.replay.drop
        due, left_out = owner.machine.split(call.batch)
        owner.queue.finish(left_out)
        return bool(due)

    def _parked(self, key: str, call: Call) -> None:
        """Leave a parked key out (LaneRunner._park)."""
        owner = self.owner
        assert owner is not None
        replayed = key in owner.replays
        owner.machine.parked(key)
        waiting = owner.lanes.leave_out(key)
        owner.lanes.finished(call.lane, call.batch)
        if replayed:
            waiting = []
            owner.machine.effects.append(RequestLocks())
        owner.queue.finish(waiting if call.replay is not None else [*call.batch, *waiting])

    def commit(self, fate: Fate = Fate.ANSWERED) -> None:
        """Let the owner commit its progress, with what it has finished above it."""
        owner = self.owner
        assert owner is not None
        offset = owner.queue.commit_offset
        done = owner.machine.done_ranges(offset)
        if fate is not Fate.UNDELIVERED:
            self.state.progress.record_commit(QUEUE, offset, 0, 0, None, done)
            self._promised |= {each for each in owner.accepted if each < offset or contains(done, each)}
        if fate is Fate.ANSWERED:
            self.sync()
        else:
            self.disconnect()

    # ------------------------------------------------------------------------------------------------------------ replays

    def replay(self, key: str) -> None:
        """Let an operator replay a key, if it is parked."""
        self._set_state(key, ParkState.REPLAYING)

    def drop(self, key: str) -> None:
        self._set_state(key, ParkState.DROPPING)

    def _set_state(self, key: str, state: ParkState) -> None:
        row = self.table.get(QUEUE, key)
        if row is not None and row.state not in (ParkState.ENDED, ParkState.DROPPING):
            self.table.set_state(row, state)
            self.learn()

    def learn(self) -> None:
        """Let the owner learn by LOCK which keys it has to replay or to drop."""
        self.sync()
        owner = self.owner
        if owner is None:
            return
        for each in owner.machine.startable(self.table.replays(QUEUE)):
            if each.key not in owner.replays:
                owner.queue.finish(owner.lanes.leave_out(each.key))
            owner.machine.start(each)
        self._carry_out()

    def change(self, now: Conditions) -> None:
        """Pause or resume the consumer, or drain the queue or hold it again."""
        self.now = now
        if self.owner is not None:
            self.owner.machine.wake()
            self._carry_out()

    def run(self, key: str) -> PullPage | SendParkEnd | None:
        """Let time pass for a replay: its turn comes, and its pause ends. Return its request."""
        owner = self.owner
        assert owner is not None
        replay = owner.replays[key]
        while replay in owner.due:
            del owner.due[replay]
            owner.machine.run(replay, self.now)
            self._carry_out()
        return owner.requests.get(replay)

    def serve(self, key: str, fate: Fate = Fate.ANSWERED, examined: int = 1_000) -> None:
        """Let the broker answer the request of a replay. It examines at most so many messages for a pull."""
        request = self.run(key)
        assert request is not None, key
        result: tuple[list[MessageExt], int] | ParkEndReply | ParkRefusedError | None = None
        if isinstance(request, PullPage):
            offsets, end = self.select(request.offset, KeyFilter(key), examined)
            result = [message("orders", b"%d" % each, sharding_key=key, queue_offset=each) for each in offsets], end
        elif fate is not Fate.UNDELIVERED:
            result = self._end(request)
        if fate is not Fate.ANSWERED or result is None:
            self.disconnect()
            return
        self.sync()
        self._report(request.replay, result)

    def _end(self, request: SendParkEnd) -> ParkEndReply | ParkRefusedError:
        """Handle PARK_END at the broker."""
        key = request.replay.key
        try:
            reply = self.parking.commit_replay(ParkEndHeader(*QUEUE, 0, key, request.next, request.pulled))
        except ParkRefusedError as error:
            return error.with_traceback(None)
        row = self.table.get(QUEUE, key)
        if self.owner is not None and row is not None and row.state is not ParkState.DROPPING:
            self._promised |= {each for each in self.owner.replayed if self.keys[each] == key and each < request.next}
        return reply

    def _report(self, replay: Replay, result: "tuple[list[MessageExt], int] | ParkEndReply | ParkRefusedError | TransportError") -> None:
        """Let the owner know what became of a replay's request."""
        owner = self.owner
        assert owner is not None
        owner.requests.pop(replay, None)
        if isinstance(result, ParkEndReply):
            owner.machine.answered(replay, result, self.now)
        elif isinstance(result, tuple):
            owner.machine.page_read(replay, result, self.now)
        else:
            owner.machine.failed(replay, result, self.now)
        self._carry_out()

    def _carry_out(self) -> None:
        owner = self.owner
        assert owner is not None
        while owner.machine.effects:
            self._carry_out_one(owner, owner.machine.effects.pop(0))

    def _carry_out_one(self, owner: Owner, effect: Effect) -> None:
        match effect:
            case RunSoon(replay) | Pause(replay):
                owner.due[replay] = None
            case PullPage(replay) | SendParkEnd(replay):
                assert replay not in owner.requests
                owner.requests[replay] = effect
            case PassOn(key, found):
                owner.lanes.put_replayed(key, found)
            case TakeBack(replay):
                owner.machine.left_out(replay, owner.lanes.take_back(replay.key))
            case StopPull():
                owner.pull_stops += 1
            case LetPull():
                owner.pull_stops -= 1
            case WakeRunner():
                self._take()
            case RequestLocks():
                self.learn()
            case EndStaleGrant():
                raise AssertionError("no grant ends here without its owner")

    def read_replay(self, key: str, examined: int = 1_000) -> None:
        """Let the owner read a page of a key that it replays."""
        assert isinstance(self.run(key), PullPage)
        self.serve(key, examined=examined)

    def call_replay(self, key: str, fate: Fate = Fate.ANSWERED) -> None:
        """Let the listener accept the next message of a replay, and commit that."""
        self.call(key)
        self.serve(key, fate)

    def replayable(self, key: str) -> bool:
        """Return whether the listener may be called with a message of a replay."""
        owner = self.owner
        assert owner is not None
        if (call := owner.calls.get(key)) is not None:
            return call.replay is owner.replays.get(key) and call.request is None
        return key in owner.replays and any(lane.key == key for lane in owner.lanes._ready)

    def may_end(self, key: str) -> bool:
        """Return whether the owner asks for the end of a replay now."""
        request = self.run(key)
        return isinstance(request, SendParkEnd) and request.pulled is not None

    def end_replay(self, key: str, fate: Fate = Fate.ANSWERED) -> None:
        """Let the owner ask for the end of a replay, or repeat that after a request without a response."""
        assert self.may_end(key)
        self.serve(key, fate)

    # -------------------------------------------------------------------------------------------------------------- owners

    def start_owner(self) -> Owner:
        self.kill_owner()
        self.sync()
        self.owner = Owner(self.progress.offset, self.progress.done)
        self.learn()
        return self.owner

    def kill_owner(self) -> None:
        if self.owner is not None:
            self.owner.machine.stop()
        self.disconnect()
        self.owner = None

    def go_on(self) -> None:
        """Let everything that is under way come to its end, with an owner whose calls succeed."""
        self.change(NOW)
        for key in {row.key for row in self.table if row.state is ParkState.PARKED}:
            self.replay(key)
        for _ in range(20 * self.end + 20):
            if self._step():
                return
        left = f"progress {self.progress.offset} of {self.end}, {list(self.table)}"
        raise LawBrokenError(f"not at the end after {20 * self.end + 20} steps: {left}")

    def _step(self) -> bool:
        """Do some of each. Return whether nothing is left."""
        owner = self.start_owner() if self.owner is None else self.owner
        for key in owner.unsure:
            self.park_again(key)
        for key in [row.key for row in self.table if row.state is ParkState.PARKED]:
            self.replay(key)
        self.copy()
        for key in [str(key) for key in owner.replays]:
            if self.replayable(key):
                self.call(key)
            if key in owner.replays and self.run(key) is not None:
                self.serve(key)
        if self.reading is not None:
            self.answer()
        while owner.answers:
            self.arrive()
        for lane in self.callable():
            self.call(lane)
        self.commit()
        if self.held is not None:
            self.expire()
        elif owner.queue.next_offset < self.end and not owner.pull_stops:
            self.pull()
        self.parking.filter(QUEUE)
        return self.progress.offset == self.end and not list(self.table) and not owner.replays

    def _accept(self, offset: int) -> None:
        law(offset not in self.certain, f"{offset} was committed, and comes again")
        self._handle(offset)
        self.accepted.append(offset)

    def _handle(self, offset: int) -> None:
        key = self.keys[offset]
        handled = {*self.accepted, *self.copied}
        missing = [] if key is None else [each for each in range(offset) if self.keys[each] == key and each not in handled]
        law(not missing, f"{offset} of key {key} comes before {missing}")

    def check_all(self) -> None:
        """Check that everything was handled, after `go_on`."""
        handled: set[int] = {*self.accepted, *self.copied}
        law(handled == set(range(self.end)), f"never handled: {sorted(set(range(self.end)) - handled)}")

"""One queue with parked keys, as its broker and its owner see it: the main flow, replays and drops over the real table of parked keys.

The broker's part is that of processors/pull.py, parking.py and parked_copies.py, with the real ParkTable; the owner's is that of
consumer/calls/parking.py and lane_runner.py, with the real ProcessQueue. Requests may lose their way, or their response; the broker may
forget what it has not synced; the owner may die. After each step the laws hold:

    P-K1  a later message of a key is not accepted before an earlier one, so none is left out by both flows
    P-K2  what was accepted comes again only if that was not committed

`without` names rules that are not obeyed, so that a test can show what breaks without them.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.park_table import KeyFilter, ParkFilter, ParkTable
from lockstep.broker.journal import Change, Journal, decode_changes
from lockstep.client.consumer.calls.process_queue import FlowLimits, ProcessQueue
from lockstep.protocol.bodies import ParkState
from lockstep.protocol.done_ranges import Ranges, above, contains, union
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.message import MessageExt
from lockstep.protocol.properties import encode_properties
from lockstep.testing import message

QUEUE: QueueKey = ("billing", "orders", 0)
LIMITS = FlowLimits(count_max=1_000, bytes_max=1 << 30, span_max=10_000)
PAGE = 4

RULES = (
    "passed",  # the broker counts what pulls have left out while rows exist
    "held",  # … also if they are held
    "done",  # a replay does not end below the last done range
    "row stays",  # the row of an ended replay remains until progress has passed its end
    "read again",  # a pull whose hidden set has changed since it was read is read again
    "leave out",  # the owner leaves out what it has fetched of a key that is parked
    "take nothing",  # the owner takes no message while an end has no response
    "pulled now",  # each repeated end names the next pull as of then
    "park again",  # a PARK is repeated until it has a response, and its key is not called meanwhile
    "no ranges",  # no done ranges are committed meanwhile
)


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

    offset: int
    hidden: ParkFilter | None
    found: list[int]
    end: int


@dataclass
class Replayed:
    """A key that the owner replays or drops."""

    position: int
    drop: bool
    next: int
    least: int = 0
    lane: deque[int] = field(default_factory=deque)


class Owner:
    """One grant."""

    def __init__(self, offset: int, done: Ranges) -> None:
        self.queue = ProcessQueue(offset, 0, LIMITS, done)
        self.accepted: set[int] = set()
        """Offsets that were accepted in the main flow."""
        self.hidden: dict[str, int | None] = {}
        self.lanes: dict[str | int, deque[MessageExt]] = {}
        self.unsure: dict[str, int] = {}
        """Key → the offset of the PARK that has no response."""
        self.replays: dict[str, Replayed] = {}
        self.ending: dict[str, int] = {}
        """Key → the next pull that the end named, whose response is outstanding."""
        self.answers: deque[tuple[list[int], int]] = deque()
        """(offsets, end) of answered pulls that have not arrived."""


class Flows:
    def __init__(self, *without: str) -> None:
        assert set(without) <= set(RULES), without
        self.without = without
        self.keys: list[str | None] = []
        self.journal = Journal()
        self.table = ParkTable(self.journal)
        self.log: list[bytes] = []
        """The synced records of the journal."""
        self.progress, self.done = 0, Ranges()
        self.reading: Reading | None = None
        self.held: int | None = None
        """The offset of a pull that is held."""
        self.owner: Owner | None = None
        self.accepted: list[int] = []
        """Offsets that the listener has accepted, in either flow."""
        self.copied: list[int] = []
        self.certain: set[int] = set()
        """Offsets that the broker knows as accepted, whatever happens."""
        self._promised: set[int] = set()

    def obeys(self, rule: str) -> bool:
        assert rule in RULES, rule
        return rule not in self.without

    # ------------------------------------------------------------------------------------------------------------- broker

    @property
    def end(self) -> int:
        return len(self.keys)

    def produce(self, *keys: str | None) -> None:
        self.keys += keys

    def hidden(self) -> ParkFilter | None:
        return self.table.filter(QUEUE, self.progress)

    def record_progress(self, offset: int, done: Ranges) -> None:
        """Commit in the same journal as the table."""
        if offset < self.progress:
            offset = self.progress
        done = union(above(self.done, offset), above(done, offset))
        self.journal.record(("progress", offset, done), self._apply)

    def _apply(self, change: Change) -> None:
        if change[0] == "progress":
            self.progress, self.done = change[1], tuple(change[2])
        else:
            self.table.apply(change)

    def sync(self) -> None:
        """Sync the log: what the table says now outlives a crash."""
        self.log += self.journal.encode(1 << 30)
        self.certain |= self._promised
        self._promised.clear()

    def crash(self) -> None:
        """Kill the broker: what is not synced is gone, and so are the connections and the memory of what pulls have passed."""
        self.journal = Journal()
        self.table = ParkTable(self.journal)
        self.progress, self.done = 0, ()
        self._promised.clear()
        for record in self.log:
            for change in decode_changes(record):
                self._apply(change)
        self.disconnect()

    def disconnect(self) -> None:
        """End the owner's connection: its pull and the answers that have not arrived are gone."""
        self.reading = self.held = None
        if self.owner is not None:
            self.owner.answers.clear()

    def least_end(self) -> int:
        return max(self.progress, self.done[-1]) if self.done and self.obeys("done") else self.progress

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
                assert offset not in self.certain, f"{offset} was committed, and is copied"
                self._handle(offset)
                self.copied.append(offset)
            if end > row.next:
                self.table.advance(row, end)
            elif self.owner is None:
                self.table.end_replay(QUEUE, row.key, self.least_end())

    # ---------------------------------------------------------------------------------------------------------- main flow

    def pull(self) -> None:
        """Read a page for the owner's next pull. It may wait for the disk until `answer`."""
        assert self.owner is not None
        assert self.reading is None
        assert not self.owner.answers
        offset = self.owner.queue.next_offset if self.held is None else self.held
        self.reading = Reading(offset, self.hidden(), *self.select(offset, self.hidden()))

    def answer(self) -> None:
        """Answer the pull that was read, or hold it if it found nothing."""
        reading, self.reading = self.reading, None
        assert reading is not None
        assert self.owner is not None
        if self.obeys("read again") and self.hidden() is not reading.hidden:
            self.pull()
            return self.answer()
        if self.obeys("passed") and (reading.found or self.obeys("held")):
            self.table.note_passed(QUEUE, reading.end)
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
        self.take()

    def take(self) -> None:
        owner = self.owner
        assert owner is not None
        if owner.ending and self.obeys("take nothing"):
            return
        left_out: list[MessageExt] = []
        for each in owner.queue.take(owner.queue.waiting):
            upto = owner.hidden.get(each.sharding_key, 0) if each.sharding_key is not None else 0
            if upto is None or each.queue_offset < upto:
                left_out.append(each)
            else:
                owner.lanes.setdefault(each.queue_offset if each.sharding_key is None else each.sharding_key, deque()).append(each)
        if left_out:
            owner.queue.finish(left_out)

    def callable(self) -> list[str | int]:
        """Return the lanes of the main flow whose next message may be called."""
        assert self.owner is not None
        return [key for key, lane in self.owner.lanes.items() if lane and key not in self.owner.unsure]

    def call(self, lane: str | int) -> None:
        """Let the listener accept the next message of a lane."""
        assert self.owner is not None
        each = self.owner.lanes[lane].popleft()
        self._accept(each.queue_offset)
        self.owner.accepted.add(each.queue_offset)
        self.owner.queue.finish([each])

    def fail(self, lane: str, fate: Fate = Fate.ANSWERED) -> None:
        """Let the next message of a lane fail for the last time: its key is parked."""
        assert self.owner is not None
        self._park(lane, self.owner.lanes[lane][0].queue_offset, fate)

    def park_again(self, key: str, fate: Fate = Fate.ANSWERED) -> None:
        """Repeat a PARK that has no response."""
        assert self.owner is not None
        self._park(key, self.owner.unsure[key], fate)

    def _park(self, key: str, offset: int, fate: Fate) -> None:
        owner = self.owner
        assert owner is not None
        if fate is not Fate.UNDELIVERED:
            self.table.park(QUEUE, key, offset, 3, "poisoned", 0)
        if fate is not Fate.ANSWERED:
            self.disconnect()
            if self.obeys("park again"):
                owner.unsure[key] = offset
            return
        self.sync()
        owner.unsure.pop(key, None)
        if self.obeys("leave out"):
            owner.hidden[key] = None
            if lane := owner.lanes.pop(key, None):
                owner.queue.finish(list(lane))
        else:
            owner.queue.finish([owner.lanes[key].popleft()] if owner.lanes.get(key) else [])
        owner.replays.pop(key, None)
        self.learn()

    def commit(self, fate: Fate = Fate.ANSWERED) -> None:
        """Let the owner commit its progress, with what it has finished above it."""
        owner = self.owner
        assert owner is not None
        offset = owner.queue.commit_offset
        done = owner.queue.done_ranges(offset) if not owner.unsure or not self.obeys("no ranges") else ()
        if fate is not Fate.UNDELIVERED:
            self.record_progress(offset, done)
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
            self.sync()
            self.learn()

    def learn(self) -> None:
        """Let the owner learn by LOCK which keys it has to replay or to drop."""
        owner = self.owner
        if owner is None:
            return
        self.sync()
        for each in self.table.replays(QUEUE):
            if each.key in owner.unsure:
                continue
            if each.key in owner.replays:
                if each.drop and not owner.replays[each.key].drop:
                    owner.replays[each.key].drop = True
                    owner.replays[each.key].lane.clear()
                continue
            owner.replays[each.key] = Replayed(each.next, each.drop, each.next)
            owner.hidden[each.key] = None

    def read_replay(self, key: str, examined: int = 1_000) -> None:
        """Let the owner read a page of a key that it replays. The broker examines at most so many messages."""
        assert self.owner is not None
        replay = self.owner.replays[key]
        assert not replay.lane
        found, replay.position = self.select(replay.position, KeyFilter(key), examined)
        replay.lane.extend(found)
        if not found:
            replay.next = max(replay.next, replay.position)

    def call_replay(self, key: str, fate: Fate = Fate.ANSWERED) -> None:
        """Let the listener accept the next message of a replay, and commit that."""
        assert self.owner is not None
        replay = self.owner.replays[key]
        offset = replay.lane.popleft()
        self._accept(offset)
        replay.next = offset + 1 if replay.lane else replay.position
        if fate is not Fate.UNDELIVERED:
            self.table.commit_replay(QUEUE, key, replay.next)
            row = self.table.get(QUEUE, key)
            if row is not None and row.state is not ParkState.DROPPING:
                self._promised.add(offset)
        if fate is Fate.ANSWERED:
            self.sync()
        else:
            self.disconnect()

    def fail_replay(self, key: str, fate: Fate = Fate.ANSWERED) -> None:
        """Let the next message of a replay fail for the last time: the key is parked again."""
        assert self.owner is not None
        self._park(key, self.owner.replays[key].lane[0], fate)

    def may_end(self, key: str) -> bool:
        """Return whether the owner asks for the end of a replay now."""
        assert self.owner is not None
        replay = self.owner.replays[key]
        if key in self.owner.ending or key in self.owner.unsure:
            return False
        return replay.drop or (not replay.lane and replay.position >= max(replay.least, self.owner.queue.next_offset))

    def end_replay(self, key: str, fate: Fate = Fate.ANSWERED) -> None:
        """Let the owner ask for the end of a replay, or repeat that after a request without a response."""
        owner = self.owner
        assert owner is not None
        replay, pulled = owner.replays[key], owner.queue.next_offset
        if not self.obeys("pulled now"):
            pulled = owner.ending.get(key, pulled)
        owner.ending[key] = pulled
        reply: ParkEndReply | None = None
        if fate is not Fate.UNDELIVERED:
            self.table.commit_replay(QUEUE, key, replay.next)
            reply = self.table.end_replay(QUEUE, key, max(pulled, self.least_end()))
        if fate is not Fate.ANSWERED:
            self.disconnect()
            return
        assert reply is not None
        if reply.upto is not None and not self.obeys("row stays"):
            self.table.apply(("park.removed", *QUEUE, key))
        self.sync()
        del owner.ending[key]
        if reply.upto is None:
            replay.least = reply.until or 0
        else:
            owner.hidden[key] = reply.upto
            del owner.replays[key]
        self.take()
        self.learn()

    # -------------------------------------------------------------------------------------------------------------- owners

    def start_owner(self) -> Owner:
        self.sync()
        self.disconnect()
        self.owner = Owner(self.progress, self.done)
        self.learn()
        return self.owner

    def kill_owner(self) -> None:
        self.disconnect()
        self.owner = None

    def go_on(self) -> None:
        """Let everything that is under way come to its end, with an owner whose calls succeed."""
        for key in {row.key for row in self.table if row.state is ParkState.PARKED}:
            self.replay(key)
        for _ in range(20 * self.end + 20):
            if self._step():
                return
        raise AssertionError(f"not at the end after {20 * self.end + 20} steps: progress {self.progress} of {self.end}, {list(self.table)}")

    def _step(self) -> bool:
        """Do some of each. Return whether nothing is left."""
        owner = self.start_owner() if self.owner is None else self.owner
        for key in list(owner.unsure):
            self.park_again(key)
        for key in list(owner.ending):
            self.end_replay(key)
        for key in [row.key for row in self.table if row.state is ParkState.PARKED]:
            self.replay(key)
        self.copy()
        for key in list(owner.replays):
            if self.may_end(key):
                self.end_replay(key)
            elif owner.replays[key].lane:
                self.call_replay(key)
            elif not owner.replays[key].drop:
                self.read_replay(key)
        if self.reading is not None:
            self.answer()
        while owner.answers:
            self.arrive()
        for lane in self.callable():
            self.call(lane)
        self.commit()
        if self.held is not None:
            self.expire()
        elif owner.queue.next_offset < self.end:
            self.pull()
        self.hidden()
        return self.progress == self.end and not list(self.table) and not owner.replays

    def _accept(self, offset: int) -> None:
        assert offset not in self.certain, f"{offset} was committed, and comes again"
        self._handle(offset)
        self.accepted.append(offset)

    def _handle(self, offset: int) -> None:
        key = self.keys[offset]
        handled = {*self.accepted, *self.copied}
        missing = [] if key is None else [each for each in range(offset) if self.keys[each] == key and each not in handled]
        assert not missing, f"{offset} of key {key} comes before {missing}"

    def check_all(self) -> None:
        """Check that everything was handled, after `go_on`."""
        handled: set[int] = {*self.accepted, *self.copied}
        assert handled == set(range(self.end)), f"never handled: {sorted(set(range(self.end)) - handled)}"

"""P-K1 to P-K3: keys that ordered groups set aside, and their replays (docs/invariants.md).

P-K1  what progress and done ranges pass is handled, filtered, dead-lettered, or waits for a replay. A member to which it was confirmed that
      a key is parked calls no message of it in the main flow, and one that has replayed the key none below the end of the replay. A replay
      begins where the last one was acknowledged to be. Only dropped keys are copied to the dead-letter topic
P-K2  no message of a key is called before all earlier ones were accepted or copied; with order_by="queue" none of the queue, parked keys
      aside
P-K3  when the queues are consumed to their ends while keys are parked, every message of the other keys is accepted

A message may be called again if its call failed, if a new grant begins at or below it, or in a replay that begins at or below it. Within
one grant an accepted message is called again only if a PARK was sent for it, or for an earlier message of its key, of which the member does
not know the result: the broker has parked the key perhaps, and the member went on with what it held.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.done_ranges import contains
from lockstep.protocol.names import DLQ_PREFIX
from sweep.checkers.facts import Brokers, QueueEpoch, RisingMax, holders
from sweep.checkers.messages import Messages, Passes, StoredPlace, first_offsets
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import CallBegan, CallEnded, ConsumerStarted
from sweep.events.locks import GrantReceived, LockGranted
from sweep.events.parks import ParkControlSent, ParkedListed, ParkEndReceived, ParkEndResponded, ParkReceived, ParkSent
from sweep.events.progress import CommitSent
from sweep.events.universe import CopyStored, MessageStored, PauseBegan, QueuesConsumed
from sweep.history import CallResult, History, QueueKey

Key = str | None
RowKey = tuple[QueueKey, str]
"""(queue, sharding key)."""

IN_TIME_S = 2.8
"""A client waits 3 s for the response to a PARK, by its own clock. One that arrives later is ignored."""


def check(history: History) -> list[Violation]:
    groups = {event.group for event in history.of(ConsumerStarted) if event.parks is not None}
    if not groups:
        return []
    messages = Messages(history)
    passes, order = Passes(history, messages), _Order(history, messages)
    return [
        *_Calls(history, groups, messages, passes, order).run(),
        *_at_rest(history, groups, messages, passes, order),
        *_copied(history, groups, messages),
    ]


# ------------------------------------------------------------------------------------------------ what the log and the calls have


class _Order:
    """The messages of each key in the final log, and which of them the calls of each group have accepted so far."""

    def __init__(self, history: History, messages: Messages) -> None:
        self._messages = messages
        self._chains: dict[tuple[QueueKey, Key], list[MessageStored]] = {}
        for (queue, _), stored in sorted(messages.stored.items()):
            self._chains.setdefault((queue, stored.key), []).append(stored)
        self._begins = first_offsets(history)
        self._accepted: dict[tuple[str, StoredPlace, bytes], float] = {}
        """(group, place, body) → the time of the first acceptance."""
        self._done: dict[tuple[QueueKey, Key], int] = {}
        """(queue, key) → the number of messages of the chain, from the first one on, that are accepted."""

    def accept(self, call: CallBegan, t: float) -> None:
        for offset, body in call.messages:
            self._accepted.setdefault((call.queue.group, (call.queue.stored, offset), body), t)

    def accepted_t(self, queue: QueueKey, stored: MessageStored) -> float:
        """Return when the message was accepted first; inf if it never was."""
        return self._accepted.get((queue.group, (queue.stored, stored.offset), stored.body), inf)

    def chains(self, topic: str) -> Iterator[tuple[QueueKey, Key, list[MessageStored]]]:
        return ((queue, key, chain) for (queue, key), chain in self._chains.items() if queue.topic == topic)

    def at(self, queue: QueueKey, offset: int, t: float) -> MessageStored | None:
        """Return the message at this place; None if it was not stored by `t`: another one was there, which the log has lost."""
        stored = self._messages.stored.get((queue.stored, offset))
        return None if stored is None or (stored.stored_t is not None and stored.stored_t > t) else stored

    def unaccepted(self, queue: QueueKey, key: Key, before: int, t: float, stored_by: float) -> Iterator[MessageStored]:
        """Yield the messages of the key below an offset that no call has accepted by `t`, and that were stored by `stored_by`."""
        chain = self._chains.get((queue.stored, key), [])
        at = self._done.get((queue, key), 0)
        while at < len(chain) and self.accepted_t(queue, chain[at]) <= t:
            at += 1
        self._done[queue, key] = at
        for stored in chain[max(at, bisect_left(chain, self._begins.get(queue, 0), key=lambda one: one.offset)) :]:
            if stored.offset >= before:
                break
            if (stored.stored_t is None or stored.stored_t <= stored_by) and self.accepted_t(queue, stored) > t:
                yield stored


class _Rows:
    """What brokers have acknowledged about parked keys, and which requests about them were sent."""

    def __init__(self, history: History) -> None:
        self._brokers = Brokers(history)
        self._cuts = {cut: broker for broker in self._brokers.lives for cut in self._brokers.assumed_cuts(broker)}
        self._cut_times = [(history.events[cut].t, broker) for cut, broker in self._cuts.items()]
        self._floors: dict[RowKey, list[tuple[int, ParkEndResponded, int]]] = {}
        """(place, response, the offset below which it acknowledges everything as accepted or copied)."""
        self._tops: dict[RowKey, RisingMax] = {}
        self.lowest: dict[RowKey, int] = {}
        """The lowest offset at which the key may have been parked."""
        self._dropped: dict[tuple[str, str, Key], float] = {}
        """(group, broker, key; None: all) → when it was dropped first."""
        self._controlled: set[tuple[str, str, Key]] = set()
        self._dropping: set[RowKey] = set()
        """Keys that may be dropped now: the broker ignores what their owners commit."""

    def lost_t(self, broker: str, since: float) -> float:
        """Return when a power cut may have removed messages of this broker since then; inf if none has."""
        return min((t for t, name in self._cut_times if name == broker and t >= since), default=inf)

    def cut(self, place: int) -> None:
        """Forget what a power cut at this place of the history may have removed."""
        broker = self._cuts.get(place)
        if broker is None:
            return
        for row, floors in self._floors.items():
            if row[0].broker == broker:
                self._set(row, [one for one in floors if self._brokers.removing_cut(broker, one[1].process, one[0], one[1].t) != place])
        for row in [row for row in self.lowest if row[0].broker == broker]:
            self.lowest[row] = 0

    def controlled(self, event: ParkControlSent) -> None:
        if event.action == "list":
            return
        self._controlled.add((event.group, event.broker, event.key))
        if event.action == "drop":
            self._dropped.setdefault((event.group, event.broker, event.key), event.t)
            self._dropping |= {row for row in self.lowest if self._names(event, row)}

    @staticmethod
    def _names(event: ParkControlSent, row: RowKey) -> bool:
        return row[0].group == event.group and row[0].broker == event.broker and event.key in (None, row[1])

    def was_controlled(self, row: RowKey) -> bool:
        """Return whether an operator has named the key."""
        queue, key = row
        return any((queue.group, queue.broker, each) in self._controlled for each in (None, key))

    def dropped_t(self, group: str, broker: str, key: Key) -> float:
        """Return when the key was dropped first; inf if it never was."""
        return min(self._dropped.get((group, broker, each), inf) for each in (None, key))

    def parked(self, row: RowKey, offset: int) -> None:
        self.lowest[row] = min(offset, self.lowest.get(row, offset))

    def ended(self, place: int, event: ParkEndResponded) -> None:
        row = event.queue, event.key
        if event.code != ResponseCode.SUCCESS:
            return
        floor = 0 if row in self._dropping else event.next
        if event.upto:
            floor = event.upto
            self._dropping.discard(row)
        if floor:
            self._set(row, [*self._floors.get(row, []), (place, event, floor)])

    def _set(self, row: RowKey, floors: list[tuple[int, ParkEndResponded, int]]) -> None:
        self._floors[row] = floors
        tops = self._tops[row] = RisingMax()
        for _, event, floor in floors:
            tops.add(event.t, floor)

    def lost_copies(self, row: RowKey, offset: int) -> bool:
        """Return whether a drop of the key was acknowledged up to this offset so far, and a power cut may remove the copies later."""
        return any(
            floor > offset and self._brokers.removing_cut(row[0].broker, event.process, place, event.t) is not None
            for place, event, floor in self._floors.get(row, ())
        )

    def floor(self, row: RowKey, t: float) -> int:
        """Return the offset below which everything of the key was acknowledged as accepted or copied before `t`."""
        tops = self._tops.get(row)
        return 0 if tops is None else tops.before(t) or 0


# --------------------------------------------------------------------------------------------------------------- the calls


@dataclass(slots=True)
class _Run:
    """One epoch at work."""

    grant: GrantReceived
    requested_t: float
    """When its LOCK was written."""
    lost_t: float
    """When a power cut may have removed messages that the grant knew, so that their offsets name others; inf if none has."""
    next_offset: int
    """order_by="queue": where the next call of the main flow begins, or later."""
    committed: int
    keys: dict[int, Key] = field(default_factory=dict)
    """Offset → key of the messages that were given to calls."""
    finished: set[int] = field(default_factory=set)
    hidden: dict[str, int | None] = field(default_factory=dict)
    """Key → the offset below which the member knows that it is left out; None: all of it is."""
    replays: dict[str, int] = field(default_factory=dict)
    """Key → the offset at which the next call of its replay begins, or later."""
    doubtful: dict[str, dict[int, int]] = field(default_factory=dict)
    """Key → request of a PARK without a known result → its offset."""
    checked: set[int] = field(default_factory=set)
    """Offsets of done ranges."""

    def in_doubt(self, key: Key, offset: int) -> bool:
        """Return whether the broker may have parked the key at or below this offset without the member's knowledge."""
        return key is not None and any(parked <= offset for parked in self.doubtful.get(key, {}).values())


class _Calls:
    """One pass over a history."""

    def __init__(self, history: History, groups: set[str], messages: Messages, passes: Passes, order: _Order) -> None:
        self.history = history
        self.groups = groups
        self.passes = passes
        self.order = order
        self.rows = _Rows(history)
        requested = {(grant.queue, grant.epoch): grant.request_t for grant in reversed(history.of(LockGranted)) if not grant.renewal}
        self.runs: dict[QueueEpoch, _Run] = {}
        for held, grant in holders(history).items():
            if not grant.renewal and held[0].group in groups:
                requested_t = requested.get(held, grant.t)
                lost_t = self.rows.lost_t(grant.queue.broker, requested_t)
                self.runs[held] = _Run(grant, requested_t, lost_t, grant.offset, grant.offset)
        self.by_key = {(event.process, event.group): event.lanes is not None for event in history.of(ConsumerStarted)}
        self.calls: dict[int, CallBegan] = {}
        self.paused: dict[int, float] = {}
        """Process → when it was paused last."""
        self.overtaken: set[StoredPlace] = set()
        """Messages that were reported: the later ones of their key are not reported too."""
        self.found: list[Violation] = []

    def run(self) -> list[Violation]:
        for place, event in enumerate(self.history):
            self.rows.cut(place)
            if isinstance(event, PauseBegan):
                self.paused[event.process] = event.t
            elif isinstance(event, ParkControlSent):
                self.rows.controlled(event)
            elif isinstance(event, ParkSent):
                self._park_sent(event)
            elif isinstance(event, ParkReceived):
                self._park_received(event)
            elif isinstance(event, ParkEndResponded):
                self.rows.ended(place, event)
            elif isinstance(event, ParkEndReceived):
                self._replay_ended(event)
            elif isinstance(event, LockGranted):
                self._granted(event)
            elif isinstance(event, GrantReceived):
                self._replays_named(event)
            elif isinstance(event, CallBegan) and event.queue.group in self.groups:
                self._began(event)
            elif isinstance(event, CallEnded) and event.call in self.calls:
                self._ended(event, self.calls[event.call])
            elif isinstance(event, CommitSent) and event.queue.group in self.groups:
                self._committed(event)
        return self.found

    def _report(self, law: str, t: float, text: str) -> None:
        self.found.append(Violation(law, t, text))

    # ------------------------------------------------------------------------------------------------------------- requests

    def _park_sent(self, event: ParkSent) -> None:
        run = self.runs.get((event.queue, event.epoch))
        key = None if run is None else run.keys.get(event.offset)
        if run is not None and key is not None:
            self.rows.parked((event.queue, key), event.offset)
            run.doubtful.setdefault(key, {})[event.request] = event.offset

    def _in_time(self, event: ParkReceived | ParkEndReceived) -> bool:
        """Return whether the client has not given the request up before this response."""
        return event.t - event.request_t < IN_TIME_S and self.paused.get(event.process, -inf) < event.request_t

    def _park_received(self, event: ParkReceived) -> None:
        run = self.runs.get((event.queue, event.epoch))
        key = None if run is None else run.keys.get(event.offset)
        if run is None or key is None or not self._in_time(event):
            return
        run.doubtful[key].pop(event.request, None)
        upto = run.hidden.get(key)
        if event.code == ResponseCode.SUCCESS and (upto is None or event.offset >= upto):
            run.hidden[key] = None
            run.replays.pop(key, None)

    def _replay_ended(self, event: ParkEndReceived) -> None:
        run = self.runs.get((event.queue, event.epoch))
        if run is None:
            return
        if event.upto is not None:
            run.hidden[event.key] = event.upto
            run.replays.pop(event.key, None)
        elif event.code == ResponseCode.PARK_REFUSED and self._in_time(event):
            run.hidden[event.key] = None
            run.replays.pop(event.key, None)

    def _granted(self, event: LockGranted) -> None:
        """Check where the replays begin that a broker names."""
        for key, offset, _ in event.replays:
            row, where = (event.queue, key), f"{event.queue} epoch {event.epoch}: key {key!r} is to be replayed from {offset}"
            if offset < (floor := self.rows.floor(row, event.request_t)):
                self._report("P-K1", event.t, f"{where}, but everything below {floor} was acknowledged")
            if not self.rows.was_controlled(row):
                self._report("P-K1", event.t, f"{where}, and no operator has named it")
            lowest = self.rows.lowest.get(row)
            if lowest is None or offset < lowest:
                self._report("P-K1", event.t, f"{where}, and no message of it below {lowest} was parked")

    def _replays_named(self, event: GrantReceived) -> None:
        run = self.runs.get((event.queue, event.epoch))
        if run is None:
            return
        for key, offset, drop in event.replays:
            if key not in run.replays:
                run.hidden[key] = None
                if not drop:
                    run.replays[key] = offset

    # ---------------------------------------------------------------------------------------------------------------- calls

    def _began(self, call: CallBegan) -> None:
        self.calls[call.call] = call
        run = self.runs.get((call.queue, call.epoch))
        where = f"call {call.call} of {call.queue} epoch {call.epoch} in {process_name(call)} got offset"
        own = set()
        known_by = call.t if run is None else min(call.t, run.lost_t)
        for (offset, _), key in zip(call.messages, call.keys, strict=True):
            for early in self.order.unaccepted(call.queue, key, offset, call.t, known_by):
                if early.offset not in own and not self._may_overtake(call, key, early.offset):
                    if (early.queue, early.offset) not in self.overtaken:
                        self.overtaken.add((early.queue, early.offset))
                        self._report("P-K2", call.t, f"{where} {offset} of key {key!r} before {early.offset}, {early.body!r:.60}")
                    break
            own.add(offset)
            if run is None:
                continue
            run.keys[offset] = key
            if offset in run.finished and not run.in_doubt(key, offset):
                self._report("P-K2", call.t, f"{where} {offset} of key {key!r} again, which was accepted")
            if key is not None and key in run.replays:
                if offset < run.replays[key] and not run.in_doubt(key, offset):
                    self._report("P-K2", call.t, f"{where} {offset}: the replay of key {key!r} had reached {run.replays[key]}")
                continue
            self._check_main_flow(run, call, offset, key, where)

    def _may_overtake(self, call: CallBegan, key: Key, early: int) -> bool:
        """Return whether a call of the key may come before the message at `early`, which no call has accepted."""
        return self.passes.may_pass(call.queue, early, call.process, call.t) or (
            key is not None and self.rows.lost_copies((call.queue, key), early)
        )

    def _check_main_flow(self, run: _Run, call: CallBegan, offset: int, key: Key, where: str) -> None:
        upto = 0 if key is None else run.hidden.get(key, 0)
        floor = 0 if key is None else self.rows.floor((call.queue, key), run.requested_t)
        if upto is None or offset < upto:
            end = "" if upto is None else f" below {upto}"
            self._report("P-K1", call.t, f"{where} {offset}: the member knows that key {key!r} is left out{end}")
        elif offset < floor:
            self._report("P-K1", call.t, f"{where} {offset}: key {key!r} was acknowledged as replayed up to {floor}")
        elif offset < run.grant.offset or contains(run.grant.done, offset):
            self._report("P-K1", call.t, f"{where} {offset}, which an earlier owner had finished")
        elif not self.by_key.get((call.process, call.queue.group), False):
            self._check_queue_order(run, call, offset, key, where)

    def _check_queue_order(self, run: _Run, call: CallBegan, offset: int, key: Key, where: str) -> None:
        if offset < run.next_offset and not run.in_doubt(key, offset):
            self._report("P-K2", call.t, f"{where} {offset}: {run.next_offset} or later was next")
        for early in range(run.next_offset, offset):
            if (missed := self._missed(run, call, early)) is not None:
                self._report("P-K2", call.t, f"{where} {offset} before {early} of key {missed.key!r}, which is not parked")
                break
        run.next_offset = max(run.next_offset, offset + 1)

    def _missed(self, run: _Run, call: CallBegan, offset: int) -> MessageStored | None:
        """Return the message at an offset that the main flow must not leave out; None if it may, or if the message is not known."""
        stored = self.order.at(call.queue, offset, min(call.t, run.lost_t))
        if stored is None or self.order.accepted_t(call.queue, stored) <= call.t or self._may_wait(call.queue, stored):
            return None
        return None if self.passes.may_pass(call.queue, offset, call.process, call.t) else stored

    def _may_wait(self, queue: QueueKey, stored: MessageStored) -> bool:
        """Return whether the message may wait for a replay."""
        return stored.key is not None and self.rows.lowest.get((queue, stored.key), inf) <= stored.offset

    def _ended(self, event: CallEnded, call: CallBegan) -> None:
        run = self.runs.get((call.queue, call.epoch))
        if event.result in (CallResult.SUCCESS, CallResult.CANCEL_IGNORED):
            self.order.accept(call, event.t)
        if run is None:
            return
        if event.result is CallResult.SUCCESS:
            run.finished.update(offset for offset, _ in call.messages)
        for (offset, _), key in zip(call.messages, call.keys, strict=True):
            if key is not None and key in run.replays and event.result is CallResult.SUCCESS:
                run.replays[key] = max(run.replays[key], offset + 1)
            elif (key is None or key not in run.replays) and event.result is not CallResult.SUCCESS:
                run.next_offset = min(run.next_offset, offset)

    def _committed(self, event: CommitSent) -> None:
        run = None if event.epoch is None else self.runs.get((event.queue, event.epoch))
        if run is None or event.offset is None:
            return
        ranges = [(run.committed, event.offset), *zip(event.done[::2], event.done[1::2], strict=True)]
        run.committed = max(run.committed, event.offset)
        for first, end in ranges:
            for offset in range(first, end):
                if offset in run.checked or offset in run.finished or contains(run.grant.done, offset):
                    continue
                run.checked.add(offset)
                stored = self.order.at(event.queue, offset, min(event.t, run.lost_t))
                if stored is None or self._may_wait(event.queue, stored) or self.order.accepted_t(event.queue, stored) <= event.t:
                    continue
                if not self.passes.may_pass(event.queue, offset, event.process, event.t):
                    where = f"{event.queue} epoch {event.epoch} by {process_name(event)} ({event.by}) committed {event.offset}"
                    text = f"{where}, done {event.done}: {offset} of key {stored.key!r} is neither handled nor parked"
                    self._report("P-K1", event.t, text)
                    return


# -------------------------------------------------------------------------------------------------- the end, and what was dropped


def _at_rest(history: History, groups: set[str], messages: Messages, passes: Passes, order: _Order) -> Iterator[Violation]:
    """Check P-K3 at the end of the calm: every queue is consumed to its end, and what no call has accepted belongs to a parked key."""
    rest = next(iter(history.of(QueuesConsumed)), None)
    if rest is None:
        return
    listed: dict[str, ParkedListed] = {}
    for event in history.of(ParkedListed):
        if event.t >= rest.t:
            listed.setdefault(event.broker, event)
    for (group, topic), processes in passes.groups().items():
        if group not in groups:
            continue
        for queue, key, chain in order.chains(topic):
            known = listed.get(queue.broker)
            if known is None:
                continue
            own = queue._replace(group=group)
            waits = min((row.next for row in known.rows if row.queue == own and row.key == key), default=inf)
            for stored in chain:
                if (
                    stored.offset < waits
                    and order.accepted_t(own, stored) > known.t
                    and not passes.some_may_pass(own, stored.offset, processes)
                ):
                    text = f"{own} offset {stored.offset} of key {key!r}: not accepted when the queues were consumed to their ends"
                    yield Violation("P-K3", known.t, f"{text}, and its key was not parked")
                    break


def _copied(history: History, groups: set[str], messages: Messages) -> Iterator[Violation]:
    """Check P-K1 and P-K2 of copies: only of dropped keys, each once unless the broker ended meanwhile, and in the order of the queue.

    A message that was acknowledged as accepted before its key was dropped is not copied.
    """
    rows = _Rows(history)
    for place, event in enumerate(history):
        rows.cut(place)
        if isinstance(event, ParkControlSent):
            rows.controlled(event)
        elif isinstance(event, ParkEndResponded):
            rows.ended(place, event)
    ends = Counter(life.broker for lives in Brokers(history).lives.values() for life in lives if life.ended_t is not None)
    seen: Counter[tuple[str, str, bytes]] = Counter()
    last: dict[tuple[str, QueueKey, Key], int] = {}
    for copy in history.of(CopyStored):
        group, broker = copy.queue.topic.removeprefix(DLQ_PREFIX), copy.queue.broker
        if group not in groups or not copy.queue.topic.startswith(DLQ_PREFIX):
            continue
        where = f"dead letter {copy.queue} offset {copy.offset}, {copy.body!r:.60}"
        dropped_t = rows.dropped_t(group, broker, copy.key)
        if dropped_t == inf:
            yield Violation("P-K1", copy.t, f"{where}: its key {copy.key!r} was not dropped")
            continue
        seen[group, broker, copy.body] += 1
        if seen[group, broker, copy.body] > 1 + ends[broker]:
            yield Violation("P-K1", copy.t, f"{where}: it is stored {seen[group, broker, copy.body]} times")
        for stored in [one for one in messages.places.get(copy.body, ()) if one.queue.broker == broker]:
            queue = stored.queue._replace(group=group)
            floor = 0 if copy.key is None else rows.floor((queue, copy.key), dropped_t)
            if stored.offset < floor:
                yield Violation("P-K1", copy.t, f"{where}: everything of its key below {floor} was acknowledged before it was dropped")
            chain = group, stored.queue, copy.key
            if seen[group, broker, copy.body] == 1:
                if stored.offset < last.get(chain, 0):
                    yield Violation("P-K2", copy.t, f"{where}: a later message of its key was copied before it")
                last[chain] = max(stored.offset, last.get(chain, 0))

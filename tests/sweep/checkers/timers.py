"""D1, R9, W1 and W2: messages that wait for any delay or until a time of day, and their recalls.

D1  A message with a delay is due when that has passed since it was stored, by the boot clock of its broker's machine, as in delays.py. One
    with a time of day is due when the wall clock of that machine and the clock of the store have both reached it. None is early, late or
    lost. The clock of the store is known from the store times in the responses to sends
R9  It is stored in its home at most once for each stream of frames that carried it to a broker. A keyed one has one stream
W1  A message whose recall returned is never delivered, unless it was given before a loss that took its delivery. A forged handle recalls
    nothing
W2  A recall says that it is too late only for a message that was delivered, recalled, or whose topic was deleted, and that there is no such
    message only if it may be lost
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from math import inf

from lockstep.protocol.codes import ResponseCode
from lockstep.testing.simulation.process import EPOCH_S
from sweep.checkers.ages import DRIFT, LATE_S, MS, Ages, Giving, givings
from sweep.checkers.facts import Brokers, Deletions
from sweep.checkers.messages import Messages
from sweep.checkers.violation import Violation, process_name
from sweep.events.producers import DelayedSendAcked, RecallBegan, RecallEnded, SendBegan
from sweep.events.sends import FrameResponded, FrameWritten, TimersResponded, TimersWritten
from sweep.events.universe import BrokerOpened, MessageStored
from sweep.history import History, QueueKey, RecallOutcome

_STORED = (ResponseCode.SUCCESS, ResponseCode.DUPLICATE)

AtBroker = tuple[str, bytes]
"""(broker, body)."""


def check(history: History) -> list[Violation]:
    if not history.of(TimersWritten) and not history.of(RecallBegan):
        return []
    timers = _Timers(history)
    return [*timers.early(), *timers.late(), *timers.lost(), *timers.bounded(), *timers.recalls()]


def possible_duplicates(history: History) -> int:
    """Count timers that are stored at two brokers, or twice at one, which is allowed for unkeyed ones, and published."""
    places = Messages(history).places
    bodies = dict.fromkeys(body for frame in history.of(TimersWritten) for body in frame.bodies)
    return sum(len(places[body]) - 1 for body in bodies if body in places)


class _Timers:
    """The checks of one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.messages, self.ages, self.deletions = Messages(history), Ages(history), Deletions(history)
        self.brokers: Brokers = self.ages.brokers
        self.keeping = {event.broker: event.removes_nothing for event in history.of(BrokerOpened)}
        self.written: dict[AtBroker, list[tuple[int, TimersWritten]]] = {}
        """With the place of each write in the history."""
        self.responses: dict[AtBroker, list[tuple[int, TimersResponded]]] = {}
        """Those that say that the message is stored."""
        requests: dict[int, TimersWritten] = {}
        for place, event in enumerate(history):
            if isinstance(event, TimersWritten):
                requests[event.request] = event
                for body in event.bodies:
                    self.written.setdefault((event.queue.broker, body), []).append((place, event))
            elif isinstance(event, TimersResponded) and event.code in _STORED and event.request in requests:
                for body in requests[event.request].bodies:
                    self.responses.setdefault((event.queue.broker, body), []).append((place, event))
        self.bodies = dict.fromkeys(body for _, body in self.written)
        self.givings: dict[AtBroker, list[Giving]] = {}
        """To consumers of any kind."""
        for giving in givings(history):
            for body in giving[2]:
                if body in self.bodies:
                    self.givings.setdefault((giving[1].broker, body), []).append(giving)
        self.left: dict[QueueKey, float] = {}
        """Queue → when the first message was acknowledged of those that are in its final log."""
        for acked in self.messages.acked.values():
            stored = self.messages.stored.get((acked.queue, acked.offset))
            if stored is not None and stored.body == acked.body:
                self.left[acked.queue] = min(acked.t, self.left.get(acked.queue, inf))
        self.recalled = self._may_be_recalled()
        self.clock = _StoreTimes(history)

    def _is_forged(self, event: RecallBegan | RecallEnded) -> bool:
        """Return whether the handle differs from that of the acknowledgement in what a broker compares.

        Of a timer that retention has carried to the end of the log it does not know any more when it was due.
        """
        return event.forged and (event.form != "other due" or self.keeping.get(event.broker, True))

    def _may_be_recalled(self) -> dict[AtBroker, int]:
        """Return the place of the first recall that was carried out, or whose outcome is not known."""
        ended = {event.recall: event for event in self.history.of(RecallEnded)}
        found: dict[AtBroker, int] = {}
        for place, event in enumerate(self.history):
            if isinstance(event, RecallBegan) and not self._is_forged(event):
                end = ended.get(event.recall)
                if end is None or end.outcome not in (RecallOutcome.TOO_LATE, RecallOutcome.NOT_FOUND):
                    found.setdefault((event.broker, event.body), place)
        return found

    def _lost_within(self, broker: str, since: int, until: float = inf) -> bool:
        """Return whether a power cut between two places may have removed writes of the broker."""
        return any(since < cut < until for cut in self.brokers.lossy_cuts(broker))

    def _text(self, began: SendBegan) -> str:
        what = f"delay {began.delay_ms} ms" if began.delay_ms else f"deliver_at {_time_s(began):.3f}"
        return f"{began.body!r:.60}, sent at {began.t:.3f} with {what},"

    def _was_stored(self, broker: str, body: bytes) -> bool:
        return bool(self._places(broker, body)) or (broker, body) in self.givings

    def _places(self, broker: str, body: bytes) -> list[MessageStored]:
        return [stored for stored in self.messages.places.get(body, ()) if stored.queue.broker == broker]

    def _scopes(self, broker: str, body: bytes) -> int:
        """Return the number of streams of frames that carried a message to a broker."""
        return len({(frame.producer, frame.sequence[:2]) for _, frame in self.written.get((broker, body), ())})

    def _may_be_deleted(self, broker: str, body: bytes) -> bool:
        """Return whether a deletion of its topic was requested after the topic was created to which it was sent."""
        written = self.written.get((broker, body), ())
        return any(self.deletions.after(frame.queue.topic, (frame.began, 0)) for _, frame in written)

    # ------------------------------------------------------------------------------------------------------------------ D1

    def early(self) -> Iterator[Violation]:
        for (broker, body), given in self.givings.items():
            began, writes = self.messages.began.get(body), self.written.get((broker, body))
            for event, queue, _ in given:
                where = f"{queue}: timer {body!r:.60} was given to {process_name(event)}"
                if writes is None:
                    yield Violation("R9", event.t, f"{where}: it was never sent to {broker}")
                elif began is not None and (early_s := self._early_s(began, broker, writes[0][1].t, event.t)) > 0:
                    yield Violation("D1", event.t, f"{queue}: {self._text(began)} was given to {process_name(event)} {early_s:.3f} s early")
        for stored in self.history.of(MessageStored):
            began = self.messages.began.get(stored.body)
            if stored.stored_t is None or began is None or not began.deliver_ms or self._stepped_back(stored):
                continue
            early_s = _time_s(began) - stored.stored_t
            if early_s > MS:
                text = f"{stored.queue}: {self._text(began)} was stored {early_s:.3f} s early by the clock of the store"
                yield Violation("D1", stored.t, text)

    def _early_s(self, began: SendBegan, broker: str, since: float, t: float) -> float:
        """Return by how much a message that was sent at `since` was early at `t`; 0 or less if it was not."""
        ages = self.ages
        if not began.deliver_ms:
            passed_s = ages.passed_s(broker, since, t) + ages.forward_s(broker, since, t)
            return began.delay_ms / 1_000 - passed_s - MS - ages.unknown_s(broker, since, t)
        walls = ages.wall_ahead(broker, since, t)
        return _time_s(began) - max((until + ahead_s for _, until, ahead_s in walls), default=t) - MS

    def _stepped_back(self, stored: MessageStored) -> bool:
        """Return whether the clock of the store may have been set back while the message was delivered."""
        machines = {life.machine for life in self.brokers.lives.get(stored.queue.broker, ())}
        return any(jump.jump_s < 0 for machine in machines for jump in self.ages.walls.jumps.get(machine, ()))

    def late(self) -> Iterator[Violation]:
        """Yield messages that were late. The times at which a broker did not run, or a condition did not hold, do not count."""
        for stored in self.history.of(MessageStored):
            broker, body = stored.queue.broker, stored.body
            began, writes = self.messages.began.get(body), self.written.get((broker, body))
            if began is None or writes is None or stored.stored_t is None:
                continue
            responded = self.responses.get((broker, body))
            place, since = (responded[0][0], responded[0][1].t) if responded else (writes[-1][0], writes[-1][1].t)
            if self.brokers.has_copies(broker) and self._lost_within(broker, place):
                continue
            at = self.clock.after(broker, stored.position)
            until = stored.stored_t if at is None else at
            late_s = self._late_of_day_s(began, broker, since, until) if began.deliver_ms else self._late_s(began, broker, since, until)
            if late_s > LATE_S:
                yield Violation("D1", until, f"{stored.queue}: {self._text(began)} arrived {late_s:.3f} s late")

    def _late_s(self, began: SendBegan, broker: str, since: float, until: float) -> float:
        ages = self.ages
        if not ages.is_known(broker, until):
            return 0.0
        away_s = self.brokers.away_s(broker, since, until)
        late_s = ages.passed_s(broker, since, until) - began.delay_ms / 1_000 - away_s
        return late_s - DRIFT * away_s - ages.unknown_s(broker, since, until)

    def _late_of_day_s(self, began: SendBegan, broker: str, since: float, until: float) -> float:
        reached_t = self.clock.reached(broker, began.deliver_ms)
        late_s = 0.0
        for first, last, ahead_s in self.ages.wall_ahead(broker, max(since, reached_t), until):
            due = max(first, _time_s(began) - ahead_s)
            late_s += max(0.0, last - due - self.brokers.away_s(broker, due, last)) if due < last else 0.0
        return late_s

    def lost(self) -> Iterator[Violation]:
        """Yield acknowledged messages that are not in the final log, unless power cuts may have removed every such write."""
        for acked in self.history.of(DelayedSendAcked):
            broker, body = acked.queue.broker, acked.body
            read, began = self.messages.read.get(acked.queue), self.messages.began.get(body)
            if read is None or began is None or (broker, body) not in self.written or self._places(broker, body):
                continue
            if read.first and not self._is_kept(began, acked.queue):
                continue
            if (broker, body) in self.recalled or self._may_be_deleted(broker, body) or not self._is_due(began, broker, read.t):
                continue
            cuts = [
                self.brokers.removing_cut(broker, response.process, place, response.t, written=acked.written)
                for place, response in self.responses.get((broker, body), ())
            ]
            if None in cuts:
                yield Violation("D1", acked.t, f"{self._text(began)} was acknowledged at {acked.t:.3f} ({acked.queue}), and is in no queue")

    def _is_kept(self, began: SendBegan, queue: QueueKey) -> bool:
        """Return whether retention would have kept it: the final log has a message that was acknowledged before this one was due."""
        return self.left.get(queue, inf) < self._due_t(began, queue.broker)

    def _due_t(self, began: SendBegan, broker: str) -> float:
        """Return the first time at which it may have been due."""
        if not began.deliver_ms:
            return began.t + began.delay_ms / 1_000 * (1 - DRIFT)
        walls = self.ages.wall_ahead(broker, began.t, inf)
        return next((max(first, _time_s(began) - ahead_s) for first, last, ahead_s in walls if _time_s(began) - ahead_s < last), inf)

    def _is_due(self, began: SendBegan, broker: str, t: float) -> bool:
        """Return whether it was due long before `t`, the time of the final reading, as far as that is known."""
        since = self.written[broker, began.body][-1][1].t
        if began.deliver_ms:
            return self._late_of_day_s(began, broker, since, t) > 0
        return not self.ages.is_known(broker, t) or self._late_s(began, broker, since, t) > 0

    # ------------------------------------------------------------------------------------------------------------------ R9

    def bounded(self) -> Iterator[Violation]:
        for body in self.bodies:
            places, began = self.messages.places.get(body, []), self.messages.began.get(body)
            for broker in dict.fromkeys(stored.queue.broker for stored in places):
                here, scopes = self._places(broker, body), self._scopes(broker, body)
                if len(here) > scopes or (began is not None and began.key is not None and len(places) > 1):
                    where = ", ".join(f"{stored.queue} offset {stored.offset}" for stored in places)
                    text = f"timer {body!r:.60} was sent to {broker} in {scopes} streams and is stored {len(places)} times: {where}"
                    yield Violation("R9", here[-1].t, text)
                    break

    # -------------------------------------------------------------------------------------------------------------- W1, W2

    def recalls(self) -> Iterator[Violation]:
        began = {event.recall: place for place, event in enumerate(self.history) if isinstance(event, RecallBegan)}
        for place, event in enumerate(self.history):
            if not isinstance(event, RecallEnded):
                continue
            form = f"with another handle ({event.form}) " if event.form else ""
            text = f"{event.broker}: the recall {event.recall} of {event.body!r:.60} {form}"
            if event.outcome is RecallOutcome.RECALLED:
                if self._is_forged(event):
                    yield Violation("W1", event.t, f"{text}returned")
                else:
                    yield from self._returned(event, place, text)
            elif not event.forged:
                yield from self._refused(event, began[event.recall], text)

    def _returned(self, event: RecallEnded, place: int, text: str) -> Iterator[Violation]:
        key = event.broker, event.body
        others = self._scopes(*key) - 1
        stored = self._places(*key)
        if len(stored) > max(0, others) and not (self.brokers.has_copies(event.broker) and self._lost_within(event.broker, place)):
            where = ", ".join(f"{one.queue} offset {one.offset}" for one in stored)
            yield Violation("W1", event.t, f"{text}returned; it is stored: {where}")
        written = self.written.get(key)
        if others > 0 or written is None or self._lost_within(event.broker, written[0][0], place):
            return
        if self.brokers.has_copies(event.broker) and self._lost_within(event.broker, place):
            return
        for given, queue, _ in self.givings.get(key, ()):
            yield Violation("W1", event.t, f"{text}returned; it was given to {process_name(given)} at {given.t:.3f} from {queue}")

    def _refused(self, event: RecallEnded, began: int, text: str) -> Iterator[Violation]:
        key = event.broker, event.body
        written = self.written.get(key)
        if written is None or self._lost_within(event.broker, written[0][0]):
            return
        if event.outcome is RecallOutcome.TOO_LATE:
            first = self.recalled.get(key, inf)
            is_over = self._was_stored(*key) or first < began or self._may_be_deleted(*key)
            if self.messages.read and self.keeping.get(event.broker) and not is_over:
                yield Violation("W2", event.t, f"{text}was too late; it was never delivered")
        elif event.outcome is RecallOutcome.NOT_FOUND and not event.form and self.keeping.get(event.broker):
            cuts = [
                self.brokers.removing_cut(event.broker, response.process, place, response.t, written=True)
                for place, response in self.responses.get(key, ())
            ]
            if None in cuts:
                yield Violation("W2", event.t, f"{text}found no such message ({event.error})")


def _time_s(began: SendBegan) -> float:
    """Return the time of day until which a message waits, on the universe's clock."""
    return began.deliver_ms / 1_000 - EPOCH_S


class _StoreTimes:
    """When the frames of each broker's log were stored, from their positions in it and the responses to sends."""

    def __init__(self, history: History) -> None:
        first: dict[AtBroker, float] = {}
        bodies: dict[int, bytes] = {}
        rows: dict[str, list[tuple[int, float]]] = {}
        self._stamps: dict[str, list[tuple[int, float]]] = {}
        """Broker → (highest store time so far, when a response named it), in order."""
        for event in history:
            if isinstance(event, FrameWritten) and event.bodies:
                bodies[event.request] = event.bodies[0]
                first.setdefault((event.queue.broker, event.bodies[0]), event.t)
            elif isinstance(event, FrameResponded) and event.position >= 0:
                broker, body = event.queue.broker, bodies.get(event.request)
                if body is not None:
                    rows.setdefault(broker, []).append((event.position, first[broker, body]))
                stamps = self._stamps.setdefault(broker, [])
                if not stamps or event.stamp_ms > stamps[-1][0]:
                    stamps.append((event.stamp_ms, event.t))
        self._positions: dict[str, list[int]] = {}
        self._times: dict[str, list[float]] = {}
        for broker, known in rows.items():
            known.sort()
            self._positions[broker] = [position for position, _ in known]
            self._times[broker] = list(accumulate((t for _, t in known), max))

    def after(self, broker: str, position: int) -> float | None:
        """Return a time after which the record at this position of the log was stored; None if none is known."""
        at = bisect_left(self._positions.get(broker, []), position) if position >= 0 else 0
        return self._times[broker][at - 1] if at else None

    def reached(self, broker: str, stamp_ms: int) -> float:
        """Return when the clock of the store had reached this time, at the latest; inf if that is not known."""
        stamps = self._stamps.get(broker, [])
        at = bisect_left(stamps, stamp_ms, key=lambda row: row[0])
        return stamps[at][1] if at < len(stamps) else inf

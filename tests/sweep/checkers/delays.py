"""D1: a delayed message is never early, late or lost, and delivered at most as often as it was written.

A message is due when its level's delay has passed since it was stored, by the boot clock of its broker's machine, however the wall clock
is set meanwhile. Only a start after a power cut uses the wall clock. A delayed send has no sequence: repeated after a lost response it is
stored twice, which is allowed, counted and bounded.
"""

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.delays import FIRST_RETRY_LEVEL, LEVELS_MS
from sweep.checkers.ages import DRIFT, LATE_S, MS, Ages, givings
from sweep.checkers.concurrent_facts import SendBacks
from sweep.checkers.facts import Brokers
from sweep.checkers.messages import Messages
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import ConcurrentCallBegan
from sweep.events.producers import DelayedSendAcked
from sweep.events.sends import DelayedSendResponded, DelayedSendWritten, SendBackSent
from sweep.events.universe import MessageStored
from sweep.history import History


def check(history: History) -> list[Violation]:
    if not history.of(DelayedSendWritten) and not history.of(SendBackSent):
        return []
    return [*_early(history), *_late(history), *_retries_early(history), *_lost(history), *_bounded(history)]


def possible_duplicates(history: History) -> int:
    """Count delayed messages that are stored more than once, which is allowed and published."""
    messages = Messages(history)
    delayed = {event.body: None for event in history.of(DelayedSendWritten)}
    return sum(len(messages.places.get(body, ())) - 1 for body in delayed if messages.places.get(body))


def delay_s(level: int) -> float:
    return LEVELS_MS[min(level, len(LEVELS_MS)) - 1] / 1000


def _early(history: History) -> list[Violation]:
    ages = Ages(history)
    written: dict[tuple[bytes, str], DelayedSendWritten] = {}
    for event in history.of(DelayedSendWritten):
        written.setdefault((event.body, event.queue.broker), event)
    delayed = {body: None for body, _ in written}
    found = []
    for call, queue, bodies in givings(history):
        for body in bodies:
            if body not in delayed:
                continue
            wait = written.get((body, queue.broker))
            where = f"{queue}: delayed {body!r:.60} was given to {process_name(call)}"
            if wait is None:
                found.append(Violation("R9", call.t, f"{where}: it was never sent to {queue.broker}"))
                continue
            early_s = delay_s(wait.level) - ages.passed_s(queue.broker, wait.t, call.t) - ages.forward_s(queue.broker, wait.t, call.t)
            if early_s > MS + ages.unknown_s(queue.broker, wait.t, call.t):
                found.append(Violation("D1", call.t, f"{where} {early_s:.3f} s early: sent at {wait.t:.3f} with level {wait.level}"))
    return found


def _late(history: History) -> list[Violation]:
    """Report messages that were late. A machine that was off is excused if its wall clock was wrong for long before, or afterwards.

    A send that is repeated may have been stored by its last write only: it is late if it is late for the last write that can
    have stored it.
    """
    ages = Ages(history)
    written: dict[tuple[str, bytes], list[DelayedSendWritten]] = {}
    for event in history.of(DelayedSendWritten):
        written.setdefault((event.queue.broker, event.body), []).append(event)
    found = []
    for stored in history.of(MessageStored):
        broker, waits = stored.queue.broker, written.get((stored.queue.broker, stored.body))
        if waits is None or stored.stored_t is None or not ages.is_known(broker, stored.stored_t):
            continue
        passed = [(wait, ages.passed_s(broker, wait.t, stored.stored_t)) for wait in waits]
        latest = [(wait, passed_s) for wait, passed_s in passed if delay_s(wait.level) <= passed_s + MS]
        wait, passed_s = latest[-1] if latest else passed[0]
        away_s = ages.brokers.away_s(broker, wait.t, stored.stored_t)
        late_s = passed_s - delay_s(wait.level) - away_s
        if late_s > LATE_S + DRIFT * away_s + ages.unknown_s(broker, wait.t, stored.stored_t):
            text = f"{stored.queue}: delayed {stored.body!r:.60} was sent at {wait.t:.3f} with level {wait.level}"
            found.append(Violation("D1", stored.stored_t, f"{text} and arrived {late_s:.3f} s late"))
    return found


def _retries_early(history: History) -> list[Violation]:
    ages, backs = Ages(history), SendBacks(history)
    found = []
    for call in history.of(ConcurrentCallBegan):
        for each in call.given:
            requested = backs.tries.get((call.queue.group, call.queue.broker, each.body, each.retries - 1), [])
            waits = [(sent.t, delay_s(sent.level or each.retries - 1 + FIRST_RETRY_LEVEL)) for sent in requested if sent.level >= 0]
            if not waits:
                continue  # checkers/copies.py
            broker = call.queue.broker
            early_s = min(delay - ages.passed_s(broker, sent_t, call.t) for sent_t, delay in waits) - ages.forward_s(
                broker, requested[0].t, call.t
            )
            if early_s > MS + ages.unknown_s(broker, requested[0].t, call.t):
                text = f"{call.queue}: {each.body!r:.60} was given for its try {each.retries + 1} {early_s:.3f} s early"
                found.append(Violation("D1", call.t, f"{text}: sent back at {requested[0].t:.3f}"))
    return found


def _lost(history: History) -> list[Violation]:
    """Check that acknowledged messages are in the final log, unless power cuts under async flush may have removed every such write."""
    if not history.of(MessageStored):
        return []
    messages, brokers = Messages(history), Brokers(history)
    requests = {event.request: event.body for event in history.of(DelayedSendWritten)}
    kept: dict[bytes, DelayedSendResponded] = {}
    for place, event in enumerate(history):
        if not isinstance(event, DelayedSendResponded) or event.code != ResponseCode.SUCCESS:
            continue
        if brokers.removing_cut(event.queue.broker, event.process, place, event.t) is None:
            kept.setdefault(requests[event.request], event)
    found = []
    for acked in history.of(DelayedSendAcked):
        response, places = kept.get(acked.body), messages.places.get(acked.body, [])
        read = messages.read.get(acked.queue)
        if response is not None and not places and read is not None and not read.first:
            text = f"delayed {acked.body!r:.60} was acknowledged at {acked.t:.3f} ({acked.queue}), and is in no queue"
            found.append(Violation("D1", acked.t, text))
    return found


def _bounded(history: History) -> list[Violation]:
    messages = Messages(history)
    written: dict[bytes, dict[str, int]] = {}
    for event in history.of(DelayedSendWritten):
        of_body = written.setdefault(event.body, {})
        of_body[event.queue.broker] = of_body.get(event.queue.broker, 0) + 1
    found = []
    for body, counts in written.items():
        for broker, count in counts.items():
            places = [stored for stored in messages.places.get(body, ()) if stored.queue.broker == broker]
            if len(places) > count:
                where = ", ".join(f"{stored.queue} offset {stored.offset}" for stored in places)
                text = f"delayed {body!r:.60} was written {count} times to {broker} and is stored {len(places)} times: {where}"
                found.append(Violation("R9", places[-1].t, text))
    return found

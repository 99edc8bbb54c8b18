"""D1 of retries: a message that was sent back waits in a queue of a delay level, and its copy is never early or late.

A retry is due when its level's delay has passed since it was stored, by the boot clock of its broker's machine, however the wall clock is
set meanwhile. Only a start after a power cut uses the wall clock. That none is lost, and how many copies there may be, is C2 (copies.py).
"""

from operator import itemgetter

from lockstep.protocol.delays import FIRST_RETRY_LEVEL, LEVELS_MS
from lockstep.protocol.names import RETRY_PREFIX
from sweep.checkers.ages import DRIFT, LATE_S, MS, STEP_S, Ages
from sweep.checkers.concurrent_facts import SendBacks
from sweep.checkers.violation import Violation
from sweep.events.consumers import ConcurrentCallBegan
from sweep.events.sends import SendBackSent
from sweep.events.universe import CopyStored
from sweep.history import History

Waits = list[tuple[float, float]]
"""(when a message was sent back, the delay of its next try in s), in order."""


def check(history: History) -> list[Violation]:
    if not history.of(SendBackSent):
        return []
    ages, backs = Ages(history), SendBacks(history)
    return [*_early(history, ages, backs), *_late(history, ages, backs)]


def _waits(backs: SendBacks, group: str, broker: str, body: bytes, retries: int) -> Waits:
    """Return the waits of a message for its try of this number."""
    requested = backs.tries.get((group, broker, body, retries - 1), [])
    levels = [(sent.t, sent.level or retries - 1 + FIRST_RETRY_LEVEL) for sent in requested if sent.level >= 0]
    return [(t, LEVELS_MS[min(level, len(LEVELS_MS)) - 1] / 1_000) for t, level in levels]


def _early(history: History, ages: Ages, backs: SendBacks) -> list[Violation]:
    found = []
    for call in history.of(ConcurrentCallBegan):
        for each in call.given:
            broker = call.queue.broker
            waits = _waits(backs, call.queue.group, broker, each.body, each.retries)
            if not waits:
                continue  # checkers/copies.py
            since = waits[0][0]
            early_s = min(delay_s - ages.passed_s(broker, t, call.t) for t, delay_s in waits) - ages.forward_s(broker, since, call.t)
            if early_s > MS + ages.unknown_s(broker, since, call.t):
                text = f"{call.queue}: {each.body!r:.60} was given for its try {each.retries + 1} {early_s:.3f} s early"
                found.append(Violation("D1", call.t, f"{text}: sent back at {since:.3f}"))
    return found


def _late(history: History, ages: Ages, backs: SendBacks) -> list[Violation]:
    """Report copies that came late to their topic. A machine that was off is excused if its wall clock was wrong for long before, or
    afterwards.

    A message may be sent back several times, with other levels: a copy is late if it is late for each request that can have stored it. The
    time of the copy is that of the store's clock, which may have drifted since the first start.
    """
    found = []
    for copy in history.of(CopyStored):
        broker, topic = copy.queue.broker, copy.queue.topic
        if not topic.startswith(RETRY_PREFIX) or copy.stored_t is None or not ages.is_known(broker, copy.stored_t):
            continue
        waits = _waits(backs, topic.removeprefix(RETRY_PREFIX), broker, copy.body, copy.retries)
        passed = [(t, ages.passed_s(broker, t, copy.stored_t) - delay_s) for t, delay_s in waits]
        if not passed:
            continue  # checkers/copies.py
        early_s = STEP_S + DRIFT * copy.stored_t + ages.unknown_s(broker, waits[0][0], copy.stored_t)
        t, over_s = min((one for one in passed if one[1] >= -early_s), key=itemgetter(1), default=passed[0])
        away_s = ages.brokers.away_s(broker, t, copy.stored_t)
        late_s = over_s - away_s
        if late_s > LATE_S + DRIFT * away_s + ages.unknown_s(broker, t, copy.stored_t):
            text = f"{copy.queue}: {copy.body!r:.60} was sent back at {t:.3f}, and its copy for try {copy.retries + 1} arrived"
            found.append(Violation("D1", copy.stored_t, f"{text} {late_s:.3f} s late"))
    return found

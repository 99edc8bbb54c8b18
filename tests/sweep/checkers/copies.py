"""C2 and R9 of concurrent groups: a message sent back is delivered again as its next try, or is a dead letter when its tries are used up.

a  a copy has one try more than the message of which it is a copy, and that message was sent back
b  there are no more tries than the group allows; `%DLQ%` has only messages without a try left, or that their listener dead-lettered
c  there are at most as many copies as requests: a send back whose response was lost is repeated, and such copies are counted.
   A retry is delayed like any delayed message, and a crash may interrupt the write that delivers it
d  an ordered batch is dead-lettered when it has failed as often as its group allows, each message once, and progress moves past it
"""

from lockstep.protocol.delays import RETRIES_MAX
from lockstep.protocol.names import RETRY_PREFIX
from sweep.checkers.concurrent_facts import SendBacks, StoredCopies, Try
from sweep.checkers.facts import Brokers
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import ConcurrentCallBegan, ConsumerStarted
from sweep.events.sends import SendBackSent
from sweep.events.universe import CopyStored
from sweep.history import History


def check(history: History) -> list[Violation]:
    if not (len(history.of(ConcurrentCallBegan)) or len(history.of(CopyStored))):
        return []
    return [*_tries(history), *_concurrent(history)]


def possible_duplicates(history: History) -> int:
    """Count copies beyond the first of one message at one try, which are allowed and published."""
    stored_copies = StoredCopies(history)
    return sum(len(copies) - 1 for found in (stored_copies.retries, stored_copies.dead) for copies in found.values())


def _limit(sent: SendBackSent) -> int:
    return RETRIES_MAX if sent.retries_max is None else sent.retries_max


def _tries(history: History) -> list[Violation]:
    """Check a and b for the messages that listeners are given."""
    found = []
    given: dict[tuple[int, str, int], tuple[bytes, int]] = {}
    sent: set[Try] = set()
    limits: dict[str, int] = {}
    for event in history:
        if isinstance(event, ConcurrentCallBegan):
            group, broker = event.queue.group, event.queue.broker
            again = event.queue.topic.startswith(RETRY_PREFIX)
            where = f"call {event.call} of {event.queue} in {process_name(event)}"
            for each in event.given:
                given[event.process, broker, each.position] = (each.body, each.retries)
                what = f"{where} got {each.body!r:.60} at its try {each.retries + 1}"
                if again != (each.retries > 0):
                    found.append(Violation("C2", event.t, f"{what}: it was read from {event.queue.topic}"))
                elif again and (group, broker, each.body, each.retries - 1) not in sent:
                    found.append(Violation("C2", event.t, f"{what}: the try before had not been sent back"))
                elif again and each.retries > limits[group]:
                    found.append(Violation("C2", event.t, f"{what}: the group allows {limits[group]} retries"))
        elif isinstance(event, SendBackSent):
            message = given.get((event.process, event.broker, event.position))
            limits[event.group] = _limit(event)
            if message is not None:
                sent.add((event.group, event.broker, *message))
    return found


def _concurrent(history: History) -> list[Violation]:
    """Check a, b and c for the copies of concurrent groups in the final reading."""
    groups = {consumer.group: None for consumer in history.of(ConsumerStarted) if not consumer.ordered}
    backs, stored_copies, brokers = SendBacks(history), StoredCopies(history), Brokers(history)
    found = [
        Violation("C2", sent.t, f"{process_name(sent)} sent {sent.broker}:{sent.position} back and was never given it")
        for sent in backs.unknown
    ]
    for kind, copies in (("retry", stored_copies.retries), ("dead letter", stored_copies.dead)):
        for (group, broker, body, retries), stored in copies.items():
            if group not in groups:
                continue
            requests = backs.tries.get((group, broker, body, retries - 1), [])
            where = f"{kind} {stored[0].queue} offset {stored[0].offset}: {body!r:.60} at its try {retries + 1}"
            right = [sent for sent in requests if (sent.level < 0 or retries > _limit(sent)) == (kind == "dead letter")]
            if not requests:
                found.append(Violation("C2", stored[0].t, f"{where}: the try before had not been sent back"))
            elif not right:
                text = f"{where}: it was sent back at {requests[0].t:.3f} with level {requests[0].level}, of {_limit(requests[0])} retries"
                found.append(Violation("C2", stored[0].t, text))
            allowed = len(right) + (_restarts(brokers, broker) if kind == "retry" else 0)
            if right and len(stored) > allowed:
                found.append(
                    Violation("R9", stored[0].t, f"{where}: it is stored {len(stored)} times, and was requested {len(right)} times")
                )
    return found


def _restarts(brokers: Brokers, broker: str) -> int:
    return max(0, len(brokers.lives.get(broker, ())) - 1)

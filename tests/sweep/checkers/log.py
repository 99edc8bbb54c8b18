"""O8, R1, R2, R7: the log. Acknowledged messages are stored, at their place, in their order; delivered messages remain.

Under async flush a power cut may remove a suffix: only messages that were confirmed within the last flush interval and one sync of the
process' running time, none that a later start had made durable, and none before a message that remains. The offsets are used again under a
higher generation. A send with `require="written"` may be lost in a power cut under sync flush too, before any reader has seen it.
"""

from bisect import bisect_left

from lockstep.protocol.codes import ResponseCode
from sweep.checkers.facts import Brokers, Deletions
from sweep.checkers.messages import Messages
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import CallBegan
from sweep.events.locks import LockGranted
from sweep.events.producers import SendAcked, SendBegan
from sweep.events.sends import FrameResponded, FrameWritten, LayoutSent
from sweep.events.universe import BrokerOpened, MessageStored
from sweep.history import History, QueueKey

_STORED = (ResponseCode.SUCCESS, ResponseCode.DUPLICATE)


def check(history: History) -> list[Violation]:
    if not history.of(MessageStored) and not history.of(SendAcked):
        return []
    messages, brokers = Messages(history), Brokers(history)
    return [
        *_has_every_offset(messages),
        *_logs_begin_at_zero(history, messages),
        *_one_message_at_an_offset(history, brokers),
        *_one_message_in_a_generation(history),
        *_recreated_topics_are_empty(history, messages),
        *_acknowledged_messages_are_stored(history, messages, brokers),
        *_losses_are_suffixes(history, messages, brokers),
        *_in_real_time_order(history, messages),
        *_delivered_messages_remain(history, messages, brokers),
    ]


def _has_every_offset(messages: Messages) -> list[Violation]:
    """Check O8: the final log of each queue has all offsets from its first to its end."""
    found = []
    by_queue: dict[QueueKey, list[MessageStored]] = {}
    for (queue, _), stored in sorted(messages.stored.items()):
        by_queue.setdefault(queue, []).append(stored)
    for queue, read in messages.read.items():
        # Messages before `first` were read before retention removed them.
        offsets = [stored.offset for stored in by_queue.get(queue, []) if stored.offset >= read.first]
        if offsets != list(range(read.first, read.end)):
            missing = sorted(set(range(read.first, read.end)) - set(offsets))[:5]
            beyond = sorted(set(offsets) - set(range(read.first, read.end)))[:5]
            text = f"{queue}: the final log should have {read.first} … {read.end - 1}; missing {missing}, beyond {beyond}"
            found.append(Violation("O8", read.t, text))
    return found


def _logs_begin_at_zero(history: History, messages: Messages) -> list[Violation]:
    """Check R1: each queue begins at offset 0 if retention removes nothing and no topic was deleted."""
    deletions, keeping = Deletions(history), {event.broker: event.removes_nothing for event in history.of(BrokerOpened)}
    return [
        Violation("R1", read.t, f"{queue}: the final log begins at {read.first}, and nothing had removed the messages below")
        for queue, read in messages.read.items()
        if read.first > 0 and keeping.get(queue.broker) and not deletions.any_of(queue.topic)
    ]


class _Known:
    """The latest time at which the log had each message: at the response, else when it was sent."""

    def __init__(self, history: History) -> None:
        self._responded = {body: rows[0][0] for body, rows in _responses(history).items()}
        self._began: dict[bytes, int] = {}
        self._granted: dict[tuple[QueueKey, int], int] = {}
        """(queue, epoch) → place of the grant: the messages of a call were fetched later, whenever the call began."""
        for place, event in enumerate(history):
            if isinstance(event, SendBegan):
                self._began.setdefault(event.body, place)
            elif isinstance(event, LockGranted):
                self._granted.setdefault((event.queue, event.epoch), place)

    def sent(self, body: bytes, place: int) -> int:
        return min(place, self._responded.get(body, self._began.get(body, place)))

    def fetched(self, call: CallBegan) -> int:
        return self._granted.get((call.queue, call.epoch), 0)


def _one_message_at_an_offset(history: History, brokers: Brokers) -> list[Violation]:
    """Check O8: the message of (queue, offset) never changes, except over a power cut under async flush, or if it was only written."""
    found = []
    known = _Known(history)
    seen: dict[tuple[QueueKey, int], tuple[bytes, int, float, bool]] = {}
    """(queue, offset) → body, place from which on it was stored, time, whether it was only written."""
    for place, event in enumerate(history):
        if isinstance(event, CallBegan):
            rows, since = event.messages, known.fetched(event)
        elif isinstance(event, SendAcked | MessageStored) and event.offset >= 0:
            rows, since = ((event.offset, event.body),), place if isinstance(event, MessageStored) else known.sent(event.body, place)
        else:
            continue
        queue, written = event.queue.stored, isinstance(event, SendAcked) and event.written
        for offset, body in rows:
            before = seen.get((queue, offset))
            if before is not None and before[0] != body:
                first = min(before[1], since)
                cuts = brokers.all_cuts(queue.broker) if written or before[3] else brokers.lossy_cuts(queue.broker)
                if not any(first < cut < place for cut in cuts):
                    text = (
                        f"{queue} offset {offset}: {before[0]!r:.60} at {before[2]:.3f}, {body!r:.60} now, without a power cut in between"
                    )
                    found.append(Violation("O8", event.t, text))
            seen[queue, offset] = (body, since, event.t, written)
    return found


def _one_message_in_a_generation(history: History) -> list[Violation]:
    """Check O8: inside one generation of a group an offset is one message."""
    found = []
    generations = {(grant.queue, grant.epoch): grant.generation for grant in history.of(LockGranted)}
    called: dict[tuple[QueueKey, int, int], bytes] = {}
    for call in history.of(CallBegan):
        generation = generations.get((call.queue, call.epoch))
        for offset, body in call.messages if generation is not None else ():
            assert generation is not None
            before = called.setdefault((call.queue, generation, offset), body)
            if before != body:
                text = f"{call.queue} offset {offset}: {before!r:.40}, then {body!r:.40}, both in generation {generation}"
                found.append(Violation("O8", call.t, f"{text} (epoch {call.epoch}, {process_name(call)})"))
    return found


def _acknowledged_messages_are_stored(history: History, messages: Messages, brokers: Brokers) -> list[Violation]:
    """Check R1: every acknowledged message is in the final log at the acknowledged place, unless a power cut may have removed it."""
    found = []
    responses, deletions, layouts = _responses(history), Deletions(history), _layouts(history)
    for acked in messages.acked.values():
        read = messages.read.get(acked.queue)
        if read is None or 0 <= acked.offset < read.first:
            continue
        if acked.offset >= 0:
            stored = messages.stored.get((acked.queue, acked.offset))
            there = stored is not None and stored.body == acked.body
        else:
            there = any(stored.queue == acked.queue for stored in messages.places.get(acked.body, ()))
        if there:
            continue
        if deletions.after(acked.queue.topic, layouts.get(acked.body)):
            continue
        responded = [(place, one) for place, one in responses.get(acked.body, ()) if one.queue == acked.queue]
        taken = [brokers.removing_cut(acked.queue.broker, one.process, place, one.t, written=acked.written) for place, one in responded]
        if taken and None not in taken:
            continue
        now = messages.stored.get((acked.queue, acked.offset))
        instead = "nothing is there" if now is None else f"{now.body!r:.60} is there"
        text = f"{acked.queue} offset {acked.offset}: {acked.body!r:.60} was acknowledged at {acked.t:.3f} and is lost; {instead}"
        found.append(Violation("R1", acked.t, text))
    return found


def _layouts(history: History) -> dict[bytes, tuple[int, int] | None]:
    """Return the layout over which each body was hashed last; None for an unkeyed send."""
    return {body: frame.layout for frame in history.of(FrameWritten) for body in frame.bodies}


def _recreated_topics_are_empty(history: History, messages: Messages) -> list[Violation]:
    """Check ordering.md 2.4, 9.5: a topic that is created again is empty on every broker."""
    layouts, found = _layouts(history), []
    newest: dict[str, tuple[int, bytes]] = {}
    for body in messages.began:
        layout, topic = layouts.get(body), messages.began[body].topic
        if layout is not None and body in messages.acked:
            newest[topic] = max(newest.get(topic, (0, b"")), (layout[0], body))
    for deleted in history.of(LayoutSent):
        now = newest.get(deleted.topic, (0, b""))
        if not deleted.deleted or now[0] <= deleted.counter:
            continue
        for stored in messages.stored.values():
            layout = layouts.get(stored.body)
            if stored.queue.topic == deleted.topic and layout is not None and layout[0] < deleted.counter:
                what = f"{stored.queue} offset {stored.offset}: {stored.body!r:.40} of layout {layout[0]} is still there"
                found.append(
                    Violation("O8", deleted.t, f"{what}; layout {deleted.counter} deleted the topic, layout {now[0]} created it again")
                )
                break
    return found


def _responses(history: History) -> dict[bytes, list[tuple[int, FrameResponded]]]:
    """Return the (place, response) of each frame whose response confirmed that it is or was stored, by body."""
    written = {frame.request: frame for frame in history.of(FrameWritten)}
    found: dict[bytes, list[tuple[int, FrameResponded]]] = {}
    for place, event in enumerate(history):
        if isinstance(event, FrameResponded) and event.code in _STORED and event.request in written:
            for body in written[event.request].bodies:
                found.setdefault(body, []).append((place, event))
    return found


def _losses_are_suffixes(history: History, messages: Messages, brokers: Brokers) -> list[Violation]:
    """Check R1: of the messages that one power cut may have removed, no lost one was before a remaining one."""
    found = []
    periods: dict[tuple[str, int], list[tuple[int, bool, bytes, float]]] = {}
    written = {frame.request: frame for frame in history.of(FrameWritten)}
    deletions = Deletions(history)
    for body, responded in _responses(history).items():
        placed = [(place, response) for place, response in responded if response.position >= 0]
        for place, response in placed if body in messages.acked else ():
            broker = response.queue.broker
            cut = next((cut for cut in brokers.all_cuts(broker) if cut > place), None)
            read = messages.read.get(response.queue)
            if cut is None or read is None or deletions.any_of(response.queue.topic) or brokers.has_copies(broker):
                continue  # another copy of the log may have what it had not acknowledged itself
            # Sent again after a cut that removed it, it may be stored at the same offset and a higher log position.
            last = next(one for _, one in reversed(placed) if (one.queue, one.offset) == (response.queue, response.offset))
            offset = response.offset + written[response.request].bodies.index(body)
            stored = messages.stored.get((response.queue, offset))
            left = response.position == last.position and stored is not None and stored.body == body
            if left or offset >= read.first:
                periods.setdefault((broker, cut), []).append((response.position, left, body, response.t))
    for (broker, _), rows in periods.items():
        gone = min((row for row in rows if not row[1]), default=None)
        later = max((row for row in rows if row[1]), default=None)
        if gone is not None and later is not None and later[0] > gone[0]:
            text = (
                f"{broker}: {gone[2]!r:.60} at log offset {gone[0]} (confirmed {gone[3]:.3f}) is gone, and {later[2]!r:.60} at {later[0]} "
                f"(confirmed {later[3]:.3f}) after it is left: a power cut removes a suffix"
            )
            found.append(Violation("R1", gone[3], text))
    return found


def _in_real_time_order(history: History, messages: Messages) -> list[Violation]:
    """Check R2: a message acknowledged before another one was sent has the lower offset. Only messages that survived are compared."""
    found = []
    places: dict[QueueKey, list[int]] = {}
    tops: dict[QueueKey, list[tuple[int, SendAcked]]] = {}
    began: dict[bytes, int] = {}
    for place, event in enumerate(history):
        if isinstance(event, SendBegan):
            began.setdefault(event.body, place)
        elif isinstance(event, SendAcked) and event.offset >= 0:
            stored = messages.stored.get((event.queue, event.offset))
            if stored is None or stored.body != event.body:
                continue
            mine, top = places.setdefault(event.queue, []), tops.setdefault(event.queue, [])
            at = bisect_left(mine, began.get(event.body, place))
            if at and top[at - 1][0] >= event.offset:
                other = top[at - 1][1]
                text = (
                    f"{event.queue}: {other.body!r:.40} offset {other.offset} was acknowledged at {other.t:.3f}, before {event.body!r:.40}"
                )
                found.append(Violation("R2", event.t, f"{text} offset {event.offset} was sent"))
            if not top or event.offset > top[-1][0]:
                mine.append(place)
                top.append((event.offset, event))
    return found


def _delivered_messages_remain(history: History, messages: Messages, brokers: Brokers) -> list[Violation]:
    """Check R7: messages that a listener was given are in the final log, unless the power was cut under async flush after its grant."""
    found = []
    known = _Known(history)
    reported: set[tuple[QueueKey, int, bytes]] = set()
    for call in history.of(CallBegan):
        queue = call.queue.stored
        read = messages.read.get(queue)
        if read is None or any(cut > known.fetched(call) for cut in brokers.lossy_cuts(queue.broker)):
            continue
        for offset, body in call.messages:
            stored = messages.stored.get((queue, offset))
            if offset >= read.first and (stored is None or stored.body != body) and (queue, offset, body) not in reported:
                reported.add((queue, offset, body))
                instead = "nothing" if stored is None else f"{stored.body!r:.60}"
                where = f"{call.queue} offset {offset}: {body!r:.60} was given to {process_name(call)}"
                found.append(Violation("R7", call.t, f"{where}; the final log has {instead}"))
    return found

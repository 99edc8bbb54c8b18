"""H1–H5: half messages of transactions.

H1  A message that was acknowledged in its block is delivered if its local transaction was committed: it is in the final log, once for each
    stream of frames that carried it. The half message is on disk, so that no power cut removes it
H2  A message is delivered only after its local transaction was committed
H3  A message whose local transaction was rolled back is never delivered
H4  No half message is left: brokers ask until they know (waiting.py)
H5  A broker that has answered that a message is committed does not answer later that it is rolled back, nor the other way round, unless a
    power cut lies between the two
"""

from collections.abc import Iterator

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.transactions import COMMIT, UNKNOWN
from sweep.checkers.ages import givings
from sweep.checkers.facts import Brokers, Deletions
from sweep.checkers.messages import Messages
from sweep.checkers.violation import Violation, process_name
from sweep.events.producers import DelayedSendAcked, LocalEnded
from sweep.events.sends import EndResponded, HalvesWritten
from sweep.events.universe import MessageStored
from sweep.history import History


def check(history: History) -> list[Violation]:
    if not history.of(HalvesWritten):
        return []
    halves = _Halves(history)
    return [*halves.delivered(), *halves.lost(), *halves.repeated(), *halves.changed()]


class _Halves:
    """The checks of one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.messages, self.deletions, self.brokers = Messages(history), Deletions(history), Brokers(history)
        self.written: dict[bytes, list[HalvesWritten]] = {}
        for frame in history.of(HalvesWritten):
            for body in frame.bodies:
                self.written.setdefault(body, []).append(frame)
        self.local: dict[str, LocalEnded] = {event.transaction: event for event in history.of(LocalEnded)}

    def _transaction(self, body: bytes) -> str:
        began = self.messages.began.get(body)
        return "" if began is None else began.transaction

    def _places(self, broker: str, body: bytes) -> list[MessageStored]:
        return [stored for stored in self.messages.places.get(body, ()) if stored.queue.broker == broker]

    def delivered(self) -> Iterator[Violation]:
        for event, queue, bodies in givings(self.history):
            for body in bodies:
                if body not in self.written:
                    continue
                transaction = self._transaction(body)
                local, where = self.local.get(transaction), f"{queue}: {body!r:.60} was given to {process_name(event)}"
                if local is None or (local.committed and local.t > event.t):
                    yield Violation("H2", event.t, f"{where}; transaction {transaction} was not committed then")
                elif not local.committed:
                    yield Violation("H3", event.t, f"{where}; transaction {transaction} was rolled back at {local.t:.3f}")
        for stored in self.history.of(MessageStored):
            transaction = self._transaction(stored.body) if stored.body in self.written else ""
            if transaction and ((local := self.local.get(transaction)) is None or not local.committed):
                text = f"{stored.queue} offset {stored.offset}: {stored.body!r:.60} is stored; transaction {transaction} was not committed"
                yield Violation("H3", stored.t, text)

    def lost(self) -> Iterator[Violation]:
        for acked in self.history.of(DelayedSendAcked):
            frames, local = self.written.get(acked.body), self.local.get(self._transaction(acked.body))
            read = self.messages.read.get(acked.queue)
            if frames is None or local is None or not local.committed or read is None or read.first:
                continue
            broker, topic = acked.queue.broker, acked.queue.topic
            if any(self.deletions.after(topic, (frame.began, 0)) for frame in frames):
                continue
            if not self._places(broker, acked.body):
                text = f"{acked.body!r:.60} of transaction {local.transaction} was acknowledged at {acked.t:.3f} ({acked.queue})"
                yield Violation("H1", acked.t, f"{text}, its local transaction committed at {local.t:.3f}; it is in no queue")

    def repeated(self) -> Iterator[Violation]:
        for body, frames in self.written.items():
            for broker in dict.fromkeys(frame.queue.broker for frame in frames):
                here = self._places(broker, body)
                streams = len({(frame.producer, frame.sequence[:2]) for frame in frames if frame.queue.broker == broker})
                if len(here) > streams:
                    where = ", ".join(f"{stored.queue} offset {stored.offset}" for stored in here)
                    yield Violation("H1", here[-1].t, f"{body!r:.60} was sent to {broker} in {streams} streams and is stored: {where}")

    def changed(self) -> Iterator[Violation]:
        known: dict[tuple[str, str], tuple[int, int]] = {}
        for place, event in enumerate(self.history):
            if not isinstance(event, EndResponded) or event.code != ResponseCode.SUCCESS or event.outcome == UNKNOWN:
                continue
            for message_id in event.message_ids:
                before, outcome = known.get((event.broker, message_id), (place, event.outcome))
                if outcome != event.outcome and not any(before < cut < place for cut in self.brokers.lossy_cuts(event.broker)):
                    said = "committed" if event.outcome == COMMIT else "rolled back"
                    yield Violation("H5", event.t, f"{event.broker}: message {message_id} is {said}, and was answered otherwise before")
                known[event.broker, message_id] = place, event.outcome

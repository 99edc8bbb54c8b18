"""M6–M11: masters that are elected by a register (docs/replication.md). Checked from the register, the connections and the disks.

M6   a term has one writer, which the register names before it serves; when it opens, all who may be elected have the beginning of the term
M7   each later master has, byte by byte, what an earlier one told as confirmed, unless all who had it lost their power under async flush
M8   nobody answers a client that wrote its request after a higher term had opened, but with what is true whoever is the master
M9   the set changes by the master alone, in its term; terms rise, each by a present member of the last set, which stays as it was
M10  a loss is assumed only where nobody has kept everything; otherwise the next master renews who holds a queue
M11  in the calm each broker has one master and all its copies in the set within CALM_S
"""

from collections.abc import Iterator

from lockstep.protocol.codes import RequestCode, ResponseCode
from sweep.checkers.violation import Violation, process_name
from sweep.elections_watch import host_of
from sweep.events.elections import ConfirmedLost, CopiesInStep, DeposedAnswered, Elected, RegisterSeen, TermLacked, TermServed
from sweep.events.locks import GrantReceived, LeaveSent, LockGranted, LockRefused, ProofReceived
from sweep.events.progress import CommitSent
from sweep.events.replicas import MasterOpened
from sweep.events.sends import FrameResponded
from sweep.history import Event, History, ItemVerdict, QueueKey

AT_ONCE = frozenset(
    {
        *(RequestCode.REPLICA_STATUS, RequestCode.REPLICA_FOLLOW, RequestCode.REPLICA_FETCH, RequestCode.REPLICA_FILE),
        *(RequestCode.REPLICA_HAND_OVER, RequestCode.REPLICA_PROMOTE, RequestCode.AUTHENTICATE, RequestCode.OVERVIEW),
        *(RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG, RequestCode.GROUP_EVENTS),
    }
)
"""Requests whose responses need no proof of office: clients do not act on them as on those of the only master."""
CALM_S = 20.0
"""A member that was silent stays out of the set for 10 s, and then has what is missing to copy."""
KEPT_S = 0.8
"""Somebody who was proven so long before the loss of a master is renewed for so long by the next one, with any grace."""
PULLED = frozenset({ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})
"""Responses to pulls that are facts: confirmed messages at their offsets, or none."""


def check(history: History) -> list[Violation]:
    if not history.of(RegisterSeen):
        return []
    return [
        *_terms(history),
        *_confirmed(history),
        *_answers(history),
        *_values(history),
        *_losses(history),
        *_in_step(history),
        *_epochs(history),
    ]


def _terms(history: History) -> Iterator[Violation]:
    named: dict[tuple[str, int], str] = {}
    """(broker, term) → machine."""
    served: dict[tuple[str, int], int] = {}
    for event in history:
        if isinstance(event, RegisterSeen):
            named.setdefault((event.broker, event.term), host_of(event, event.master))
        elif isinstance(event, TermServed | MasterOpened):
            term, who = (event.broker, event.term), process_name(event)
            if named.get(term) != event.machine:
                what = f"{who} serves {event.broker} in term {event.term}, which the register gives to {named.get(term, 'nobody yet')}"
                yield Violation("M6", event.t, what)
            if served.setdefault(term, event.process) != event.process:
                yield Violation("M6", event.t, f"{who} serves {event.broker} in term {event.term}, as #{served[term]} did")

    for lacked in history.of(TermLacked):
        what = f"{process_name(lacked)} serves {lacked.broker} in term {lacked.term}"
        yield Violation("M6", lacked.t, f"{what}, of which {lacked.member}, which may be elected, has not heard")


def _confirmed(history: History) -> Iterator[Violation]:
    for lost in history.of(ConfirmedLost):
        if not lost.may_lack:
            what = f"{process_name(lost)} serves {lost.broker} with other bytes at {lost.position}, which an earlier master had confirmed"
            yield Violation("M7", lost.t, what)


def _answers(history: History) -> Iterator[Violation]:
    for answer in history.of(DeposedAnswered):
        is_fact = answer.code == RequestCode.PULL_MESSAGE and answer.response in PULLED
        if answer.code in AT_ONCE or is_fact or answer.response == ResponseCode.NOT_LEADER:
            continue
        what = f"{process_name(answer)}, master in term {answer.term}, answered request {answer.code} by {answer.response}"
        rest = f"which was written at {answer.request_t:.6f}: a later master had opened at {answer.opened_t:.6f}"
        yield Violation("M8", answer.t, f"{what}, {rest}")


def _values(history: History) -> Iterator[Violation]:
    last: dict[str, RegisterSeen] = {}
    for event in history.of(RegisterSeen):
        before = last.get(event.broker)
        if before is None or event.version > before.version:
            last[event.broker] = event
            if before is not None and (problem := _problem(before, event)):
                yield Violation("M9", event.t, f"the register of {event.broker}: {problem}: {before} → {event}")
    for elected in history.of(Elected):
        if not elected.is_present:
            what = f"{elected.machine} was elected for {elected.broker}, term {elected.term}, and may lack what it had acknowledged"
            yield Violation("M9", elected.t, what)


def _problem(before: RegisterSeen, after: RegisterSeen) -> str:
    """Return what is wrong with a change of the register; empty if nothing is."""
    if after.write.partition("-")[0] != after.master:
        return "written by another than the master that it names"
    if after.log != before.log:
        return "another log"
    if after.term == before.term:
        return "" if after.master == before.master else "two masters in one term"
    if after.term < before.term:
        return "an earlier term"
    if after.assumed_loss:
        return "" if after.in_sync == (after.master,) else "others are in the set of a master that may lack something"
    if after.master not in before.in_sync:
        return "elected from outside of the set"
    return "" if after.in_sync == before.in_sync else "an election has changed the set"


def _losses(history: History) -> Iterator[Violation]:
    for seen, elected in _assumed(history):
        if elected.others:
            what = f"{elected.machine} assumed a loss of {seen.broker}, term {seen.term} ({seen.why})"
            yield Violation("M10", elected.t, f"{what}: {', '.join(elected.others)} has everything")


def _assumed(history: History) -> Iterator[tuple[RegisterSeen, Elected]]:
    elected = {(event.broker, event.term): event for event in history.of(Elected)}
    for seen in history.of(RegisterSeen):
        if seen.assumed_loss and (found := elected.pop((seen.broker, seen.term), None)) is not None:
            yield seen, found


def _in_step(history: History) -> Iterator[Violation]:
    for step in history.of(CopiesInStep):
        if step.seconds > CALM_S:
            yield Violation("M11", step.t, f"all copies were in their sets {step.seconds:.1f} s after the calm")


class _Held:
    """Queues that sessions hold, and when each session was last proven."""

    def __init__(self) -> None:
        self.epochs: dict[QueueKey, tuple[str | None, int]] = {}
        self.proven: dict[tuple[str | None, str], float] = {}

    def note(self, event: Event) -> None:
        if isinstance(event, GrantReceived):
            self.epochs[event.queue] = event.session, event.epoch
        elif isinstance(event, CommitSent) and event.released:
            self.epochs.pop(event.queue, None)
        elif isinstance(event, ProofReceived):
            self.proven[event.session, event.broker] = event.request_t
        elif isinstance(event, LeaveSent):
            for queue in [queue for queue, (session, _) in self.epochs.items() if session == event.session and queue.group == event.group]:
                del self.epochs[queue]


def _epochs(history: History) -> Iterator[Violation]:
    """Check that who held a queue when a master was lost is renewed by the next one, unless one since has assumed a loss."""
    held = _Held()
    last_t: dict[str, float] = {}
    """When each broker answered last."""
    kept: dict[tuple[QueueKey, int], MasterOpened] = {}
    until: dict[str, float] = {}
    for event in history:
        held.note(event)
        if isinstance(event, MasterOpened):
            lost_t, until[event.broker] = last_t.get(event.broker, event.t), event.t + KEPT_S
            kept = {key: opened for key, opened in kept.items() if key[0].broker != event.broker}
            for queue, (session, epoch) in list(held.epochs.items()):
                if queue.broker != event.broker:
                    continue
                if event.assumes_loss:
                    del held.epochs[queue]  # whichever master tells the holder
                elif held.proven.get((session, queue.broker), 0) > lost_t - KEPT_S:
                    kept[queue, epoch] = event
        elif isinstance(event, FrameResponded | LockGranted | LockRefused):
            last_t[event.queue.broker] = event.t
            if isinstance(event, LockGranted) and not event.renewal:
                kept = {key: opened for key, opened in kept.items() if key[0] != event.queue}
            elif isinstance(event, LockRefused) and event.verdict is ItemVerdict.STALE and event.epoch is not None:
                opened = kept.get((event.queue, event.epoch))
                if opened is not None and opened.process == event.process and event.request_t < until[event.queue.broker]:
                    what = f"{event.queue} epoch {event.epoch} of session {event.session} ended by {process_name(event)}"
                    yield Violation("M10", event.t, f"{what}, which opened at {opened.t:.3f} and assumed no loss")

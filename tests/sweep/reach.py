"""Which rare places a run has reached. A sweep in which one of them was never reached proves nothing about it, and fails."""

from collections import Counter
from collections.abc import Callable

from lockstep.protocol.codes import ResponseCode
from sweep.broadcast_reach import MEMBERS
from sweep.checkers import handover
from sweep.checkers.facts import Deletions
from sweep.checkers.messages import Messages
from sweep.copy_reach import COPIES
from sweep.events import (
    BrokerOpened,
    CallBegan,
    CallEnded,
    ClassicLocked,
    ClassicUnlocked,
    CommitAnswered,
    CommitSent,
    ConsumerStarted,
    ConsumerStopped,
    Fault,
    FrameAnswered,
    GrantAnswered,
    LeaveSent,
    PauseBegan,
    ProcessEnded,
    ProgressReset,
    QueueFreeSent,
    QueueGapSeen,
    ServerFailed,
    SessionBound,
)
from sweep.history import Answer, CallResult, History, QueueKey, Reached
from sweep.journal import LogTap
from sweep.reader_reach import READERS

COUNTED_SEEDS_MIN = 1_000
"""A sweep of so many seeds reaches everything, or fails."""
SILENT = "nothing was heard of its session for the session timeout"
"""Why a broker closes the connection of a client that has vanished, or stands still."""


def _grace_used(history: History, _: LogTap) -> int:
    """A session came back to its broker on another connection and renewed what it had held before: counted once each time it came."""
    bound: dict[tuple[str, str], int] = {}
    came: set[tuple[str, str, int]] = set()
    for event in history:
        if isinstance(event, SessionBound):
            bound[event.session, event.broker] = event.number
        elif isinstance(event, GrantAnswered) and event.renewal and event.session is not None:
            number = bound.get((event.session, event.queue.broker), 1)
            if number > 1:
                came.add((event.session, event.queue.broker, number))
    return len(came)


def _late_offers(history: History, _: LogTap) -> int:
    """A LOCK brought a result that no answer had confirmed, of a call that had ended when its connection was gone: it was accepted."""
    taken: dict[QueueKey, int] = {}
    found = 0
    for event in history.of(CommitAnswered):
        if event.answer is Answer.OK and event.offset is not None:
            found += event.by == "LOCK" and event.offset > taken.get(event.queue, event.offset)
            taken[event.queue] = event.offset
    return found


def _not_yours_late(history: History, _: LogTap) -> int:
    return sum(event.by == "LOCK" and event.answer is Answer.NOT_YOURS for event in history.of(CommitAnswered))


def _leave_before_drain(history: History, _: LogTap) -> int:
    """A release after UNREGISTER_CLIENT."""
    left: set[tuple[int, str, str]] = set()
    found = 0
    for event in history:
        if isinstance(event, LeaveSent):
            left.add((event.process, event.group, event.broker))
        elif isinstance(event, ConsumerStarted):
            left = {one for one in left if one[:2] != (event.process, event.group)}
        elif isinstance(event, CommitSent) and event.released and (event.process, event.queue.group, event.queue.broker) in left:
            found += 1
    return found


def _epoch_raised_by_restart(history: History, _: LogTap) -> int:
    """A grant under a later term than the queue's last one."""
    terms: dict[QueueKey, int] = {}
    found = 0
    for grant in history.of(GrantAnswered):
        term = grant.epoch >> 32
        found += terms.get(grant.queue, term) < term
        terms[grant.queue] = term
    return found


def _overlaps(history: History, _: LogTap) -> int:
    """A call began while another process still worked on the queue."""
    running: dict[QueueKey, dict[int, int]] = {}
    found = 0
    for event in history:
        if isinstance(event, CallBegan):
            calls = running.setdefault(event.queue, {})
            found += any(process != event.process for process in calls.values())
            calls[event.call] = event.process
        elif isinstance(event, CallEnded):
            running.get(event.queue, {}).pop(event.call, None)
        elif isinstance(event, ProcessEnded):
            for calls in running.values():
                for call in [call for call, process in calls.items() if process == event.process]:
                    del calls[call]
    return found


def _repeats(history: History, _: LogTap) -> int:
    """A frame was answered with the place that it had got before, or as one that is known and whose place is not."""
    seen: dict[tuple[str, int, int], int] = {}
    found = 0
    for answer in history.of(FrameAnswered):
        place = (answer.queue.broker, answer.position, answer.process)
        found += answer.code == ResponseCode.DUPLICATE or seen.get(place, answer.request) != answer.request
        if answer.position >= 0:
            seen[place] = answer.request
    return found


def _written_lost(history: History, _: LogTap) -> int:
    """Under sync flush, acknowledged when it was written, and taken by a power cut."""
    messages, deletions = Messages(history), Deletions(history)
    lossy = {event.broker for event in history.of(BrokerOpened) if event.flush != "sync"}
    found = 0
    for acked in messages.acked.values() if messages.read else ():
        read = messages.read.get(acked.queue)
        if acked.written and acked.queue.broker not in lossy and read is not None and acked.offset >= read.first:
            found += acked.body not in messages.places and not deletions.any_of(acked.queue.topic)
    return found


def _told(name: str) -> Callable[[History, LogTap], int]:
    return lambda history, _: sum(event.name == name for event in history.of(Reached))


def _logged(event: str, fact: str | None = None) -> Callable[[History, LogTap], int]:
    return lambda _, log: log.counts[event] if fact is None else log.facts.get(event, Counter())[fact]


def _faults(kind: str) -> Callable[[History, LogTap], int]:
    return lambda history, _: sum(event.kind == kind for event in history.of(Fault))


def _exits(code: int) -> Callable[[History, LogTap], int]:
    return lambda history, _: sum(event.exit_code == code for event in history.of(ServerFailed))


def _lapsed(history: History, _: LogTap) -> int:
    """A classic client was granted a queue that another one had locked last and not unlocked."""
    last: dict[QueueKey, str] = {}
    found = 0
    for event in history:
        if isinstance(event, ClassicLocked) and event.granted:
            found += last.get(event.queue, event.client_id) != event.client_id
            last[event.queue] = event.client_id
        elif isinstance(event, ClassicUnlocked | GrantAnswered):
            last.pop(event.queue, None)
    return found


def _snapshots_ignored(history: History, _: LogTap) -> int:
    """A broker opened its port on a disk whose newest snapshot has a wrong bit."""
    rotten: dict[str, None] = {}
    found = 0
    for event in history:
        if isinstance(event, Fault) and event.kind == "disk rot":
            rotten[event.machine] = None
        elif isinstance(event, BrokerOpened) and event.machine in rotten:
            del rotten[event.machine]
            found += 1
    return found


def _asserted(history: History, _: LogTap) -> int:
    """A hand-over beside which nothing else went on, of another cause than a release."""
    return sum(one.alone and one.cause != "release" for one in handover.handovers(history))


def _updates_refused(history: History, _: LogTap) -> int:
    return sum(event.by == "UPDATE" and event.answer is Answer.REFUSED for event in history.of(CommitAnswered))


REACH: dict[str, Callable[[History, LogTap], int]] = {
    "grace used: renewed on a new connection": _grace_used,
    "result offered late and accepted": _late_offers,
    "late result accepted, queue another's": _not_yours_late,
    "QUEUE_FREE pushed": lambda history, _: len(history.of(QueueFreeSent)),
    "NOT_YOURS answered": _told("LOCK answered not yours"),
    "STALE answered to LOCK or SYNC": lambda history, log: (
        _told("LOCK answered stale")(history, log) + _told("SYNC answered stale")(history, log)
    ),
    "PULL answered STALE_EPOCH": _told("STALE_EPOCH answered"),
    "LOCK answered WAIT": _told("LOCK answered wait"),
    "LOCK answered HELD": _told("LOCK answered held"),
    "answer of a LOCK with a grant lost": _told("answer of LOCK with a grant lost"),
    "answer of a SYNC lost": _told("answer of SYNC lost"),
    "answer of a send lost": _told("answer of a send lost"),
    "epoch raised by a restart": _epoch_raised_by_restart,
    "two creators of one topic": _told("two creators of one topic"),
    "layout refused": _told("LAYOUT_STALE answered"),
    "duplicate dropped": _repeats,
    "frame out of sequence": _told("OUT_OF_SEQUENCE answered"),
    "contract refused": _told("SUBSCRIPTION_CONFLICT answered"),
    "second session of a client id refused": _told("DUPLICATE_CLIENT_ID answered"),
    "unsynced tail cut": _logged("log.recovered", "cut_bytes=True"),
    "unsynced hole in a log, good records behind it": _logged("log.holed"),
    "loss assumed after a power cut": _logged("log.recovered", "assumed_loss=True"),
    "nobody granted while the loss is held": _told("nobody is granted a queue after an assumed loss"),
    "broker ended by a disk error": _exits(3),
    "crash, silence or restart asserted by O7": _asserted,
    "corrupt log refused": _exits(5),
    "progress reset by hand": lambda history, _: len(history.of(ProgressReset)),
    "reset that nobody heard the answer of": _told("answer of a reset lost"),
    "group began within the storm": _told("group began"),
    "topic deleted under load": _told("topic deleted"),
    "classic lock refused": lambda history, _: sum(not event.granted for event in history.of(ClassicLocked)),
    "classic lock taken over when it had lapsed": _lapsed,
    "written only, and taken by a power cut": _written_lost,
    "offset without an epoch refused": _updates_refused,
    "cancellation defied": lambda history, _: sum(event.result is CallResult.DEFIED for event in history.of(CallEnded)),
    "leave before drain": _leave_before_drain,
    "call given up at its drain limit": _logged("call.given_up"),
    "call cancelled": lambda history, _: sum(event.result is CallResult.CANCELLED for event in history.of(CallEnded)),
    "result of a lost epoch": _logged("result.was_stale"),
    "overlapping calls": _overlaps,
    "gap told": lambda history, _: len(history.of(QueueGapSeen)),
    "send moved to another broker": _logged("frame.moved"),
    "sequence restarted": _logged("sequence.restarted"),
    "list without me": _logged("list.without_me"),
    "half-open connection given up": _logged("connection.ended", f"reason={SILENT}"),
    "pause": lambda history, _: len(history.of(PauseBegan)),
    "cut at an operation": _faults("cut at operation"),
    "snapshot ignored": _snapshots_ignored,
    "consumer stopped in order": lambda history, _: len(history.of(ConsumerStopped)),
    **COPIES,
    **MEMBERS,
    **READERS,
}
"""Name → how often one run was there. Beside the issue's list: what each fault is meant to bring about."""


def reached(history: History, log: LogTap) -> Counter[str]:
    return Counter({name: count(history, log) for name, count in REACH.items()})


def unreached(total: Counter[str]) -> list[str]:
    """Names that must not be zero and are."""
    return [name for name in REACH if not total[name]]

"""Counts how often a run reached each of the rare places. A sweep that never reached one of them proves nothing about it, and fails."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Literal

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.names import DLQ_PREFIX
from sweep.checkers import copies, handover, timers
from sweep.checkers.facts import Deletions
from sweep.checkers.messages import Messages
from sweep.checkers.pulls import went_back
from sweep.compressed import LARGE_BYTES
from sweep.events import readers
from sweep.events.access import Answered
from sweep.events.consumers import (
    CallBegan,
    CallEnded,
    ConcurrentCallBegan,
    ConcurrentCallEnded,
    ConsumerStarted,
    ConsumerStopped,
    QueueGapSeen,
)
from sweep.events.elections import RegisterSeen
from sweep.events.locks import ClassicLocked, ClassicUnlocked, LeaveSent, LockGranted, SessionBound
from sweep.events.members import MemberAssigned, MemberCallBegan, MemberCallEnded, MemberStarted, MemberStopped
from sweep.events.parks import ParkControlSent, ParkEndResponded, ParkResponded
from sweep.events.producers import LocalEnded, RecallEnded, SendBegan, TransactionEnded
from sweep.events.progress import CommitResponded, CommitSent, ProgressReset, ProgressResponded, PullReceived, ResetSent
from sweep.events.sends import DeadLetterResponded, EndResponded, FrameResponded, SendBackResponded, TimersWritten
from sweep.events.universe import BrokerOpened, CopyStored, Fault, MessageStored, PauseBegan, ProcessEnded, ServerFailed
from sweep.history import CallResult, E, History, ItemVerdict, PlaceReached, QueueKey, RecallOutcome
from sweep.journal import LogRecorder

Count = Callable[[History, LogRecorder], int]

COUNTED_SEEDS_MIN = 1_000
"""A sweep of at least this many seeds fails unless it reaches every place."""
SILENT = "nothing was received from its session for the session timeout"
"""Why a broker closes the connection of a client that has vanished or does not run."""

# ---------------------------------------------------------------------------------------------------------- kinds of counters


def _computed(count: Callable[[History], int]) -> Count:
    return lambda history, _: count(history)


def _events(kind: type[E], counts: Callable[[E], bool] = lambda _: True) -> Count:
    return lambda history, _: sum(counts(event) for event in history.of(kind))


def _named(*names: str) -> Count:
    """Count places that the recorder or the workload names itself."""
    return _events(PlaceReached, lambda event: event.name in names)


def _lost(name: str) -> Count:
    return _named(f"response to {name} lost")


def _logged(event: str, fact: str | None = None) -> Count:
    return lambda _, log: log.counts[event] if fact is None else log.facts.get(event, Counter())[fact]


# ------------------------------------------------------------------------------------------------ sessions, grants, ordered calls


def _grace_used(history: History) -> int:
    """Count sessions that came back to a broker on another connection and renewed a lock, each counted once for each connection."""
    bound: dict[tuple[str | None, str], int] = {}
    came: set[tuple[str, str, int]] = set()
    for event in history:
        if isinstance(event, SessionBound):
            bound[event.session, event.broker] = event.number
        elif isinstance(event, LockGranted) and event.renewal and event.session is not None:
            number = bound.get((event.session, event.queue.broker), 1)
            if number > 1:
                came.add((event.session, event.queue.broker, number))
    return len(came)


def _late_offers(history: History) -> int:
    """Count accepted LOCKs with an unconfirmed result of a call, which had ended when its connection was gone."""
    taken: dict[QueueKey, int] = {}
    found = 0
    for event in history.of(CommitResponded):
        if event.verdict is ItemVerdict.OK and event.offset is not None:
            found += event.by == "LOCK" and event.offset > taken.get(event.queue, event.offset)
            taken[event.queue] = event.offset
    return found


def _leave_before_drain(history: History) -> int:
    """Count releases after UNREGISTER_CLIENT."""
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


def _epoch_raised_by_restart(history: History) -> int:
    """Count grants under a later term than the queue's last one."""
    terms: dict[QueueKey, int] = {}
    found = 0
    for grant in history.of(LockGranted):
        term = grant.epoch >> 32
        found += terms.get(grant.queue, term) < term
        terms[grant.queue] = term
    return found


def _overlaps(history: History) -> int:
    """Count calls that began while another process still worked on the queue."""
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


def _expired_classic_locks(history: History) -> int:
    """Count grants to a classic client of a queue that another one had locked last and not unlocked."""
    last: dict[QueueKey, str] = {}
    found = 0
    for event in history:
        if isinstance(event, ClassicLocked) and event.granted:
            found += last.get(event.queue, event.client_id) != event.client_id
            last[event.queue] = event.client_id
        elif isinstance(event, ClassicUnlocked | LockGranted):
            last.pop(event.queue, None)
    return found


def _asserted_handovers(history: History) -> int:
    """Count hand-overs during which nothing else happened, for a cause other than a release."""
    return sum(one.undisturbed and one.cause != "release" for one in handover.handovers(history))


# --------------------------------------------------------------------------------------------------------------- sends, stores


def _repeats(history: History) -> int:
    """Count repeated frames whose response names their first place, or DUPLICATE without a place."""
    seen: dict[tuple[str, int, int], int] = {}
    found = 0
    for event in history.of(FrameResponded):
        place = (event.queue.broker, event.position, event.process)
        found += event.code == ResponseCode.DUPLICATE or seen.get(place, event.request) != event.request
        if event.position >= 0:
            seen[place] = event.request
    return found


def _written_lost(history: History) -> int:
    """Count messages that were acknowledged when they were written, under sync flush, and lost in a power cut."""
    messages, deletions = Messages(history), Deletions(history)
    lossy = {event.broker for event in history.of(BrokerOpened) if event.flush != "sync"}
    found = 0
    for acked in messages.acked.values() if messages.read else ():
        read = messages.read.get(acked.queue)
        if acked.written and acked.queue.broker not in lossy and read is not None and acked.offset >= read.first:
            found += acked.body not in messages.places and not deletions.any_of(acked.queue.topic)
    return found


def _snapshots_ignored(history: History) -> int:
    """Count brokers that opened their port on a disk whose newest snapshot has a wrong bit."""
    rotten: dict[str, None] = {}
    found = 0
    for event in history:
        if isinstance(event, Fault) and event.kind == "disk rot":
            rotten[event.machine] = None
        elif isinstance(event, BrokerOpened) and event.machine in rotten:
            del rotten[event.machine]
            found += 1
    return found


# ------------------------------------------------------------------------------------------ concurrent groups, delays, dead letters


def _dead_letters(history: History, *, ordered: bool) -> int:
    topics = {DLQ_PREFIX + consumer.group: None for consumer in history.of(ConsumerStarted) if consumer.ordered == ordered}
    return sum(copy.queue.topic in topics for copy in history.of(CopyStored))


def _retries_done(history: History) -> int:
    calls = {call.call: call for call in history.of(ConcurrentCallBegan)}
    return sum(each.retries > 0 for end in history.of(ConcurrentCallEnded) for each in calls[end.call].given[: end.done])


def _partly_done(history: History) -> int:
    calls = {call.call: call for call in history.of(ConcurrentCallBegan)}
    ends = history.of(ConcurrentCallEnded)
    return sum(0 < end.done < len(calls[end.call].given) for end in ends if end.result is CallResult.SUCCESS)


def _timers_delivered(history: History, kind: Literal["delay_level", "delay_ms", "deliver_ms"]) -> int:
    """Count the timers of a kind, which is named as their fact of SendBegan. One with a delay level has a delay too."""
    waits = {began.body for began in history.of(SendBegan) if getattr(began, kind)}
    return sum(stored.body in waits for stored in history.of(MessageStored))


def _recalls(outcome: RecallOutcome, *, forged: bool = False) -> Count:
    return _events(RecallEnded, lambda ended: ended.outcome is outcome and ended.forged == forged)


def _recalled_again(history: History) -> int:
    """Count recalls that returned for a message whose recall had returned before."""
    ended = [event.body for event in history.of(RecallEnded) if event.outcome is RecallOutcome.RECALLED]
    return len(ended) - len(set(ended))


def _decided_by_checks(history: History) -> int:
    """Count transactions that a check has rolled back."""
    return sum(not event.committed for event in history.of(LocalEnded))


def _committed_without_blocks(history: History) -> int:
    """Count messages that were delivered although the end of their block was not confirmed, as after a kill of its producer."""
    confirmed = {event.transaction for event in history.of(TransactionEnded) if event.status == "COMMIT"}
    sent = {event.body: event.transaction for event in history.of(SendBegan) if event.transaction}
    return len({stored.body for stored in history.of(MessageStored) if sent.get(stored.body, "") not in ("", *confirmed)})


def _timers_over_a_start(history: History) -> int:
    """Count timers that were sent before a start of their broker, and delivered after it."""
    opened: dict[str, list[float]] = {}
    for event in history.of(BrokerOpened):
        opened.setdefault(event.broker, []).append(event.t)
    sent = {body: frame for frame in history.of(TimersWritten) for body in frame.bodies}
    found = 0
    for stored in history.of(MessageStored):
        frame = sent.get(stored.body)
        if frame is not None and stored.stored_t is not None and frame.queue.broker == stored.queue.broker:
            found += any(frame.t < t < stored.stored_t for t in opened.get(stored.queue.broker, ()))
    return found


def _moved_to_another_client(history: History, *, renewed: bool) -> int:
    """Count queues in which another client continues after the one before: in the same generation, or in a new one."""
    last: dict[QueueKey, ProgressResponded] = {}
    found = 0
    for event in history.of(ProgressResponded):
        before = last.get(event.queue)
        if before is not None and before.client != event.client:
            found += (event.generation > before.generation) == renewed
        last[event.queue] = event
    return found


# -------------------------------------------------------------------------------------------------------------- pull consumers


def _moved(history: History) -> int:
    """Count queues that were assigned to a reader of another process than before."""
    last: dict[QueueKey, int] = {}
    found = 0
    for event in history.of(readers.ReaderQueueAssigned):
        found += last.get(event.queue, event.process) != event.process
        last[event.queue] = event.process
    return found


def _polled_again(history: History, *, after_a_crash: bool) -> int:
    """Count messages that were polled again: after the end of the process that polled them first, or while it ran."""
    first: dict[tuple[QueueKey, int, bytes], int] = {}
    dead: set[int] = set()
    found = 0
    for event in history:
        if isinstance(event, ProcessEnded) and event.how != "exit":
            dead.add(event.process)
        elif isinstance(event, readers.PollReturned):
            for offset, body in event.messages:
                before = first.setdefault((event.queue, offset, body), event.process)
                found += before != event.process and (before in dead) == after_a_crash
    return found


def _reset_by_readers(history: History) -> int:
    """Count resets of the group by a reader's own commit."""
    processes = {event.process for event in history.of(readers.ReaderStarted)}
    requested = {event.request for event in history.of(ResetSent) if event.process in processes}
    return sum(event.request in requested for event in history.of(ProgressReset))


def _sought(history: History, *, held: bool) -> int:
    """Count seeks of queues that were held, or were about to be."""
    having: set[tuple[int, QueueKey]] = set()
    found = 0
    for event in history:
        if isinstance(event, readers.ReaderQueueAssigned):
            having.add((event.reader, event.queue))
        elif isinstance(event, readers.ReaderQueueRevoked):
            having.discard((event.reader, event.queue))
        elif isinstance(event, readers.SeekReturned):
            found += ((event.reader, event.queue) in having) == held
    return found


def _filtered(history: History) -> int:
    """Count polls that passed over messages which the group's tags filter."""
    filtered = {event.reader for event in history.of(readers.ReaderStarted) if event.expression != "*"}
    due: dict[tuple[int, QueueKey], int] = {}
    found = 0
    for event in history:
        if isinstance(event, readers.ReaderQueueAssigned | readers.SeekReturned):
            due[event.reader, event.queue] = event.offset
        elif isinstance(event, readers.PollReturned) and event.reader in filtered:
            for offset, _body in event.messages:
                found += offset > due.get((event.reader, event.queue), offset)
                due[event.reader, event.queue] = offset + 1
    return found


def _by_readers(kind: type[readers.PollReturned | readers.ReaderQueueAssigned], which: Callable[[readers.ReaderStarted], bool]) -> Count:
    """Count the events of the readers that `which` selects."""

    def count(history: History) -> int:
        numbers = {started.reader for started in history.of(readers.ReaderStarted) if which(started)}
        return sum(event.reader in numbers for event in history.of(kind))

    return _computed(count)


def _gaps_of_readers(history: History) -> int:
    groups = {started.group for started in history.of(readers.ReaderStarted)}
    return sum(gap.queue.group in groups for gap in history.of(QueueGapSeen))


def _large(history: History) -> int:
    """Count large bodies that were given to a consumer of any kind."""
    found = sum(len(body) >= LARGE_BYTES for call in history.of(CallBegan) for _, body in call.messages)
    found += sum(len(each.body) >= LARGE_BYTES for call in history.of(ConcurrentCallBegan) for each in call.given)
    return found + sum(len(body) >= LARGE_BYTES for poll in history.of(readers.PollReturned) for _, body in poll.messages)


# ---------------------------------------------------------------------------------------------------------- broadcasting groups


def _member_continues(history: History, how: str) -> int:
    """Count members that continue after the first message when their last process ended in this way."""
    users: dict[int, str] = {}
    ended: dict[str, str] = {}
    found = 0
    for event in history:
        if isinstance(event, MemberAssigned):
            found += event.machine not in users.values() and event.offset > 0 and ended.get(event.machine) == how
            users[event.process] = event.machine
        elif isinstance(event, ProcessEnded) and users.pop(event.process, None) is not None:
            ended[event.machine] = event.how
        elif isinstance(event, MemberStopped) and users.pop(event.process, None) is not None:
            ended[event.machine] = "stop"
    return found


def _member_repeats(history: History) -> int:
    """Count calls with messages that another process of that machine has handled."""
    calls: dict[int, MemberCallBegan] = {}
    handled: dict[tuple[str, QueueKey, int, bytes], int] = {}
    found = 0
    for event in history:
        if isinstance(event, MemberCallBegan):
            calls[event.call] = event
            found += any(handled.get((event.machine, event.queue, *one), event.process) != event.process for one in event.messages)
        elif isinstance(event, MemberCallEnded) and event.result is CallResult.SUCCESS:
            call = calls[event.call]
            handled.update({(call.machine, call.queue, *one): call.process for one in call.messages})
    return found


def _failed_in_order(history: History) -> int:
    """Count failed calls of ordered listeners."""
    ordered = {started.group for started in history.of(MemberStarted) if started.ordered}
    failed = (CallResult.SUSPEND, CallResult.ERROR)
    return sum(end.queue.group in ordered and end.result in failed for end in history.of(MemberCallEnded))


def _member_went_back(history: History) -> int:
    groups = {started.group for started in history.of(MemberStarted)}
    return sum(pull.queue.group in groups and went_back(pull) for pull in history.of(PullReceived))


REACH: dict[str, Count] = {
    "grace used: renewed on a new connection": _computed(_grace_used),
    "result offered late and accepted": _computed(_late_offers),
    "late result accepted, queue owned by another client": _events(
        CommitResponded, lambda one: one.by == "LOCK" and one.verdict is ItemVerdict.NOT_YOURS
    ),
    "QUEUE_FREE pushed": _named("QUEUE_FREE pushed"),
    "NOT_YOURS returned": _named("LOCK returned not yours"),
    "STALE returned to LOCK or SYNC": _named("LOCK returned stale", "SYNC returned stale"),
    "PULL returned STALE_EPOCH": _named("STALE_EPOCH returned"),
    "LOCK returned WAIT": _named("LOCK returned wait"),
    "LOCK returned HELD": _named("LOCK returned held"),
    "response to a LOCK with a grant lost": _lost("LOCK with a grant"),
    "response to a SYNC lost": _lost("SYNC"),
    "response to a send lost": _lost("a send"),
    "epoch raised by a restart": _computed(_epoch_raised_by_restart),
    "two creators of one topic": _named("two creators of one topic"),
    "layout refused": _named("LAYOUT_STALE returned"),
    "duplicate dropped": _computed(_repeats),
    "frame out of sequence": _named("OUT_OF_SEQUENCE returned"),
    "contract refused": _named("SUBSCRIPTION_CONFLICT returned"),
    "second session of a client id refused": _named("DUPLICATE_CLIENT_ID returned"),
    "unsynced tail cut": _logged("log.recovered", "cut_bytes=True"),
    "unsynced hole in a log, valid records after it": _logged("log.holed"),
    "loss assumed after a power cut": _logged("log.recovered", "assumed_loss=True"),
    "no queue granted during the hold after a loss": _named("grants suspended after an assumed loss"),
    "broker ended by a disk error": _events(ServerFailed, lambda failed: failed.exit_code == 3),
    "crash, silence or restart asserted by O7": _computed(_asserted_handovers),
    "corrupt log refused": _events(ServerFailed, lambda failed: failed.exit_code == 5),
    "progress reset by an operator": _events(ProgressReset),
    "response to a reset lost": _lost("a reset"),
    "group began within the storm": _named("group began"),
    "topic deleted under load": _named("topic deleted"),
    "topic purged before a group had consumed it": _named("topic purged"),
    "classic lock refused": _events(ClassicLocked, lambda lock: not lock.granted),
    "classic lock taken over after it had expired": _computed(_expired_classic_locks),
    "written only, and lost in a power cut": _computed(_written_lost),
    "offset without an epoch refused": _events(CommitResponded, lambda one: one.by == "UPDATE" and one.verdict is ItemVerdict.REFUSED),
    "cancellation ignored by a listener": _events(CallEnded, lambda end: end.result is CallResult.CANCEL_IGNORED),
    "leave before drain": _computed(_leave_before_drain),
    "call given up at its drain limit": _logged("call.given_up"),
    "call cancelled": _events(CallEnded, lambda end: end.result is CallResult.CANCELLED),
    "result of a lost epoch": _logged("result.was_stale"),
    "overlapping calls": _computed(_overlaps),
    "gap reported": _events(QueueGapSeen),
    "send moved to another broker": _logged("frame.moved"),
    "sequence restarted": _logged("sequence.restarted"),
    "member list without this member": _logged("member_list.not_listed"),
    "half-open connection given up": _logged("connection.ended", f"reason={SILENT}"),
    "pause": _events(PauseBegan),
    "cut at an operation": _events(Fault, lambda fault: fault.kind == "cut at operation"),
    "snapshot ignored": _computed(_snapshots_ignored),
    "consumer stopped in order": _events(ConsumerStopped),
    # concurrent groups, delays, dead letters, parked keys
    "sent back": _events(SendBackResponded, lambda event: event.code == ResponseCode.SUCCESS),
    "send back failed, called again here": _logged("send_back.deferred"),
    "response to a send back lost": _lost("SEND_MSG_BACK"),
    "retry handled": _computed(_retries_done),
    "batch handled in part": _computed(_partly_done),
    "concurrent call ran too long": _logged("call.expired"),
    "dead-lettered, concurrent": _computed(partial(_dead_letters, ordered=False)),
    "dead-lettered, ordered": _computed(partial(_dead_letters, ordered=True)),
    "dead letter could not be written": _logged("dead_letter.failed"),
    "response to a dead letter lost": _lost("DEAD_LETTER"),
    "dead letter of a lost epoch": _events(DeadLetterResponded, lambda event: event.code == ResponseCode.STALE_EPOCH),
    "key parked": _events(ParkResponded, lambda event: event.code == ResponseCode.SUCCESS),
    "key replayed to its end": _events(ParkEndResponded, lambda event: bool(event.upto)),
    "end of a replay refused": _events(ParkEndResponded, lambda event: event.until is not None),
    "parked key dropped": _events(ParkControlSent, lambda event: event.action == "drop"),
    "response to a PARK lost": _lost("PARK"),
    "possible duplicate: copy": _computed(copies.possible_duplicates),
    "timer with a delay delivered": _computed(partial(_timers_delivered, kind="delay_ms")),
    "timer with a delay level delivered": _computed(partial(_timers_delivered, kind="delay_level")),
    "timer with a time of day delivered": _computed(partial(_timers_delivered, kind="deliver_ms")),
    "timer delivered after a start": _computed(_timers_over_a_start),
    "timer dropped with its topic": _logged("delay.destination_gone"),
    "response to a send of timers lost": _lost("a send of timers"),
    "response to a recall lost": _lost("a recall"),
    "possible duplicate: timer": _computed(timers.possible_duplicates),
    "transaction committed by its block": _events(TransactionEnded, lambda event: event.status == "COMMIT"),
    "transaction rolled back by its block": _events(TransactionEnded, lambda event: event.status == "ROLLBACK"),
    "block left without an outcome": _events(TransactionEnded, lambda event: event.status == "UNKNOWN"),
    "transaction decided by a check": _computed(_decided_by_checks),
    "message delivered of a transaction without its block": _computed(_committed_without_blocks),
    "end of a transaction refused": _events(EndResponded, lambda event: event.code != ResponseCode.SUCCESS),
    "response to a send of half messages lost": _lost("a send of half messages"),
    "response to the end of a transaction lost": _lost("the end of a transaction"),
    "timer recalled": _recalls(RecallOutcome.RECALLED),
    "timer recalled again": _computed(_recalled_again),
    "timer recalled too late": _recalls(RecallOutcome.TOO_LATE),
    "recall with a forged handle refused": _recalls(RecallOutcome.NOT_FOUND, forged=True),
    "concurrent queue handed over": _computed(partial(_moved_to_another_client, renewed=False)),
    "generation changed at a hand-over": _computed(partial(_moved_to_another_client, renewed=True)),
    # broadcasting groups
    "member killed, continues from its file": _computed(partial(_member_continues, how="kill")),
    "member lost power, continues from its file": _computed(partial(_member_continues, how="power")),
    "member stopped in order, continues after its last message": _computed(partial(_member_continues, how="stop")),
    "member repeats handled messages": _computed(_member_repeats),
    "member fails in order, called again": _computed(_failed_in_order),
    "failure dropped, broadcasting": _logged("message.dropped"),
    "offsets file could not be written": _logged("offsets.unwritable"),
    "offsets file could be written again": _logged("offsets.writable_again"),
    "member's queue ends before its offset": _computed(_member_went_back),
    # pull consumers
    "pull: queue moved between members": _computed(_moved),
    "pull: polled again after a crash": _computed(partial(_polled_again, after_a_crash=True)),
    "pull: polled again by another member": _computed(partial(_polled_again, after_a_crash=False)),
    "pull: commit() returned": _events(readers.ReaderCommitted),
    "pull: commit() raised StaleEpochError": _events(readers.ReaderCommitFailed, lambda failed: failed.stale),
    "pull: commit() raised another error": _events(readers.ReaderCommitFailed, lambda failed: not failed.stale),
    "pull: a commit went back": _computed(_reset_by_readers),
    "pull: seek of a queue that is held": _computed(partial(_sought, held=True)),
    "pull: seek of a queue that is not held yet": _computed(partial(_sought, held=False)),
    "pull: queue paused": _events(readers.ReaderQueuePaused),
    "pull: queues by assign()": _events(readers.ReaderStarted, lambda reader: reader.by_hand),
    "pull: read by async for": _by_readers(readers.PollReturned, lambda reader: reader.each),
    "pull: async for ended by a stop": _named("async for ended by a stop"),
    "pull: filtered by tags": _computed(_filtered),
    "pull: gap reported": _computed(_gaps_of_readers),
    "pull: queue of a group that began late": _by_readers(readers.ReaderQueueAssigned, lambda reader: reader.where != "FIRST_OFFSET"),
    # users
    "request of a user refused": _events(Answered, lambda answer: answer.result == ResponseCode.NO_PERMISSION),
    "login refused": _logged("login.failed"),
    "forbidden requests tried": _named("forbidden requests tried"),
    "client id of another user tried": _named("client id of another user tried"),
    "producer id of another user tried": _named("producer id of another user tried"),
    "classic lock of another user tried": _named("classic lock of another user tried"),
    # copies of a log
    "replica joined the set": _logged("replica.joined"),
    "replica left the set": _logged("replica.left"),
    "log of a replica cut": _logged("replica.truncated"),
    "replica begun anew": _logged("replica.begins_anew"),
    "replica promoted": _named("replica promoted"),
    "promotion without an assumed loss": _logged("replica.promoted", "complete=True"),
    "promotion refused": _named("promotion refused"),
    "promoted replica killed at once": _named("promoted replica killed at once"),
    "old master refused": _named("old master refused"),
    # elections
    "master elected while the old one runs": _named("elected while the old master runs"),
    "deposed master left requests without an answer": _named("deposed master left requests without an answer"),
    "master handed over": _named("handed over"),
    "master elected by a roll call": _events(RegisterSeen, lambda seen: seen.why == "roll_call"),
    "sends suspended without the register": _logged("office.suspended"),
    "swap without an answer, carried out": _named("swap without an answer: carried out at once"),
    "swap without an answer, not carried out": _named("swap without an answer: not carried out"),
    "swap without an answer, carried out late": _named("swap without an answer: carried out late"),
    "swap without an answer, refused late": _named("swap without an answer: refused late"),
    # large bodies
    "compressed bodies sent": _named("compressed bodies sent"),
    "compressed message given": _computed(_large),
    "compressed message copied": _events(CopyStored, lambda copy: len(copy.body) >= LARGE_BYTES),
}
"""Name → its count in one run."""


def count_places(history: History, log: LogRecorder) -> Counter[str]:
    return Counter({name: count(history, log) for name, count in REACH.items()})


def unreached(total: Counter[str]) -> list[str]:
    """Return the places with the count 0."""
    return [name for name in REACH if not total[name]]

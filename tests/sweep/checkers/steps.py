"""R4a and the safe half of O5: in an epoch the listener gets offset after offset, and only handled messages are committed.

A new epoch begins at the committed offset that its grant names. A failed batch is repeated from its own first message, a rolled back one
from the first that was not committed. Only messages that the subscription filters, or of a reported gap, are passed over.
"""

from dataclasses import dataclass, field
from functools import partial

from lockstep.protocol.order import skips
from sweep.checkers.account import Account
from sweep.checkers.facts import QueueEpoch, holders
from sweep.checkers.messages import Messages, Passes
from sweep.checkers.violation import Violation, process_name
from sweep.events.consumers import CallBegan, CallEnded, ConsumerStarted
from sweep.events.progress import CommitReceived, CommitSent
from sweep.history import CallResult, History, ItemVerdict, QueueKey

_DONE = (CallResult.SUCCESS, CallResult.COUNTED)


@dataclass(slots=True)
class _EpochRun:
    """One epoch at work."""

    next_offset: int
    """The offset at which the next call begins."""
    base: int
    """First offset that was not committed: a roll back returns here."""
    account: Account
    fenced: bool = False
    """Released without an offset: results of calls after that do not count."""
    late: set[int] = field(default_factory=set)
    """Offsets handled after that. If the release is lost with its connection, LOCK offers them on the next one."""
    released: bool = False
    """The release was confirmed, so no result is offered."""


def check(history: History) -> list[Violation]:
    return _Steps(history).run()


class _Steps:
    """One pass over a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.passes = Passes(history, Messages(history))
        self.runs: dict[QueueEpoch, _EpochRun] = {
            held: _EpochRun(grant.offset, grant.offset, Account(grant.offset))
            for held, grant in holders(history).items()
            if not grant.renewal
        }
        self.by_key = {
            (event.process, event.group) for event in history.of(ConsumerStarted) if event.lanes is not None or event.parks is not None
        }
        """The consumers whose calls lanes.py and parks.py check."""
        self.calls: dict[int, CallBegan] = {}
        self.found: list[Violation] = []

    def run(self) -> list[Violation]:
        for event in self.history:
            if isinstance(event, CallBegan | CallEnded | CommitSent) and (event.process, event.queue.group) in self.by_key:
                continue
            if isinstance(event, CallBegan):
                self._began(event)
            elif isinstance(event, CallEnded):
                self._ended(event)
            elif isinstance(event, CommitSent) and event.epoch is not None:
                self._committed(event, event.epoch, event.offset)
            elif isinstance(event, CommitReceived) and event.released and event.verdict is ItemVerdict.OK and event.epoch is not None:
                self._released(event.queue, event.epoch)
        return self.found

    def _released(self, queue: QueueKey, epoch: int) -> None:
        run = self.runs.get((queue, epoch))
        if run is not None:
            run.released = True

    def _began(self, call: CallBegan) -> None:
        self.calls[call.call] = call
        run = self.runs.get((call.queue, call.epoch))
        if run is None:
            return
        where = f"call {call.call} of {call.queue} epoch {call.epoch} in {process_name(call)}"
        for skip in skips(call.messages, lambda message: message[0], first=run.next_offset, backward=False):
            offset, expected = skip.after[0], skip.expected
            if offset < expected:
                self.found.append(Violation("R4a", call.t, f"{where} got offset {offset}: {expected} was next"))
            elif (skipped := self._first_missed(call, expected, offset)) is not None:
                self.found.append(Violation("R4a", call.t, f"{where} got offset {offset}: {skipped} was left out"))

    def _ended(self, event: CallEnded) -> None:
        call, run = self.calls.get(event.call), self.runs.get((event.queue, event.epoch))
        if call is None or run is None:
            return
        if event.result is CallResult.CANCEL_IGNORED and run.fenced:
            run.late.update(offset for offset, _ in call.messages)
        if event.result in _DONE or (event.result is CallResult.CANCEL_IGNORED and not run.fenced):
            run.account.finished.update(offset for offset, _ in call.messages)
            run.next_offset = call.last + 1
            if event.result is CallResult.SUCCESS:
                run.base = run.next_offset
        elif event.result is CallResult.ROLLBACK:
            run.next_offset = run.base
        else:
            run.next_offset = call.first

    def _first_missed(self, call: CallBegan, first: int, end: int) -> int | None:
        missed = (offset for offset in range(first, end) if not self.passes.may_pass(call.queue, offset, call.process, call.t))
        return next(missed, None)

    def _committed(self, event: CommitSent, epoch: int, upto: int | None) -> None:
        run = self.runs.get((event.queue, epoch))
        if run is None:
            return
        if upto is None:
            run.fenced = run.fenced or event.released
            return
        if event.by == "LOCK" and run.fenced and not run.released:
            run.account.finished |= run.late
            run.fenced = False
        missed = run.account.commit(upto, partial(self.passes.may_pass, event.queue, process=event.process, t=event.t))
        if missed is not None:
            where = f"{event.queue} epoch {epoch} by {process_name(event)} ({event.by})"
            self.found.append(Violation("O5", event.t, f"{where} committed {upto}: no call had handled {missed}"))

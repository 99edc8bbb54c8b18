"""Which rare places of broadcasting groups a run has reached."""

from collections.abc import Callable

from sweep.checkers.pulls import went_back
from sweep.events import MemberAssigned, MemberCalled, MemberReturned, MemberStarted, MemberStopped, ProcessEnded, PullReceived
from sweep.history import CallResult, History, QueueKey
from sweep.journal import LogTap

Count = Callable[[History, LogTap], int]
Place = tuple[str, QueueKey]
"""(machine, queue of the group)."""


def _went_on(history: History, how: str) -> int:
    """A member goes on behind the first message where its last process ended in this way."""
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


def _repeats(history: History, _: LogTap) -> int:
    """A call is given what another process of that machine has handled."""
    calls: dict[int, MemberCalled] = {}
    handled: dict[tuple[Place, int, bytes], int] = {}
    found = 0
    for event in history:
        if isinstance(event, MemberCalled):
            calls[event.call] = event
            place = (event.machine, event.queue)
            found += any(handled.get((place, *one), event.process) != event.process for one in event.messages)
        elif isinstance(event, MemberReturned) and event.result is CallResult.SUCCESS:
            call = calls[event.call]
            handled.update({((call.machine, call.queue), *one): call.process for one in call.messages})
    return found


def _called_again(history: History, _: LogTap) -> int:
    """An ordered listener failed."""
    ordered = {started.group for started in history.of(MemberStarted) if started.ordered}
    failed = (CallResult.SUSPEND, CallResult.ERROR)
    return sum(end.queue.group in ordered and end.result in failed for end in history.of(MemberReturned))


def _went_back(history: History, _: LogTap) -> int:
    groups = {started.group for started in history.of(MemberStarted)}
    return sum(pull.queue.group in groups and went_back(pull) for pull in history.of(PullReceived))


def _logged(event: str) -> Count:
    return lambda _, log: log.counts[event]


MEMBERS: dict[str, Count] = {
    "member killed, goes on from its file": lambda history, _: _went_on(history, "kill"),
    "member without power, goes on from its file": lambda history, _: _went_on(history, "power"),
    "member stopped in order, goes on behind": lambda history, _: _went_on(history, "stop"),
    "member repeats what it had handled": _repeats,
    "member fails in order, called again": _called_again,
    "failure dropped, broadcasting": _logged("message.dropped"),
    "offsets file could not be written": _logged("offsets.unwritable"),
    "offsets file could be written again": _logged("offsets.writable_again"),
    "member's queue ends before its offset": _went_back,
}
"""Name → how often one run was there."""

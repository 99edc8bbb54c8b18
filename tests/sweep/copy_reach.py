"""Which rare places of concurrent groups, delays and dead letters a run has reached."""

from collections.abc import Callable

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.names import DLQ_PREFIX
from sweep.checkers import copies, delays
from sweep.events import (
    ConsumerStarted,
    CopyStored,
    DeadLetterAnswered,
    DelayedWritten,
    ProgressAnswered,
    SendBackAnswered,
    SharedCallBegan,
    SharedCallEnded,
    Stored,
)
from sweep.history import CallResult, History, QueueKey, Reached
from sweep.journal import LogTap

Count = Callable[[History, LogTap], int]


def _dead_letters(history: History, *, ordered: bool) -> int:
    topics = {DLQ_PREFIX + consumer.group: None for consumer in history.of(ConsumerStarted) if consumer.ordered == ordered}
    return sum(copy.queue.topic in topics for copy in history.of(CopyStored))


def _retries_done(history: History, _: LogTap) -> int:
    calls = {call.call: call for call in history.of(SharedCallBegan)}
    return sum(each.retries > 0 for end in history.of(SharedCallEnded) for each in calls[end.call].given[: end.done])


def _partly_done(history: History, _: LogTap) -> int:
    calls = {call.call: call for call in history.of(SharedCallBegan)}
    ends = history.of(SharedCallEnded)
    return sum(0 < end.done < len(calls[end.call].given) for end in ends if end.result is CallResult.SUCCESS)


def _delivered(history: History, _: LogTap) -> int:
    delayed = {event.body: None for event in history.of(DelayedWritten)}
    return sum(stored.body in delayed for stored in history.of(Stored))


def _passed_on(history: History, *, renewed: bool) -> int:
    """Another client goes on where one was before: in the same generation, or in a new one."""
    last: dict[QueueKey, ProgressAnswered] = {}
    found = 0
    for event in history.of(ProgressAnswered):
        before = last.get(event.queue)
        if before is not None and before.client != event.client:
            found += (event.generation > before.generation) == renewed
        last[event.queue] = event
    return found


def _lost(name: str) -> Count:
    return lambda history, _: sum(event.name == f"answer of {name} lost" for event in history.of(Reached))


def _logged(event: str) -> Count:
    return lambda _, log: log.counts[event]


COPIES: dict[str, Count] = {
    "sent back": lambda history, _: sum(event.code == ResponseCode.SUCCESS for event in history.of(SendBackAnswered)),
    "send back failed, called again here": _logged("send_back.later"),
    "answer of a send back lost": _lost("SEND_MSG_BACK"),
    "retry handled": _retries_done,
    "batch handled in part": _partly_done,
    "concurrent call ran too long": _logged("call.expired"),
    "dead-lettered, concurrent": lambda history, _: _dead_letters(history, ordered=False),
    "dead-lettered, ordered": lambda history, _: _dead_letters(history, ordered=True),
    "dead letter could not be written": _logged("dead_letter.failed"),
    "answer of a dead letter lost": _lost("DEAD_LETTER"),
    "dead letter of a lost epoch": lambda history, _: sum(
        event.code == ResponseCode.STALE_EPOCH for event in history.of(DeadLetterAnswered)
    ),
    "delayed message delivered": _delivered,
    "answer of a delayed send lost": _lost("a delayed send"),
    "possible duplicate: delayed": lambda history, _: delays.possible_duplicates(history),
    "possible duplicate: copy": lambda history, _: copies.possible_duplicates(history),
    "concurrent queue handed over": lambda history, _: _passed_on(history, renewed=False),
    "generation changed at a hand-over": lambda history, _: _passed_on(history, renewed=True),
}
"""Name → how often one run was there."""

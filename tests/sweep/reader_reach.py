"""Which rare places of pull consumers, and of large bodies, a run has reached."""

from collections.abc import Callable

from sweep.compressed import LARGE_BYTES
from sweep.events import (
    CallBegan,
    CommitFailed,
    Committed,
    CopyStored,
    Polled,
    ProcessEnded,
    ProgressReset,
    QueueGapSeen,
    QueueGiven,
    QueueTaken,
    ReaderStarted,
    ReadingPaused,
    ResetSent,
    SharedCallBegan,
    Sought,
)
from sweep.history import History, QueueKey, Reached
from sweep.journal import LogTap

Count = Callable[[History, LogTap], int]


def _moved(history: History, _: LogTap) -> int:
    """A queue was given to a reader of another process than had it last."""
    last: dict[QueueKey, int] = {}
    found = 0
    for event in history.of(QueueGiven):
        found += last.get(event.queue, event.process) != event.process
        last[event.queue] = event.process
    return found


def _repeated(history: History, *, after_a_crash: bool) -> int:
    """Messages that were polled again: behind the end of the process that had them first, or while that lived on."""
    first: dict[tuple[QueueKey, int, bytes], int] = {}
    dead: set[int] = set()
    found = 0
    for event in history:
        if isinstance(event, ProcessEnded) and event.how != "exit":
            dead.add(event.process)
        elif isinstance(event, Polled):
            for offset, body in event.messages:
                before = first.setdefault((event.queue, offset, body), event.process)
                found += before != event.process and (before in dead) == after_a_crash
    return found


def _went_back(history: History, _: LogTap) -> int:
    """A reader's own commit has reset the group."""
    readers = {event.process for event in history.of(ReaderStarted)}
    asked = {event.request for event in history.of(ResetSent) if event.process in readers}
    return sum(event.request in asked for event in history.of(ProgressReset))


def _sought(history: History, *, held: bool) -> int:
    """Seeks of queues that were held, or were about to be."""
    having: set[tuple[int, QueueKey]] = set()
    found = 0
    for event in history:
        if isinstance(event, QueueGiven):
            having.add((event.reader, event.queue))
        elif isinstance(event, QueueTaken):
            having.discard((event.reader, event.queue))
        elif isinstance(event, Sought):
            found += ((event.reader, event.queue) in having) == held
    return found


def _left_out(history: History, _: LogTap) -> int:
    """A poll went over what its group's tags leave out."""
    filtered = {event.reader for event in history.of(ReaderStarted) if event.expression != "*"}
    due: dict[tuple[int, QueueKey], int] = {}
    found = 0
    for event in history:
        if isinstance(event, QueueGiven | Sought):
            due[event.reader, event.queue] = event.offset
        elif isinstance(event, Polled) and event.reader in filtered:
            for offset, _body in event.messages:
                found += offset > due.get((event.reader, event.queue), offset)
                due[event.reader, event.queue] = offset + 1
    return found


def _of_readers(kind: type[Polled] | type[QueueGiven], which: Callable[[ReaderStarted], bool]) -> Count:
    """Events of those readers."""

    def count(history: History, _: LogTap) -> int:
        readers = {started.reader for started in history.of(ReaderStarted) if which(started)}
        return sum(event.reader in readers for event in history.of(kind))

    return count


def _gaps(history: History, _: LogTap) -> int:
    groups = {started.group for started in history.of(ReaderStarted)}
    return sum(gap.queue.group in groups for gap in history.of(QueueGapSeen))


def _large(history: History, _: LogTap) -> int:
    """Handed out, of whatever kind of consumer."""
    found = sum(len(body) >= LARGE_BYTES for call in history.of(CallBegan) for _, body in call.messages)
    found += sum(len(each.body) >= LARGE_BYTES for call in history.of(SharedCallBegan) for each in call.given)
    return found + sum(len(body) >= LARGE_BYTES for poll in history.of(Polled) for _, body in poll.messages)


READERS: dict[str, Count] = {
    "pull: queue moved between members": _moved,
    "pull: polled again after a crash": lambda history, _: _repeated(history, after_a_crash=True),
    "pull: polled again by another member": lambda history, _: _repeated(history, after_a_crash=False),
    "pull: commit() returned": lambda history, _: len(history.of(Committed)),
    "pull: commit() came too late, and was told": lambda history, _: sum(event.stale for event in history.of(CommitFailed)),
    "pull: commit() without an answer": lambda history, _: sum(not event.stale for event in history.of(CommitFailed)),
    "pull: a commit went back": _went_back,
    "pull: seek of a queue that is held": lambda history, _: _sought(history, held=True),
    "pull: seek of a queue that is not held yet": lambda history, _: _sought(history, held=False),
    "pull: queue paused": lambda history, _: len(history.of(ReadingPaused)),
    "pull: queues by hand": lambda history, _: sum(event.by_hand for event in history.of(ReaderStarted)),
    "pull: read by async for": _of_readers(Polled, lambda reader: reader.each),
    "pull: async for ended by a stop": lambda history, _: sum(event.name == "async for ended by a stop" for event in history.of(Reached)),
    "pull: left out by tags": _left_out,
    "pull: gap told": _gaps,
    "pull: queue of a group that began late": _of_readers(QueueGiven, lambda reader: reader.where != "FIRST_OFFSET"),
    "compressed bodies sent": lambda history, _: sum(event.name == "compressed bodies sent" for event in history.of(Reached)),
    "compressed message given": _large,
    "compressed message copied": lambda history, _: sum(len(copy.body) >= LARGE_BYTES for copy in history.of(CopyStored)),
}
"""Name → how often one run was there."""

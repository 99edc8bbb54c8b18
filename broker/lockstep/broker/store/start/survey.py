"""The read-only check of a directory before a start changes anything in it.

`survey` reads names, lengths and small files. It returns what a start may rely on, or raises an error with the exact position:

| finding                                                        | result                                                          |
|----------------------------------------------------------------|-----------------------------------------------------------------|
| no identity, and files of `lockstep/` that are written later   | StoreCorruptError: the identity is missing                      |
| no identity, consecutive log files of one length               | `adopted`: their length is the store's. The log is read to its  |
|                                                                | end before anything is written (store.py)                       |
| no identity, any other log files                               | StoreCorruptError                                               |
| a directory with the name of a log file                        | StoreCorruptError                                               |
| a log file that is longer than the store's length, or whose    | StoreCorruptError, also with --cut-corrupt: the files are not   |
| name is not a multiple of it                                   | this store's                                                    |
| the first or a middle log file is missing, or one is short,    | StoreCorruptError. With --cut-corrupt the missing part reads as |
| below the synced length                                        | zeros, which the scan finds                                     |
| the same above the synced length                               | an unfinished tail                                              |
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.log.append import ENTRY_BYTES
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.names import check_topic
from lockstep.runtime.files import Files

NAME_DIGITS = 20
_QUEUE_ID = re.compile("0|[1-9][0-9]{0,9}")
SEGMENT_BYTES_MIN = 4096


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """The files of a log."""

    starts: tuple[int, ...]
    """First positions of the files that make up the log, one segment length apart."""
    stray: tuple[int, ...]
    """Files after a gap above the synced length, left by a power cut. They will be removed."""
    absent: frozenset[int]
    """Those of `starts` that have no file."""
    synced: int
    lacking: bool = False
    """Whether a file is absent, or too short, below the synced length, so that its content is lost."""


@dataclass(frozen=True, slots=True)
class LogFile:
    start: int
    size: int


def is_log_name(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdecimal()


def log_files(files: Files, directory: str) -> list[LogFile]:
    """Return the files of a commit log in order. Other names are ignored. Raise StoreCorruptError if one of the files is a directory."""
    if not files.exists(directory):
        return []
    found = []
    for name in files.listdir(directory):
        if is_log_name(name):
            path = f"{directory}/{name}"
            try:
                file = files.open(path)
            except IsADirectoryError:
                raise StoreCorruptError(
                    f"{path} is a directory, and has the name of a log file: remove it from the store, or restore the file. "
                    "Nothing was changed",
                    position=int(name),
                ) from None
            try:
                found.append(LogFile(int(name), file.size()))
            finally:
                file.close()
    return found


def adopted_segment_bytes(found: list[LogFile], directory: str) -> int:
    """Return the length of the log files of a directory without an identity. Raise StoreCorruptError if they do not form one log."""
    size = found[0].size
    for number, file in enumerate(found):
        path = f"{directory}/{file.start:020d}"
        if file.size != size or size < SEGMENT_BYTES_MIN:
            raise StoreCorruptError(
                f"log file {path} has {file.size} bytes, {found[0].start:020d} has {size}: the directory has no lockstep/identity, and its "
                "log files are not of one length. Nothing was changed",
                position=file.start,
            )
        expected = found[0].start + number * size
        if file.start % size or file.start != expected:
            raise StoreCorruptError(
                f"log file {path}: expected one that begins at {expected}, in files of {size} bytes: the directory has no "
                "lockstep/identity, and its log files do not follow one another. Nothing was changed",
                position=file.start,
            )
    return size


def adopted_queue_entries(files: Files, directory: str, default: int) -> int:
    """Return the number of entries of a consume-queue file of a directory without an identity: that of the first file found."""
    if not files.exists(directory):
        return default
    for topic, queue_id in queue_directories(files, directory):
        for name in files.listdir(f"{directory}/{topic}/{queue_id}"):
            if is_log_name(name):
                file = files.open(f"{directory}/{topic}/{queue_id}/{name}")
                try:
                    size = file.size()
                finally:
                    file.close()
                return size // ENTRY_BYTES if size and not size % ENTRY_BYTES else default
    return default


def queue_directories(files: Files, directory: str) -> list[tuple[str, int]]:
    """Return (topic, queue id) of every consume queue on the disk. Other names are ignored, and so are files among the topics."""
    found = []
    for topic in files.listdir(directory):
        try:
            check_topic(topic)
            names = files.listdir(f"{directory}/{topic}")
        except (LocalProtocolError, NotADirectoryError):
            continue
        found += [(topic, int(name)) for name in names if _QUEUE_ID.fullmatch(name)]
    return found


def survey_log(
    found: list[LogFile],
    directory: str,
    segment_bytes: int,
    *,
    start: int | None,
    synced: int,
    cut_corrupt: bool,
) -> LogSurvey:
    """Return the parts of the log. With `cut_corrupt` a missing file is among `starts` and `absent`, and reads as zeros.

    `start` is where the log began when retention last ran, or None if that was not recorded.
    """
    path: Callable[[int], str] = lambda at: f"{directory}/{at:020d}"  # noqa: E731
    for file in found:
        if file.start % segment_bytes or file.size > segment_bytes:
            raise StoreCorruptError(
                f"log file {path(file.start)} has {file.size} bytes, this store's files have {segment_bytes} and are named by multiples of "
                "it: it is not this store's. Remove it from the directory, or restore the store. Nothing was changed",
                position=file.start,
            )
    sizes = {file.start: file.size for file in found}
    first = _first(found, path, start, synced, cut_corrupt)
    if first is None:
        if not cut_corrupt or not synced:
            return LogSurvey((), tuple(sizes), frozenset(), synced)
        first = (start or 0) // segment_bytes * segment_bytes
    starts, absent, at, lacking = [], set(), first, False
    while at in sizes or at < synced:
        if at not in sizes:
            if not cut_corrupt:
                if any(other > at for other in sizes):
                    raise _missing(path(at), at, f"the log was synced up to {synced}")
                break  # the scan ends here, below the synced length
            absent.add(at)
            lacking = True
        elif at + sizes[at] < min(synced, at + segment_bytes):
            if not cut_corrupt:
                raise StoreCorruptError(
                    f"log file {path(at)} has {sizes[at]} bytes, expected {segment_bytes}, and the log was synced up to {synced}. "
                    "Restore it, or start with --cut-corrupt to continue without the missing bytes",
                    position=at + sizes[at],
                )
            lacking = True
        starts.append(at)
        at += segment_bytes
    stray = tuple(other for other in sizes if other >= at)
    return LogSurvey(tuple(starts), stray, frozenset(absent), synced, lacking)


def _first(found: list[LogFile], path: Callable[[int], str], start: int | None, synced: int, cut_corrupt: bool) -> int | None:
    """Return the position at which the log begins, or None if it has no file."""
    if not found:
        return None
    first = found[0].start
    expected = start if start is not None else first if first <= synced else 0
    if first <= expected:
        return first
    if synced <= expected:
        return None  # a power cut kept a later name and lost the first: nothing synced is missing
    if cut_corrupt:
        return expected
    raise _missing(path(expected), expected, f"the log begins at {first}, expected {expected}, and was synced up to {synced}")


def _missing(path: str, position: int, why: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"log file {path} is missing: {why}. Restore it, or start with --cut-corrupt to continue without its records", position=position
    )

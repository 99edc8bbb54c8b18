"""Files can be opened even if connections use all other descriptors."""

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.runtime import files
from lockstep.runtime.connections.server import Server
from lockstep.runtime.daemon import LoopErrors
from lockstep.runtime.descriptors import RESERVED, WAIT_COUNT, WAIT_S, DescriptorBudget, Descriptors
from lockstep.runtime.files import RealFiles
from lockstep.runtime.host import Host
from support.until import until


@pytest.mark.parametrize(
    ("limit", "setting", "files", "connections", "kept"),
    [
        (1 << 20, 10_000, 256, 10_000, 256),
        (65_536, 100_000, 256, 64_768, 256),
        (4_096, 10_000, 256, 3_328, 256),
        (1_024, 10_000, 256, 640, 64),
        (1_024, 100, 256, 100, 64),
        (1_024, 10_000, 0, 768, 0),
        (512, 10_000, 256, 192, 32),
        (256, 10_000, 256, 96, 16),
        (64, 10_000, 256, 24, 4),
        (3, 10_000, 256, 2, 0),
        (1, 10_000, 256, 1, 0),
    ],
)
def test_descriptor_budget_is_divided_among_connections_and_files(
    limit: int, setting: int, files: int, connections: int, kept: int
) -> None:
    assert DescriptorBudget.of(limit, setting, files) == DescriptorBudget(limit, connections, kept)


class Table:
    """A process's table of descriptors. It is full if `free` is 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self.opened: dict[int, str] = {}
        self._next = 1_000
        monkeypatch.setattr(os, "open", self.open)
        monkeypatch.setattr(os, "close", self.close)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if not self.free:
            raise OSError(errno.EMFILE, "too many open files", path)
        self.free -= 1
        self._next += 1
        self.opened[self._next] = path
        return self._next

    def close(self, fd: int) -> None:
        del self.opened[fd]
        self.free += 1


def prepared(monkeypatch: pytest.MonkeyPatch, limit: int) -> Descriptors:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    descriptors = Descriptors()
    descriptors.prepare()
    return descriptors


def test_reserved_descriptors_open_files_while_connections_use_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(monkeypatch, 1_000)
    descriptors = prepared(monkeypatch, 1_000)
    assert (descriptors.reserved, table.free) == (RESERVED, 1_000 - RESERVED)
    table.free = 0
    opened = []
    for number in range(RESERVED):
        opened.append(descriptors.open(os.open, f"file-{number}", os.O_RDWR))
        assert descriptors.is_short()
        assert descriptors.reserved == RESERVED - number - 1
    with pytest.raises(OSError, match="too many open files"):
        descriptors.open(os.open, "one more", os.O_RDWR)
    os.close(opened.pop())
    assert descriptors.is_short()
    for fd in opened:
        os.close(fd)
    assert not descriptors.is_short()
    assert descriptors.reserved == RESERVED
    descriptors.close()
    assert table.opened == {}


def test_open_retries_if_a_connection_takes_the_released_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(monkeypatch, 1_000)
    descriptors = prepared(monkeypatch, 1_000)
    table.free = 0
    opening = os.open

    def raced(path: str, flags: int) -> int:
        table.free = max(0, table.free - 10)  # ten connections are accepted first
        return opening(path, flags)

    assert table.opened[descriptors.open(raced, "file", os.O_RDWR)] == "file"
    assert descriptors.reserved == RESERVED - 11
    assert descriptors.is_short()


def test_open_in_a_worker_thread_waits_for_a_free_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses are counted, not timed."""
    table = Table(monkeypatch, 1_000)
    descriptors = prepared(monkeypatch, 1_000)
    taken = [descriptors.open(os.open, "taken", os.O_RDWR) for _ in range(table.free + RESERVED)]
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if len(pauses) == 7:
            os.close(taken.pop())
        return False

    monkeypatch.setattr(descriptors._closed, "wait", pause)
    assert table.opened[descriptors.open_or_wait(os.open, "file", os.O_RDWR)] == "file"
    assert pauses == [WAIT_S] * 7
    with pytest.raises(OSError, match="too many open files"):
        descriptors.open_or_wait(os.open, "never", os.O_RDWR)
    assert len(pauses) == 7 + WAIT_COUNT, "and not for ever: a stop has to end"


async def test_open_on_the_event_loop_never_waits_for_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        table = Table(patch, 1_000)
        descriptors = prepared(patch, 1_000)
        for _ in range(table.free + RESERVED):
            descriptors.open(os.open, "taken", os.O_RDWR)
        patch.setattr(descriptors._closed, "wait", lambda seconds: pytest.fail("it waited"))
        with pytest.raises(OSError, match="too many open files"):
            descriptors.open_or_wait(os.open, "file", os.O_RDWR)


def test_other_open_errors_are_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    Table(monkeypatch, 500)
    descriptors = prepared(monkeypatch, 500)

    def missing(path: str) -> int:
        raise FileNotFoundError(errno.ENOENT, "no such file", path)

    with pytest.raises(FileNotFoundError):
        descriptors.open(missing, "file")
    assert descriptors.reserved == 125


@pytest.mark.parametrize("limit", [3, 64, 256, 511, 512])
def test_quarter_of_a_low_descriptor_limit_is_reserved(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    Table(monkeypatch, limit)
    assert prepared(monkeypatch, limit).reserved == min(RESERVED, limit // 4)


@pytest.fixture
def reserve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Descriptors]:
    """Limit the process to its current descriptors and 40 more, of which 20 are reserved."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = Descriptors()
    descriptors._wanted = 20
    descriptors._fill()
    monkeypatch.setattr(files, "DESCRIPTORS", descriptors)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 21, hard))
    try:
        yield descriptors
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        descriptors.close()


def fill() -> list[int]:
    """Open files until no descriptor is free. Return them."""
    taken: list[int] = []
    with pytest.raises(OSError, match=r"(?i)too many open files"):
        taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(1_000))
    return taken


def test_every_file_operation_can_use_the_reserved_descriptors(reserve: Descriptors, tmp_path: Path) -> None:
    real, path = RealFiles(), str(tmp_path / "file")
    taken = fill()
    try:
        file = real.open(path, create=True)
        file.pwritev([b"x"], 0)
        assert real.listdir(str(tmp_path)) == ["file"]
        real.sync_directory(str(tmp_path))
        real.sync_many([path], [str(tmp_path)])
        real.sync_many([path] * 100, [str(tmp_path)])
        real.lock(str(tmp_path / "lock"))()
        assert reserve.is_short()
        file.close()
        assert not reserve.is_short()
    finally:
        for fd in taken:
            os.close(fd)


async def test_connection_is_refused_while_a_reserved_descriptor_is_in_use() -> None:
    descriptors = Descriptors(77)
    host = Host.real()
    object.__setattr__(host, "descriptors", descriptors)
    server = Server(host, {"internal": ("127.0.0.1", 0)}, lambda *_: None)
    await server.start()
    name, _, port = server.addresses["internal"].rpartition(":")
    first = await asyncio.open_connection(name, int(port))
    await until(lambda: len(server.endpoints) == 1)
    descriptors.is_short = lambda: True  # type: ignore[method-assign]
    refused, writer = await asyncio.open_connection(name, int(port))
    try:
        assert await refused.read() == b""
    except ConnectionError:
        pass
    assert len(server.endpoints) == 1
    descriptors.is_short = lambda: False  # type: ignore[method-assign]
    later = await asyncio.open_connection(name, int(port))
    await until(lambda: len(server.endpoints) == 2)
    for each in (first[1], writer, later[1]):
        each.close()
    await server.close()


async def test_failing_accept_is_logged_once_per_second(caplog: pytest.LogCaptureFixture) -> None:
    handler, loop = LoopErrors(), asyncio.get_running_loop()
    for number in (errno.EMFILE, errno.ENFILE) * 500:
        handler(loop, {"message": "socket.accept() out of system resource", "exception": OSError(number, "x"), "socket": object()})
    assert [record.getMessage() for record in caplog.records] == ["accept.paused reason=too many open files for_ms=1000"]
    handler._paused_until_s = loop.time()
    handler(loop, {"message": "again", "exception": OSError(errno.EMFILE, "x"), "socket": object()})
    assert len(caplog.records) == 2
    handler(loop, {"message": "odd", "exception": OSError(errno.EIO, "x"), "socket": object()})
    assert caplog.records[-1].getMessage().startswith("loop.failed")

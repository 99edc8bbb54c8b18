"""The operating system's files through the Files protocol."""

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.runtime import files as runtime_files
from lockstep.runtime.files import SYNC_SINGLY_MAX, DiskSpace, File, Files, RealFile, RealFiles


def test_real_file_reads_and_writes(tmp_path: Path) -> None:
    files: Files = RealFiles()
    file: File = files.open(f"{tmp_path}/a", create=True)
    assert file.pwritev([b"ab", bytearray(b"cd"), memoryview(b"ef")], 2) == 6
    assert (file.size(), file.pread(100, 0), file.pread(3, 3)) == (8, b"\0\0abcdef", b"bcd")
    file.sync()
    file.close()
    file.close()


def test_open_does_not_create_a_missing_file_by_default(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RealFiles().open(f"{tmp_path}/a")
    assert RealFiles().listdir(str(tmp_path)) == []


def test_truncate_extends_sparsely_with_zeros_and_shortens(tmp_path: Path) -> None:
    file = RealFiles().open(f"{tmp_path}/a", create=True)
    file.truncate(1 << 30)
    assert file.size() == 1 << 30
    assert file.pread(10, (1 << 30) - 5) == bytes(5)
    assert os.stat(f"{tmp_path}/a").st_blocks < 100
    file.pwritev([b"x" * 100], 0)
    file.truncate(50)
    file.truncate(100)
    assert file.pread(100, 0) == b"x" * 50 + bytes(50)
    file.close()


def test_pread_cached_returns_recently_written_data_or_none(tmp_path: Path) -> None:
    file = RealFiles().open(f"{tmp_path}/a", create=True)
    file.pwritev([b"x" * 10_000], 0)
    assert file.pread_cached(10_000, 0) in (b"x" * 10_000, None)
    assert file.pread_cached(10_000, 1) is None, "short: only a read that may wait can tell why"
    file.close()


def test_nowait_is_not_retried_on_a_file_system_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFiles().open(f"{tmp_path}/a", create=True)
    calls: list[int] = []

    def refuse(*_: object) -> int:
        calls.append(1)
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.pread_cached(1, 0) is None
    assert file.pread_cached(1, 0) is None
    assert calls == [1]
    file.close()


@pytest.mark.parametrize(("error", "raises"), [(errno.EAGAIN, False), (errno.EIO, True)])
def test_pread_cached_returns_none_on_a_cache_miss_and_raises_on_an_io_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, raises: bool
) -> None:
    file = RealFiles().open(f"{tmp_path}/a", create=True)

    def fail(*_: object) -> int:
        raise OSError(error, "no")

    monkeypatch.setattr(os, "preadv", fail)
    if raises:
        with pytest.raises(OSError, match="no"):
            file.pread_cached(1, 0)
    else:
        assert file.pread_cached(1, 0) is None
    file.close()


def test_pread_continues_after_a_short_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFiles().open(f"{tmp_path}/a", create=True)
    file.pwritev([b"abcdefgh"], 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: pread(fd, min(count, 3), offset))
    assert file.pread(7, 1) == b"bcdefgh"
    assert file.pread(99, 6) == b"gh"
    file.close()


def test_file_names_are_created_renamed_listed_and_removed(tmp_path: Path) -> None:
    files = RealFiles()
    files.makedirs(f"{tmp_path}/x/y")
    files.makedirs(f"{tmp_path}/x/y")
    files.open(f"{tmp_path}/x/b", create=True).close()
    files.open(f"{tmp_path}/x/a", create=True).close()
    files.rename(f"{tmp_path}/x/a", f"{tmp_path}/x/b")
    files.sync_directory(f"{tmp_path}/x")
    assert files.listdir(f"{tmp_path}/x") == ["b", "y"]
    files.unlink(f"{tmp_path}/x/b")
    files.rmdir(f"{tmp_path}/x/y")
    assert files.exists(f"{tmp_path}/x")
    assert not files.exists(f"{tmp_path}/x/b")


@pytest.mark.parametrize("count", [3, SYNC_SINGLY_MAX + 1])
def test_sync_many_syncs_each_path_or_the_file_system_and_ignores_missing_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    files = RealFiles()
    synced: list[object] = []
    paths = [f"{tmp_path}/{number}" for number in range(count)]
    for path in paths[1:]:
        files.open(path, create=True).close()
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    monkeypatch.setattr(runtime_files, "_syncfs", lambda fd: synced.append(os.fstat(fd).st_dev) or 0)
    files.sync_many(paths, [str(tmp_path), f"{tmp_path}/gone"])
    assert synced == ([*paths[1:], str(tmp_path)] if count == 3 else [tmp_path.stat().st_dev])


def test_failing_sync_many_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr(runtime_files, "_syncfs", fail)
    with pytest.raises(OSError, match="Input/output error"):
        RealFiles().sync_many([str(tmp_path)] * (SYNC_SINGLY_MAX + 1), [])
    monkeypatch.undo()
    RealFiles().sync_many([str(tmp_path)] * (SYNC_SINGLY_MAX + 1), [])


def test_file_lock_is_exclusive_within_the_process_until_released(tmp_path: Path) -> None:
    files, path = RealFiles(), f"{tmp_path}/lock"
    release = files.lock(path)
    with pytest.raises(BlockingIOError):
        RealFiles().lock(path)
    release()
    release()
    again = files.lock(path)
    release()
    with pytest.raises(BlockingIOError):
        files.lock(path)
    again()


TRY_LOCK = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except OSError:
        sys.exit(7)
"""


def test_file_lock_is_exclusive_across_processes(tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    release = RealFiles().lock(path)
    with pytest.raises(BlockingIOError):
        RealFiles().lock(path)
    # The refused attempt must not have dropped the process's lock (POSIX: closing any descriptor would).
    assert subprocess.run([sys.executable, "-c", TRY_LOCK, path], check=False).returncode == 7
    release()
    assert subprocess.run([sys.executable, "-c", TRY_LOCK, path], check=False).returncode == 0


def test_disk_space_and_memory_are_positive(tmp_path: Path) -> None:
    space = RealFiles().disk_space(str(tmp_path))
    assert 0 < space.free_bytes <= space.total_bytes
    assert RealFiles().memory_bytes() > 1 << 20


def test_disk_space_is_computed_as_by_df(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth is reserved for root, so half of the space for users is used, not 60 %."""
    blocks = SimpleNamespace(f_frsize=4096, f_blocks=1000, f_bfree=600, f_bavail=400)
    monkeypatch.setattr(os, "statvfs", lambda path: blocks)
    assert RealFiles().disk_space("/store") == DiskSpace(800 * 4096, 400 * 4096)


def test_closed_file_raises() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        RealFile(-1).size()

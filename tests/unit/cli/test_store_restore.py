"""`lockstep store restore --from`: the copy is whole and marked, or there is none, and the backup is only read."""

import errno
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.broker.store.errors import StoreCorruptError, StoreInUseError
from lockstep.cli import store_copy
from lockstep.cli.store_restore import restore
from lockstep.runtime.files import RealFiles

IDENTITY = {
    "format": 1,
    "cluster": "c",
    "broker_name": "broker-a",
    "store_id": "x",
    "version": "0.1.0",
    "segment_bytes": 1,
    "queue_file_entries": 1,
    "log_start": 0,
}
LOG = "commitlog/00000000000000000000"
TRY_TO_LOCK = """
import sys
from lockstep.runtime import files
try:
    getattr(files, sys.argv[2])().lock(sys.argv[1])
except BlockingIOError:
    print("locked")
"""


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    root = tmp_path / "backup"
    (root / "lockstep").mkdir(parents=True)
    (root / "commitlog").mkdir()
    (root / "lockstep/identity").write_text(json.dumps(IDENTITY))
    (root / LOG).write_bytes(b"log" + bytes(1 << 20))
    (root / "lock").touch()
    return root


def quiet(_copied: int, _total: int) -> None:
    """Ignore the progress."""


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_copy_is_the_backup_and_the_mark(backup: Path, tmp_path: Path) -> None:
    before = contents(backup)
    assert restore(str(tmp_path / "deep/new"), str(backup), quiet).broker_name == "broker-a"
    assert contents(backup) == before
    del before["lock"]
    assert contents(tmp_path / "deep/new") == before | {"lockstep/restored": b""}
    assert os.listdir(tmp_path / "deep") == ["new"]


def test_copy_is_marked_before_it_gets_its_name(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends just after the rename: the next start from that directory is still the first one of a restored backup."""

    def rename_and_end(source: str, target: str) -> None:
        os.replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", rename_and_end)
    with pytest.raises(KeyboardInterrupt):
        restore(str(tmp_path / "new"), str(backup), quiet)
    assert (tmp_path / "new/lockstep/restored").exists()


def test_interrupted_copy_is_begun_anew(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_copied: int, _total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_copy, "PROGRESS_BYTES", 1)
    with pytest.raises(KeyboardInterrupt):
        restore(str(tmp_path / "new"), str(backup), end)
    assert not (tmp_path / "new").exists()
    restore(str(tmp_path / "new"), str(backup), quiet)
    assert (tmp_path / "new" / LOG).read_bytes() == (backup / LOG).read_bytes()


@pytest.mark.parametrize("linked", ["commitlog", LOG, "lockstep/snapshot-1"])
@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_link_in_a_backup_is_refused_before_anything_is_copied(backup: Path, tmp_path: Path, linked: str, target: str) -> None:
    """The log of the store is on another disk: a copy of the link names the log of the original."""
    place = backup / linked
    (tmp_path / "elsewhere").mkdir()
    if place.exists():
        place.rename(tmp_path / "elsewhere/moved")
    place.symlink_to(tmp_path / target)
    with pytest.raises(StoreCorruptError) as refused:
        restore(str(tmp_path / "new"), str(backup), quiet)
    assert str(refused.value).startswith(f"{place} is a symbolic link to {tmp_path / target}: what is there is not part of the backup")
    assert "in place, without --from" in str(refused.value)
    assert {path.name for path in tmp_path.iterdir()} == {"backup", "elsewhere"}


def test_pipe_in_a_backup_is_refused(backup: Path, tmp_path: Path) -> None:
    os.mkfifo(backup / "commitlog/pipe")
    with pytest.raises(StoreCorruptError, match="commitlog/pipe is neither a file nor a directory"):
        restore(str(tmp_path / "new"), str(backup), quiet)


def test_unreadable_directory_fails_the_copy(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its files the copy would be incomplete, and a start would take the log for shorter."""
    scandir = os.scandir

    def refuse(path: str) -> Iterator["os.DirEntry[str]"]:
        if str(path).endswith("commitlog"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="commitlog"):
        restore(str(tmp_path / "new"), str(backup), quiet)
    assert not (tmp_path / "new").exists()


def test_backup_on_the_root_of_a_volume_is_copied_without_its_lost_and_found(backup: Path, tmp_path: Path) -> None:
    (backup / "lost+found").mkdir()
    restore(str(tmp_path / "new"), str(backup), quiet)
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"lockstep", "commitlog"}


@pytest.mark.parametrize("locked_before", [True, False])
def test_backup_on_a_read_only_file_system_is_copied(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked_before: bool
) -> None:
    if not locked_before:
        (backup / "lock").unlink()
    opened = os.open

    def read_only(path: str, flags: int, mode: int = 0o777) -> int:
        if str(path).startswith(f"{backup}/") and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return opened(path, flags, mode)

    monkeypatch.setattr(os, "open", read_only)
    names = sorted(contents(backup))
    restore(str(tmp_path / "new"), str(backup), quiet)
    assert (tmp_path / "new/lockstep/restored").exists()
    assert sorted(contents(backup)) == names


def test_backup_that_a_broker_has_open_is_refused(backup: Path, tmp_path: Path) -> None:
    release = RealFiles().lock(str(backup / "lock"))
    try:
        with pytest.raises(StoreInUseError, match="is open in a broker: stop it first"):
            restore(str(tmp_path / "new"), str(backup), quiet)
    finally:
        release()
    restore(str(tmp_path / "new"), str(backup), quiet)


def test_broker_of_another_process_can_not_open_the_backup_until_it_is_copied(
    backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def progress(_copied: int, _total: int) -> None:
        found.append((try_to_lock(backup, "RealFiles"), try_to_lock(backup, "ReadOnlyFiles")))

    monkeypatch.setattr(store_copy, "PROGRESS_BYTES", 1)
    restore(str(tmp_path / "new"), str(backup), progress)
    assert set(found) == {("locked", "")}, "another reader does not wait"
    assert try_to_lock(backup, "RealFiles") == ""


def try_to_lock(root: Path, files: str) -> str:
    """Return "locked" if another process can't lock the store by these files."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", TRY_TO_LOCK, str(root / "lock"), files]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_modes_are_kept_and_the_owner_may_write(backup: Path, tmp_path: Path) -> None:
    (backup / LOG).chmod(0o640)
    (backup / "lockstep/identity").chmod(0o440)
    (backup / "commitlog").chmod(0o2750)
    (backup / "lockstep").chmod(0o550)
    backup.chmod(0o550)
    previous = os.umask(0o077)
    try:
        restore(str(tmp_path / "new"), str(backup), quiet)
    finally:
        os.umask(previous)
        backup.chmod(0o750)
        (backup / "lockstep").chmod(0o750)
    names = ("", "commitlog", "lockstep", LOG, "lockstep/identity")
    modes = {name: stat.S_IMODE((tmp_path / "new" / name).stat().st_mode) for name in names}
    assert modes == {"": 0o750, "commitlog": 0o2750, "lockstep": 0o750, LOG: 0o640, "lockstep/identity": 0o640}

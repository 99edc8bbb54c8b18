"""A small disk of its own: a tmpfs, which only root can mount."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20
DISK_MIB = 24
RESERVE_BYTES = DISK_MIB * MIB * 5 // 100


@contextmanager
def small_disk(path: Path) -> Iterator[Path]:
    """Mount a file system of DISK_MIB at the new directory `path`, a third of which is taken by `ballast`. Skip the test if that fails."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "lockstep-test", str(path)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(
            f"a tmpfs can't be mounted here ({mounted.stderr.strip()}); test_reserve_above_the_free_space_rejects_only_sends covers it"
        )
    try:
        (path / "ballast").write_bytes(bytes(DISK_MIB // 3 * MIB))
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill_disk(disk: Path) -> None:
    """Fill the disk to the last byte."""
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(64 * 1024)):
                pass
        except OSError:
            pass
    assert shutil.disk_usage(disk).free == 0

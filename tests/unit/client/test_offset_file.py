"""The progress file: intact after every crash, used by one consumer at a time, with errors that name the next step."""

import errno
from pathlib import Path

import pytest

from lockstep.client.consumer.grants.local_offsets import LocalOffsets, SavedProgress
from lockstep.client.consumer.grants.offset_file import OffsetFile, check_instance
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.host import Host
from lockstep.testing.simulation.disk import Fault, SimFiles

QUEUE = MessageQueue("orders", "a", 0)


def opened(files: object, directory: str = "/offsets", instance: str = "default") -> tuple[OffsetFile, LocalOffsets]:
    real = Host.real()
    host = Host(real.clock, real.random, files, real.threads, real.boot_id, home="/root")  # type: ignore[arg-type]
    file = OffsetFile(host, directory, "prices", instance)
    return file, file.open()


def offsets_at(offset: int) -> LocalOffsets:
    book = LocalOffsets("prices")
    book.since("orders", 1)
    book.set(QUEUE, SavedProgress(offset, 0))
    return book


def test_offset_file_restores_progress_and_counts_starts() -> None:
    files = SimFiles("x")
    file, book = opened(files)
    assert book.starts == 1
    file.write(offsets_at(7).encode())
    file.release()
    again = opened(files)[1]
    assert (again.starts, again.place(QUEUE)) == (1, SavedProgress(7, 0)), "what was written knew of no start"


@pytest.mark.parametrize("seed", range(40))
def test_power_cut_during_a_write_leaves_the_old_or_the_new_offset_file_intact(seed: int) -> None:
    files = SimFiles(seed, short_writes=True)
    file, _ = opened(files)
    file.write(offsets_at(1).encode())
    files.countdown = seed % 20
    written = [1]

    def write() -> None:
        while True:
            file.write(offsets_at(written[-1] + 1).encode())
            written.append(written[-1] + 1)

    with pytest.raises(OSError, match="the process ends here"):
        write()
    files.crash(power=True)
    place = opened(files)[1].place(QUEUE)
    assert place is not None
    assert place.offset in (written[-1], written[-1] + 1)


def test_offset_file_in_use_is_rejected_with_advice_to_set_instance_name(tmp_path: Path) -> None:
    files = Host.real().files
    first, _ = opened(files, str(tmp_path))
    with pytest.raises(ConfigError, match=r"prices/default is in use by another consumer of prices.*instance_name"):
        opened(files, str(tmp_path))
    assert opened(files, str(tmp_path), "other")[1].starts == 1
    first.release()
    assert opened(files, str(tmp_path))[1].starts == 2


def test_error_for_an_unwritable_offset_dir_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"offset_dir: .*file/prices/default/offsets.json can't be used .*offset_dir="):
        opened(Host.real().files, str(tmp_path / "file"))


def test_full_disk_is_reported_at_startup() -> None:
    files = SimFiles("full")
    files.faults.append(Fault("write", error=errno.ENOSPC))
    with pytest.raises(ConfigError, match="can't be used"):
        opened(files)


def test_damaged_offset_file_is_rejected_with_advice_and_not_modified(tmp_path: Path) -> None:
    files = Host.real().files
    opened(files, str(tmp_path))[0].release()
    path = tmp_path / "prices" / "default" / "offsets.json"
    damaged = path.read_bytes().replace(b'"starts":1', b'"starts":9')
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match=r"offsets.json is damaged: its checksum is wrong.*remove it to begin"):
        opened(files, str(tmp_path))
    assert path.read_bytes() == damaged
    path.unlink()
    assert opened(files, str(tmp_path))[1].starts == 1, "the lock was given back with the error"


def test_temporary_file_left_by_a_crash_is_ignored(tmp_path: Path) -> None:
    files = Host.real().files
    file, _ = opened(files, str(tmp_path))
    (tmp_path / "prices" / "default" / "offsets.json.new").write_bytes(b"x" * 100_000)
    file.write(offsets_at(3).encode())
    file.release()
    assert opened(files, str(tmp_path))[1].place(QUEUE) == SavedProgress(3, 0)


def test_tilde_in_offset_dir_expands_to_the_home_directory() -> None:
    assert opened(SimFiles("x"), "~/.lockstep/offsets")[0].path == "/root/.lockstep/offsets/prices/default/offsets.json"


@pytest.mark.parametrize("name", ["", "a/b", "..", ".x", "a b", 7, "a" * 101])
def test_instance_name_must_be_a_valid_folder_name(name: object) -> None:
    check_instance("worker-1.eu")
    with pytest.raises(ConfigError, match="instance_name"):
        check_instance(name)

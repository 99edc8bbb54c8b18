"""The values of a witness: in memory, and one file for each broker name.

    register/NAME   CRC-32 in hex, a blank, and {"format", "cluster", "broker_name", "version", "value"}; NAME: SHA-256 of both names
    lock            fcntl lock on byte 0

A file is replaced as the small files of a store are, before the answer to who has changed it. A change whose write failed, or was cut off,
may still be found by a later start: its client was told nothing.
"""

import asyncio
import json
from dataclasses import dataclass
from hashlib import sha256

from lockstep.broker.store.errors import IdentityError, StoreCorruptError, StoreDiskError
from lockstep.broker.store.start.directory import StoreDirectory, locked_directory
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import NoPermissionError
from lockstep.runtime.extras import VERSION
from lockstep.runtime.host import Host

FORMAT = 1
"""The format of the files. A version that writes what this one can't read has a higher number."""
NAMES_MAX = 1_024
"""The maximum number of broker names: with the longest values 8 MiB, in memory and on disk."""
STOP_LOOK_S = 0.01

NameKey = tuple[str, str]
"""Cluster and broker name."""


@dataclass(frozen=True, slots=True)
class WitnessValue:
    version: int
    value: bytes


ABSENT = WitnessValue(0, b"")


class WitnessValues:
    """The values of all broker names, and their files."""

    def __init__(self, host: Host, root: str) -> None:
        self._host = host
        self._root = root
        self._folder = f"{root}/register"
        self._directory: StoreDirectory | None = None
        self._values: dict[NameKey, WitnessValue] = {}
        self._is_writing = False
        self.trouble: str | None = None
        """Why the last change could not be written."""

    def __len__(self) -> int:
        return len(self._values)

    async def open(self) -> None:
        """Lock the directory and read all files.

        Raise StoreDiskError (exit 3), IdentityError (4), StoreCorruptError (5) for a damaged file, or StoreInUseError (6).
        """
        self._directory, self._values = await self._host.threads.run(self._open)

    def _open(self) -> tuple[StoreDirectory, dict[NameKey, WitnessValue]]:
        files = self._host.files
        if files.exists(f"{self._root}/commitlog"):
            raise IdentityError(f"{self._root} is the store of a broker: give the witness a directory of its own")
        with locked_directory(files, self._root) as directory:
            files.makedirs(self._folder)
            files.sync_directory(self._root)
            values = {}
            for name in files.listdir(self._folder):
                path = f"{self._folder}/{name}"
                if name.endswith(".tmp"):
                    files.unlink(path)
                else:
                    names, value = _parse(directory.read(path) or b"", path)
                    values[names] = value
            return directory, values

    async def close(self) -> None:
        """Unlock the directory, when a write that has begun has ended: a request that waited for it may be gone."""
        while self._is_writing:  # noqa: ASYNC110 a thread ends it
            await asyncio.sleep(STOP_LOOK_S)
        if self._directory is not None:
            self._directory.unlock()
            self._directory = None

    def get(self, names: NameKey) -> WitnessValue:
        """Return the value, ABSENT if there is none."""
        return self._values.get(names, ABSENT)

    async def swap(self, names: NameKey, version: int, value: bytes) -> bool:
        """Store a value durably if the version is still this one. Return whether that was so. One caller at a time.

        Raise NoPermissionError for one name too many, and StoreDiskError if it can't be written: then it may be stored all the same.
        """
        if self.get(names).version != version:
            return False
        if version == 0 and len(self._values) >= NAMES_MAX:
            raise NoPermissionError(f"the witness has {NAMES_MAX} broker names, its limit: stop it, and remove files of {self._folder}")
        next_value = WitnessValue(version + 1, value)
        self._is_writing = True
        try:
            # A request that is cancelled must not take back a write that waits for its thread: `close` waits for its end.
            await asyncio.shield(self._host.threads.run(self._write, names, next_value))
        except OSError as error:
            self.trouble = f"{self._folder} can't be written: {(error.strerror or str(error)).lower()}"
            raise StoreDiskError(self.trouble) from error
        self.trouble = None
        self._values[names] = next_value
        return True

    def _write(self, names: NameKey, value: WitnessValue) -> None:
        assert self._directory is not None
        try:
            self._directory.replace(f"{self._folder}/{_file_name(names)}", _form(names, value))
        finally:
            self._is_writing = False


def _file_name(names: NameKey) -> str:
    return sha256("/".join(names).encode()).hexdigest()


def _form(names: NameKey, value: WitnessValue) -> bytes:
    cluster, broker_name = names
    plain = {"format": FORMAT, "cluster": cluster, "broker_name": broker_name, "version": value.version}
    text = json.dumps({**plain, "value": value.value.decode("utf-8", "surrogateescape")}).encode()
    return b"%08x %s\n" % (crc32(text), text)


def _parse(data: bytes, path: str) -> tuple[NameKey, WitnessValue]:
    crc, _, text = data.rstrip(b"\n").partition(b" ")
    if crc != b"%08x" % crc32(text):
        raise StoreCorruptError(
            f"{path} is damaged: remove it, and the register has no entry of that broker name, so that nobody is elected until an operator "
            "has made a new one"
        )
    found = json.loads(text)
    if found["format"] != FORMAT:
        raise IdentityError(f"{path} has format {found['format']}, lockstep {VERSION} reads format {FORMAT}: start one that reads it")
    names = str(found["cluster"]), str(found["broker_name"])
    return names, WitnessValue(int(found["version"]), str(found["value"]).encode("utf-8", "surrogateescape"))

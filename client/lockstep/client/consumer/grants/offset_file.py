"""The file in which a member of a broadcasting group stores its progress. RocketMQ: LocalFileOffsetStore.

    DIR/GROUP/INSTANCE/offsets.json       complete after every crash: a new file is written, synced and renamed, and the directory is synced
    DIR/GROUP/INSTANCE/offsets.json.new   the new file; after a crash it is ignored
    DIR/GROUP/INSTANCE/lock               locked while a consumer uses the file; the operating system unlocks it when the process ends

Two consumers never share a file: the second one with the same group, instance and directory is refused at its start.
"""

import re
from collections.abc import Callable

from lockstep.client.consumer.grants.local_offsets import LocalOffsets
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.files import Files
from lockstep.runtime.host import Host

NAME = "offsets.json"
FILE_BYTES_MAX = 64 << 20
"""Enough for a million queues. A longer file is not read."""
DEFAULT_DIR = "~/.lockstep/offsets"
_INSTANCE = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}")


def check_instance(name: object) -> None:
    """Raise ConfigError unless the name is a valid folder name."""
    if not isinstance(name, str) or not _INSTANCE.fullmatch(name):
        raise ConfigError(f"instance_name is {name!r}: expected 1 to 100 of the characters a-z A-Z 0-9 . _ -, not beginning with a dot")


class OffsetFile:
    """Call `open`, then `write`. Every method except `release` may wait for the disk, so call it in a thread."""

    def __init__(self, host: Host, directory: str, group: str, instance: str) -> None:
        if directory == "~" or directory.startswith("~/"):
            directory = host.home + directory[1:]
        self._files: Files = host.files
        self._instance = instance
        self._parents = [directory, f"{directory}/{group}"]
        self.folder = f"{directory}/{group}/{instance}"
        self.path = f"{self.folder}/{NAME}"
        self._group = group
        self._unlock: Callable[[], None] | None = None
        self._released = False
        self._writing = False

    def open(self) -> LocalOffsets:
        """Lock the file for this consumer, read it, and write it: this records the start, and proves that it can be written.

        Raises:
            ConfigError: Another consumer uses it, it can't be read or written, or it is damaged.
        """
        try:
            self._files.makedirs(self.folder)
            self._unlock = self._files.lock(f"{self.folder}/lock")
            offsets = self._read()
            offsets.starts += 1
            self.write(offsets.encode())
            for parent in self._parents:
                self._files.sync_directory(parent)
            return offsets
        except BlockingIOError:
            raise ConfigError(
                f"{self.folder} is in use by another consumer of {self._group}: a broadcasting member stores its progress there. Give each "
                f'member on this machine its own instance_name="…" (now {self._instance!r}), or another offset_dir'
            ) from None
        except OSError as error:
            self.release()
            raise ConfigError(
                f"offset_dir: {self.path} can't be used ({error}): a broadcasting member stores its progress there. Make the directory "
                'writable for this user, or set another one, offset_dir="…"'
            ) from error
        except BaseException:  # re-raised
            self.release()
            raise

    def _read(self) -> LocalOffsets:
        try:
            file = self._files.open(self.path)
        except FileNotFoundError:
            return LocalOffsets(self._group)
        try:
            size = file.size()
            text = file.pread(min(size, FILE_BYTES_MAX + 1), 0)
        finally:
            file.close()
        try:
            if len(text) > FILE_BYTES_MAX:
                raise ValueError(f"it has {size} bytes, more than {FILE_BYTES_MAX}")
            return LocalOffsets.decode(text, self._group)
        except ValueError as error:
            raise ConfigError(
                f"{self.path} is damaged: {error}. It holds this member's progress in {self._group}: restore a copy, or remove it to "
                "begin at consume_from_where"
            ) from None

    def write(self, text: bytes) -> None:
        """Replace the content. A power failure after this returns leaves the new text; before, the new or the old one. Raises OSError.

        After `release` it does nothing: the file is another consumer's.
        """
        self._writing = True
        try:
            if not self._released:
                self._replace(text)
        finally:
            self._writing = False
            if self._released:
                self.release()

    def _replace(self, text: bytes) -> None:
        new = f"{self.path}.new"
        file = self._files.open(new, create=True)
        try:
            file.truncate(0)
            written = 0
            while written < len(text):
                written += file.pwritev([memoryview(text)[written:]], written)
            file.sync()
        finally:
            file.close()
        self._files.rename(new, self.path)
        self._files.sync_directory(self.folder)

    def release(self) -> None:
        """Unlock the file for another consumer; if it is being written in another thread (whose consumer's event loop was closed), at the
        end of that."""
        self._released = True
        unlock = self._unlock
        if unlock is not None and not self._writing:
            self._unlock = None
            unlock()

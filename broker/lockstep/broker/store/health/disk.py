"""Free space against the reserve."""

from lockstep.broker.store.config import MIB, StoreConfig
from lockstep.broker.store.results import DiskStatus
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.runtime.files import DiskSpace, Files

RESERVE_BYTES_MAX = 256 * MIB
RESERVE_PERCENT = 5
LOOK_BYTES_MAX = 16 * MIB
"""Largest number of bytes written between two looks at the file system: others write to it too."""
LOOK_INTERVAL_MS = 1_000
REFUSED_LOOK_INTERVAL_MS = 50
"""How often a refused send causes another look, so that sends resume without a restart."""


class DiskWatch:
    """Refuses sends when the file system is nearly full. State records may still use the reserve."""

    def __init__(self, config: StoreConfig, files: Files) -> None:
        self._path = config.path
        self._files = files
        self._space: DiskSpace = files.disk_space(config.path)
        self._reserve_bytes = config.disk_reserve_bytes
        self._looked_ms = 0
        self._refused_bytes = 0
        """The size of the last refused frame, until there is room for one of that size."""
        self.room = 0
        """Number of bytes that may be appended before the next look."""
        self._look(0)

    def apply(self, config: StoreConfig) -> None:
        """Use another reserve from the next send on."""
        self._reserve_bytes = config.disk_reserve_bytes
        self.room = 0

    @property
    def reserve_bytes(self) -> int:
        if self._reserve_bytes is not None:
            return self._reserve_bytes
        return min(RESERVE_BYTES_MAX, self._space.total_bytes * RESERVE_PERCENT // 100)

    def _look(self, now_ms: int) -> None:
        self._space = self._files.disk_space(self._path)
        self._looked_ms = now_ms
        self.room = min(LOOK_BYTES_MAX, self._space.free_bytes - self.reserve_bytes)

    def look_if_due(self, now_ms: int) -> None:
        """Look again if the last look is too old."""
        if now_ms - self._looked_ms >= LOOK_INTERVAL_MS:
            self._look(now_ms)

    def make_room(self, size: int, now_ms: int) -> None:
        """Look again because the room is used up. Raise ServiceNotAvailableError if `size` bytes would go into the reserve."""
        refused = self.room < LOOK_BYTES_MAX and self._space.free_bytes - size < self.reserve_bytes
        if not refused or now_ms - self._looked_ms >= REFUSED_LOOK_INTERVAL_MS:
            self._look(now_ms)
        free, reserve = self._space.free_bytes, self.reserve_bytes
        if free - size < reserve:
            self._refused_bytes = size
            raise ServiceNotAvailableError(
                f"disk of {self._path} has {free} bytes free; sends are refused where less than {reserve} bytes would be left. "
                "Free some space or let retention remove more: sends resume automatically"
            )
        self.room = max(self.room, size)

    def check_new_state(self, what: str, now_ms: int) -> None:
        """Raise ServiceNotAvailableError if less than half the reserve is free: the rest is for commits of existing groups."""
        half = self.reserve_bytes // 2
        if self._space.free_bytes - half >= LOOK_BYTES_MAX and now_ms - self._looked_ms < LOOK_INTERVAL_MS:
            return
        if now_ms - self._looked_ms >= REFUSED_LOOK_INTERVAL_MS:
            self._look(now_ms)
        if self._space.free_bytes < half:
            raise ServiceNotAvailableError(
                f"disk of {self._path} has {self._space.free_bytes} bytes free, less than half of the reserve of {self.reserve_bytes}: "
                f"{what} is new and refused. Free some space or let retention remove more"
            )

    def check_copy(self, size: int, now_ms: int) -> None:
        """Take `size` bytes for a part of another store's log. Raise ServiceNotAvailableError if less than half the reserve would be left.

        A master uses its reserve for state, which its replica has to copy.
        """
        self.check_half(size, now_ms)
        self.room -= size

    def check_half(self, size: int, now_ms: int) -> None:
        """Raise ServiceNotAvailableError if `size` more bytes would leave less than half the reserve."""
        self.look_if_due(now_ms)
        more = self.reserve_bytes - self.reserve_bytes // 2
        if self.room + more < size:
            self._look(now_ms)
            if self.room + more < size:
                raise ServiceNotAvailableError(
                    f"disk of {self._path} has {self._space.free_bytes} bytes free; nothing is copied where less than half of the reserve "
                    f"of {self.reserve_bytes} bytes would be left. Free some space: copying resumes automatically"
                )

    def status(self, now_ms: int, log_bytes: int) -> DiskStatus:
        """Look at the file system, and return its present use."""
        self._look(now_ms)
        return DiskStatus(self._space.total_bytes, self._space.free_bytes, self.reserve_bytes, log_bytes, self._refusal())

    def _refusal(self) -> str | None:
        free, reserve, size = self._space.free_bytes, self.reserve_bytes, self._refused_bytes
        if free >= reserve + size:
            self._refused_bytes = 0
            return None
        refused = f"a frame of {size} bytes was refused, because less than the reserve of {reserve} bytes would be left"
        return f"the disk has {free} bytes free; {refused if free >= reserve else f'sends need a reserve of {reserve}'}"

"""Changes to a store's files without the broker's knowledge."""

from pathlib import Path

from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.messages.record import RecordView, record_bounds
from lockstep.runtime.files import RealFiles


class Damage:
    """A store directory of a stopped broker. Positions are log offsets."""

    def __init__(self, store: Path) -> None:
        self.store = store

    @property
    def segments(self) -> list[Path]:
        return sorted(path for path in (self.store / "commitlog").iterdir() if path.name.isdecimal())

    @property
    def snapshots(self) -> list[Path]:
        return sorted((self.store / "lockstep").glob("snapshot-*"))

    @property
    def synced(self) -> int:
        """Return the length that is recorded as synced."""
        directory = StoreDirectory(RealFiles(), str(self.store))
        try:
            return directory.load_synced()
        finally:
            directory.unlock()

    def write_synced_position(self, position: int) -> None:
        """Record `position` as synced, as if the machine had then lost power."""
        directory = StoreDirectory(RealFiles(), str(self.store))
        try:
            directory.load_synced()
            for _ in range(2):
                directory.save_synced(position)
        finally:
            directory.unlock()

    def mark_unclean(self) -> None:
        """Record that the store was not closed."""
        (self.store / "abort").touch()

    def flip(self, position: int, bit: int = 0) -> None:
        """Flip a bit of the log."""
        byte = self.read(position, 1)[0]
        self.write(position, bytes([byte ^ 1 << bit]))

    def flip_last_body(self, end: int) -> None:
        """Flip a bit in the body of the record that ends at `end`. Its CRC shows that, whatever the record is."""
        position, size = 0, 0
        while position + size < end:
            position += size
            size = int.from_bytes(self.read(position, 4), "big")
            assert size, f"no record begins at {position}"
        assert position + size == end
        topic_at, _, _ = record_bounds(self.read(position, size))
        self.flip(position + topic_at - 2)

    def zero(self, position: int, count: int | None = None) -> None:
        """Zero a range of the log. Without a count it extends to the end of this segment and all later ones."""
        if count is not None:
            self.write(position, bytes(count))
            return
        for path in self.segments:
            start, size = int(path.name), path.stat().st_size
            if start + size > position:
                with path.open("r+b") as file:
                    file.truncate(max(0, position - start))
                    file.truncate(size)

    def write(self, position: int, data: bytes) -> None:
        path, at = self._place(position)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def read(self, position: int, count: int) -> bytes:
        path, at = self._place(position)
        with path.open("rb") as file:
            file.seek(at)
            return file.read(count)

    def record(self, position: int) -> RecordView:
        """Return the record at that position."""
        size = int.from_bytes(self.read(position, 4), "big")
        return RecordView(self.read(position, size))

    def _place(self, position: int) -> tuple[Path, int]:
        for path in reversed(self.segments):
            if int(path.name) <= position:
                return path, position - int(path.name)
        raise ValueError(f"no segment holds {position}")

"""One-way sends of one queue: they gather for a loop turn and are written without a sequence; they get no response."""

from collections.abc import Iterator

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.topics.queue import LayoutVersion, MessageQueue
from lockstep.runtime.connections.endpoint import Endpoint


class OnewayRecords:
    """The one-way records of a queue in this loop turn."""

    __slots__ = ("_bytes_max", "_count_max", "_waiting", "byte_count")

    def __init__(self, bytes_max: int, count_max: int) -> None:
        """Take the limits of a frame; a record that is larger is written alone."""
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._waiting: list[tuple[bytes, LayoutVersion | None]] = []
        self.byte_count = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, record: bytes, version: LayoutVersion | None) -> None:
        """Add a record. `version`: the layout that a keyed record's queue was picked from."""
        self._waiting.append((record, version))
        self.byte_count += len(record)

    def write(self, queue: MessageQueue, endpoint: Endpoint | None) -> None:
        """Write the records of each layout version together, in frames of at most the limits. Without a connection they are lost, as
        one-way sends may be."""
        waiting, self._waiting = self._waiting, []
        self.byte_count = 0
        if endpoint is None:
            return
        by_version: dict[LayoutVersion | None, list[bytes]] = {}
        for record, version in waiting:
            by_version.setdefault(version, []).append(record)
        for version, records in by_version.items():
            for frame in self._cut(records):
                fields: dict[str, object] = {"topic": queue.topic, "queueId": queue.queue_id, "count": len(frame)}
                if version is not None:
                    fields |= {"layoutCounter": version.counter, "layoutWriter": version.writer}
                endpoint.oneway(RequestCode.SEND_RECORDS, fields, b"".join(frame))

    def _cut(self, records: list[bytes]) -> Iterator[list[bytes]]:
        """Yield the records of each frame."""
        frame: list[bytes] = []
        byte_count = 0
        for record in records:
            if frame and (len(frame) >= self._count_max or byte_count + len(record) > self._bytes_max):
                yield frame
                frame, byte_count = [], 0
            frame.append(record)
            byte_count += len(record)
        yield frame

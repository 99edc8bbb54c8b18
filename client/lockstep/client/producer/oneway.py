"""One-way sends of one queue: gathered over a loop turn, written without a sequence, never answered."""

from lockstep.protocol.codes import RequestCode
from lockstep.protocol.queue import LayoutVersion, MessageQueue
from lockstep.runtime.endpoint import Endpoint


class OnewayRecords:
    """What waits for the end of this loop turn."""

    __slots__ = ("_waiting", "byte_count")

    def __init__(self) -> None:
        self._waiting: list[tuple[bytes, LayoutVersion | None]] = []
        self.byte_count = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, record: bytes, version: LayoutVersion | None) -> None:
        """`version`: the layout that a keyed record's queue was picked from."""
        self._waiting.append((record, version))
        self.byte_count += len(record)

    def write(self, queue: MessageQueue, endpoint: Endpoint | None) -> None:
        """One frame per layout version; without a connection they are lost, as one-way sends may be."""
        waiting, self._waiting = self._waiting, []
        self.byte_count = 0
        if endpoint is None:
            return
        by_version: dict[LayoutVersion | None, list[bytes]] = {}
        for record, version in waiting:
            by_version.setdefault(version, []).append(record)
        for version, records in by_version.items():
            fields: dict[str, object] = {"topic": queue.topic, "queueId": queue.queue_id, "count": len(records)}
            if version is not None:
                fields |= {"layoutCounter": version.counter, "layoutWriter": version.writer}
            endpoint.oneway(RequestCode.SEND_RECORDS, fields, b"".join(records))

"""The master of a replica, without a network: it has a log, and the small files of its store."""

from types import SimpleNamespace
from typing import Any

from lockstep.broker.store.start.directory import StoreDirectory
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.crc import crc32
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.replication import ReplicaFetchReply, ReplicaFileReply
from lockstep.testing.simulation.disk import SimFiles


def log_of(files: SimFiles) -> bytes:
    """Return the files of a log, the whole of each."""
    return b"".join(bytes(file.cache) for path, file in sorted(files.names.items()) if "/commitlog/" in path)


class WholeCopy:
    """A connection to a master. It notes up to where its log was asked for."""

    def __init__(self, log: bytes, directory: StoreDirectory | None = None) -> None:
        self._log = log
        self._directory = directory
        self.asked_until = 0

    async def request(self, code: int, fields: dict[str, Any], **_: object) -> Any:
        if code == RequestCode.REPLICA_FILE:
            assert self._directory is not None
            name, size, data = self._directory.read_part(str(fields["name"]), int(fields["offset"]), int(fields["maxBytes"]))
            return _answer(ReplicaFileReply(name, size), data)
        at, size = int(fields["position"]), int(fields["maxBytes"])
        self.asked_until = max(self.asked_until, at + size)
        data = self._log[at : min(at + size, at - at % 4096 + 4096)]
        return _answer(ReplicaFetchReply(1, 7, crc32(data), len(self._log), 0, len(self._log), 0), data)


def _answer(reply: object, body: bytes) -> Any:
    return SimpleNamespace(code=0, fields=to_plain(reply), body=body, remark=None)

"""Directories as RocketMQ's broker writes them, made without it."""

import json
from pathlib import Path
from struct import Struct
from typing import Any

from lockstep.broker.rocketmq_store.foreign_log import OP_TOPIC
from lockstep.broker.store.log.append import ENTRY
from lockstep.protocol.messages.record import (
    BLANK_MAGIC,
    BORN_HOST_AT,
    OFFSETS,
    QUEUE_OFFSET_AT,
    RECONSUME_TIMES_AT,
    SIZE_AND_MAGIC,
    SYS_BORN_IPV6,
    SYS_IPV6_MASK,
    SYS_STORE_IPV6,
    encode_record,
    pack_host,
)
from lockstep.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

FILE_BYTES = 16 * 1024
QUEUE_FILE_ENTRIES = 32
STORED_MS = 1_700_000_000_000
SIZE = Struct(">I")
IPV4_HOST = pack_host("127.0.0.1:10911")
IPV6_HOST = bytes.fromhex("20010DB8000000000000000000000007 00002A9F")


def topic_entry(topic: str, queues: int = 4, *, write: int | None = None, perm: int = 6, **attributes: str) -> dict[str, Any]:
    counts = {"readQueueNums": queues, "writeQueueNums": queues if write is None else write}
    return {"topicName": topic, "perm": perm, "order": False, "topicFilterType": "SINGLE_TAG", "attributes": attributes, **counts}


class ForeignDirectory:
    """A log in files of one length, and config/*.json."""

    def __init__(self, root: Path, file_bytes: int = FILE_BYTES) -> None:
        self.root = root
        self.file_bytes = file_bytes
        self.positions: list[int] = []
        self._queues: dict[tuple[str, int], list[int]] = {}
        self._log = bytearray()
        self._begin = 0
        self._next: dict[tuple[str, int], int] = {}

    def continue_at(self, position: int, ends: dict[tuple[str, int], int]) -> None:
        """Begin the log at a position, and the queues at these offsets: what was before is removed."""
        self._log = bytearray(position)
        self._begin = position
        self._next = ends

    def add(self, topic: str, body: bytes, *, queue_id: int = 0, properties: bytes = b"", sys_flag: int = 0) -> int:
        """Append a message, and return its queue offset. `sys_flag` may have bits of SYS_IPV6_MASK."""
        data = bytearray(encode_record(topic.encode(), queue_id, body, properties, sys_flag=sys_flag, born_ms=STORED_MS))
        more = 12 * (sys_flag & SYS_IPV6_MASK).bit_count()
        SIZE.pack_into(data, 0, len(data) + more)
        left = self.file_bytes - len(self._log) % self.file_bytes
        if len(data) + more + SIZE_AND_MAGIC.size > left:
            self._log += SIZE_AND_MAGIC.pack(left, BLANK_MAGIC).ljust(left, b"\0")
        offset = self._next.get((topic, queue_id), 0)
        OFFSETS.pack_into(data, QUEUE_OFFSET_AT, offset, len(self._log))
        hosts = IPV6_HOST if sys_flag & SYS_BORN_IPV6 else IPV4_HOST, IPV6_HOST if sys_flag & SYS_STORE_IPV6 else IPV4_HOST
        data[BORN_HOST_AT:RECONSUME_TIMES_AT] = hosts[0] + STORED_MS.to_bytes(8, "big") + hosts[1]
        self.positions.append(len(self._log))
        self._log += data
        self._next[topic, queue_id] = offset + 1
        self._queues.setdefault((topic, queue_id), []).append(self.positions[-1])
        return offset

    @property
    def log(self) -> bytes:
        return bytes(self._log)

    def positions_of(self, topic: str, queue_id: int) -> list[int]:
        """Return the log positions of the messages of a queue."""
        return self._queues.get((topic, queue_id), [])

    def add_delayed(self, body: bytes, *, topic: str, level: int, queue_id: int = 0) -> int:
        properties = f"DELAY\x01{level}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02".encode()
        return self.add(SCHEDULE_TOPIC, body, queue_id=level - 1, properties=properties)

    def add_half(self, body: bytes = b"half", *, topic: str = "orders", queue_id: int = 0, group: str = "shop", more: str = "") -> int:
        """Append a prepared message of a transaction. RocketMQ: TransactionalMessageBridge.parseHalfMessageInner."""
        properties = f"TRAN_MSG\x01true\x02UNIQ_KEY\x01A1\x02PGROUP\x01{group}\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02"
        return self.add(HALF_TOPIC, body, properties=(properties + more).encode())

    def end_halves(self, *offsets: int) -> None:
        self.add(OP_TOPIC, ",".join(map(str, offsets)).encode() + b",", properties=b"TAGS\x01d\x02")

    def add_timer(self, due_ms: int) -> None:
        self.add(TIMER_TOPIC, b"timer", properties=f"TIMER_OUT_MS\x01{due_ms}\x02".encode())

    def overwrite(self, position: int, data: bytes) -> None:
        self._log[position : position + len(data)] = data

    def write_log(self) -> None:
        folder = self.root / "commitlog"
        folder.mkdir(parents=True, exist_ok=True)
        for start in range(self._begin, len(self._log), self.file_bytes):
            (folder / f"{start:020d}").write_bytes(bytes(self._log[start : start + self.file_bytes]).ljust(self.file_bytes, b"\0"))

    def write(
        self,
        *topics: dict[str, Any],
        offsets: dict[str, dict[int, int]] | None = None,
        disabled: tuple[str, ...] = (),
        delays: dict[int, int] | None = None,
    ) -> None:
        """Write all files. The keys of `offsets` are TOPIC@GROUP, those of `delays` levels."""
        self.write_log()
        groups = {name: {"groupName": name, "consumeEnable": name not in disabled, "retryMaxTimes": 3} for name in ("billing", *disabled)}
        self.write_config("topics.json", {"topicConfigTable": {entry["topicName"]: entry for entry in topics}})
        self.write_config("subscriptionGroup.json", {"subscriptionGroupTable": groups})
        table = ",".join(f"{json.dumps(key)}:{_bare(value)}" for key, value in (offsets or {}).items())
        self.write_config("consumerOffset.json", f'{{"offsetTable":{{{table}}}}}')
        self.write_config("delayOffset.json", f'{{"offsetTable":{_bare(delays or {})}}}')

    def write_queue(self, topic: str, queue_id: int, positions: list[int] | None = None) -> None:
        """Write the consume queue of the messages, or one whose messages are at these log positions, in files of 32 entries."""
        positions = self.positions_of(topic, queue_id) if positions is None else positions
        folder = self.root / "consumequeue" / topic / str(queue_id)
        folder.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(positions), QUEUE_FILE_ENTRIES):
            entries = b"".join(ENTRY.pack(position, 100, 0) for position in positions[first : first + QUEUE_FILE_ENTRIES])
            path = folder / f"{first * ENTRY.size:020d}"
            path.write_bytes(entries.ljust(QUEUE_FILE_ENTRIES * ENTRY.size, b"\0"))

    def write_config(self, name: str, content: dict[str, Any] | str) -> None:
        folder = self.root / "config"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def _bare(numbers: dict[int, int]) -> str:
    """Return a map as fastjson writes it, with bare numbers as keys."""
    return "{" + ",".join(f"{key}:{value}" for key, value in numbers.items()) + "}"

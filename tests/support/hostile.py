"""Invalid requests of the right shape with wrong, extreme or missing values. The seed determines the stream."""

import dataclasses
import enum
import types
import typing
from random import Random
from typing import Any

from lockstep.protocol.bodies import HeartbeatBody, LockBatchBody, RegisterBody, SessionLockBody, SyncBody
from lockstep.protocol.codec.plain import pack_plain
from lockstep.protocol.codes import RequestCode as R
from lockstep.protocol.fields import camel
from lockstep.protocol.headers import clients, offsets, pull, routes, send
from lockstep.protocol.messages.record import encode_record
from lockstep.protocol.topics.queue import TopicLayout

BROKER_CODES: dict[int, tuple[type | None, type | None]] = {
    R.SEND_MESSAGE: (send.SendMessageHeader, None),
    R.PULL_MESSAGE: (pull.PullHeader, None),
    R.QUERY_CONSUMER_OFFSET: (offsets.QueryConsumerOffsetHeader, None),
    R.UPDATE_CONSUMER_OFFSET: (offsets.UpdateConsumerOffsetHeader, None),
    R.UPDATE_AND_CREATE_TOPIC: (routes.CreateTopicHeader, TopicLayout),
    R.SEARCH_OFFSET_BY_TIMESTAMP: (offsets.SearchOffsetHeader, None),
    R.GET_MAX_OFFSET: (offsets.QueueHeader, None),
    R.GET_MIN_OFFSET: (offsets.QueueHeader, None),
    R.GET_EARLIEST_MSG_STORETIME: (offsets.QueueHeader, None),
    R.QUERY_MESSAGE: (offsets.QueryMessageHeader, None),
    R.VIEW_MESSAGE_BY_ID: (offsets.ViewMessageHeader, None),
    R.HEART_BEAT: (None, HeartbeatBody),
    R.UNREGISTER_CLIENT: (clients.UnregisterClientHeader, None),
    R.GET_CONSUMER_LIST_BY_GROUP: (clients.GroupHeader, None),
    R.LOCK_BATCH_MQ: (None, SessionLockBody),
    R.UNLOCK_BATCH_MQ: (None, LockBatchBody),
    R.SYNC: (None, SyncBody),
    R.SEND_RECORDS: (send.SendRecordsHeader, None),
    R.TOPIC_OFFSETS: (offsets.TopicHeader, None),
    R.GROUP_STATUS: (clients.GroupStatusHeader, None),
    R.NOTIFY_CONSUMER_IDS_CHANGED: (clients.NotifyHeader, None),
    R.QUEUE_FREE: (None, SyncBody),
    R.LAYOUTS_CHANGED: (None, SyncBody),
    12_345: (offsets.QueueHeader, None),
    -1: (None, None),
}
"""Requests that a broker supports, and others."""
NAMESERVER_CODES: dict[int, tuple[type | None, type | None]] = {
    R.REGISTER_BROKER: (routes.RegisterBrokerHeader, RegisterBody),
    R.UNREGISTER_BROKER: (routes.UnregisterBrokerHeader, None),
    R.GET_ROUTEINFO_BY_TOPIC: (offsets.TopicHeader, None),
    R.GET_BROKER_CLUSTER_INFO: (None, None),
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: (None, None),
    R.HEART_BEAT: (None, HeartbeatBody),
    R.SEND_MESSAGE: (send.SendMessageHeader, None),
    12_345: (offsets.QueueHeader, None),
}

EXTREME: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    0.5,
    float("nan"),
    float("inf"),
    "",
    " ",
    "a\0b",
    "../../etc",
    "ü€😀",
    "x" * 128,
    "y" * 256,
    "z" * 40_000,
    "%s%n{}[red]",
    "LOCKSTEP_SYS_STATE",
    "rmq_sys_x",
    "TAGS\x01a\x02WAIT\x01b\x02__LS_SEQ\x01c",
    "a\ud800",
    b"",
    b"\xff\0" * 20,
)
NAMES = ("fuzz", "fuzz", "fuzz-2", "fuzz-group", "broker-a", "broker-x", "127.0.0.1:1", "0" * 32, "ab" * 16, "*", "a || b", "TAG", "SQL92")


class Hostile:
    """A source of random requests. Plausible values are drawn from the strings `allowed`; no other existing name occurs."""

    def __init__(self, seed: int, names: tuple[str, ...] = NAMES) -> None:
        self.random = Random(seed)
        self.names = names

    def request(self, header: type | None, body: type | None) -> tuple[dict[str, Any], bytes]:
        """Return (fields, body)."""
        fields = {} if header is None else self._header(header)
        if self.random.random() < 0.1:
            fields[self.random.choice(("", "unknown", "queueId", "x" * 200))] = self._extreme()
        return _packable(fields), self._body(body)

    def _header(self, cls: type) -> dict[str, Any]:
        """Return a mostly plausible header in which one or two fields are invalid."""
        plain = self._dataclass(cls, hostile=0.12)
        return {name: value for name, value in plain.items() if not isinstance(value, list | dict)}

    def _body(self, cls: type | None) -> bytes:
        draw = self.random.random()
        if cls is None or draw < 0.1:
            return self._bytes()
        data = bytearray(pack_plain(_packable(self._dataclass(cls, hostile=0.03 if draw < 0.7 else 0.25))))
        if draw > 0.9 and data:
            for _ in range(self.random.randint(1, 4)):
                data[self.random.randrange(len(data))] = self.random.randrange(256)
        return bytes(data)

    def _bytes(self) -> bytes:
        draw = self.random.random()
        if draw < 0.2:
            return b""
        if draw < 0.5:
            return self.random.randbytes(self.random.choice((1, 20, 300)))
        records = [encode_record(b"fuzz", 0, self.random.randbytes(20), b"TAGS\x01a", born_ms=1) for _ in range(self.random.randint(1, 3))]
        data = bytearray(b"".join(records))
        if draw < 0.8:
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        return bytes(data)

    def _extreme(self) -> Any:
        return self.random.choice(EXTREME)

    def _dataclass(self, cls: Any, hostile: float) -> dict[str, Any]:
        hints = typing.get_type_hints(cls)
        plain = {}
        for field in dataclasses.fields(cls):
            draw = self.random.random()
            if draw < hostile / 4:
                continue
            name = field.metadata.get("wire") or camel(field.name)
            plain[name] = self._extreme() if draw < hostile else self._value(hints[field.name], hostile)
        return plain

    def _value(self, kind: Any, hostile: float) -> Any:
        """Return a plausible value of a field's type."""
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin in (typing.Union, types.UnionType):
            inner = [arg for arg in args if arg is not type(None)]
            return None if self.random.random() < 0.4 else self._value(inner[0], hostile)
        if origin is tuple:
            return [self._value(args[0], hostile) for _ in range(self.random.choice((0, 1, 1, 2, 5)))]
        if origin is dict:
            names = [*self.random.sample(self.names, 2), "internal"]
            return {name: self._value(args[1], hostile) for name in names}
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return self.random.choice([member.value for member in kind])
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind, hostile)
        if kind is bool:
            return self.random.random() < 0.5
        if kind is int:
            return self.random.choice((0, 0, 0, 1, 2, 3, 4, 7, 32, 100, 1 << 20))
        return self.random.choice(self.names)


def _packable(value: Any) -> Any:
    """Return the value without lone surrogates, which msgpack can't encode."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_packable(item) for item in value]
    if isinstance(value, dict):
        return {_packable(name): _packable(item) for name, item in value.items()}
    return value

"""A client of RocketMQ that the broker sends requests to, and the requests of its tools."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.java_wire import JSON, JavaWire, Reply


@dataclass
class Asked:
    """A request of the broker."""

    code: int
    flag: int
    opaque: int
    fields: dict[str, str]
    body: bytes


class Peer:
    """A client on a connection of its own, with a language and a version."""

    def __init__(self, wire: JavaWire, client_id: str, *, language: str = "JAVA", version: int = 409) -> None:
        self.wire = wire
        self.client_id = client_id
        self.language = language
        self.version = version

    async def beat(self, group: str | None = None, *, producers: tuple[str, ...] = (), **changes: object) -> None:
        """Send HEART_BEAT as a member of a group that subscribes to `orders`, or as a producer."""
        subscription = {"expressionType": "TAG", "subString": "TagA || TagB", "subVersion": 17, "topic": "orders"}
        consumer = {
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [subscription],
            **changes,
        }
        named = [{"groupName": name} for name in producers]
        body = {"clientID": self.client_id, "consumerDataSet": [consumer] if group else [], "producerDataSet": named}
        self._write(34, 0, json.dumps(body).encode())
        flag, _, reply = await self.wire.read()
        while not flag & 1:
            flag, _, reply = await self.wire.read()
        assert (reply.code, reply.remark) == (0, None)

    async def next_request(self, code: int) -> Asked:
        """Return the broker's next request of a code; skip others, which are notices."""
        while True:
            flag, opaque, request = await self.wire.read()
            if request.code == code and not flag & 1:
                return Asked(code, flag, opaque, request.fields, request.body)

    def respond(self, request: Asked, body: bytes = b"", *, code: int = 0, remark: str | None = None) -> None:
        self._write(code, 1, body, remark=remark, opaque=request.opaque)

    def _write(self, code: int, flag: int, body: bytes, *, remark: str | None = None, opaque: int = 1) -> None:
        if self.wire.kind == JSON:
            plain = {"code": code, "flag": flag, "language": self.language, "opaque": opaque, "version": self.version, "remark": remark}
            header = json.dumps(plain).encode()
        else:
            text = (remark or "").encode()
            language = {"JAVA": 0, "CPP": 1, "GO": 9}[self.language]
            header = struct.pack(">hbhiii", code, language, self.version, opaque, flag, len(text)) + text + struct.pack(">i", 0)
        self.wire.writer.write(struct.pack(">iI", 4 + len(header) + len(body), self.wire.kind << 24 | len(header)) + header + body)

    @property
    def address(self) -> str:
        """Return the address of this end."""
        host, port = self.wire.writer.get_extra_info("sockname")
        return f"{host}:{port}"


async def refused(wire: JavaWire, code: int, fields: Mapping[str, Any], said: str) -> int:
    """Return the code with which a request is refused, in these words."""
    reply = await wire.call(code, fields)
    assert reply.code != 0, reply
    assert said in (reply.remark or ""), reply.remark
    return reply.code


async def granted(wire: JavaWire, code: int, fields: Mapping[str, Any]) -> Reply:
    """Return the response to a request that must not be refused."""
    reply = await wire.call(code, fields)
    assert (reply.code, reply.remark) == (0, None)
    return reply

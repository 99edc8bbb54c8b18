"""A client of RocketMQ's wire formats, written by hand: it shares no code with the product."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

JSON, BINARY = 0, 1
LANGUAGES = {"JAVA": 0, "CPP": 1, "GO": 9, 3: 3}
"""Numbers of languages. pyrocketmq sends its number in JSON, too."""


@dataclass
class Reply:
    code: int
    fields: dict[str, str]
    body: bytes
    remark: str | None
    raw: bytes
    """The header."""


@dataclass
class JavaWire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    kind: int
    version: int = 409
    opaque: int = 0
    language: str | int = "JAVA"
    pushed: list[tuple[int, int, Reply]] = field(default_factory=list)
    """Requests that the server has sent, as `read` returns them."""

    async def call(self, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"", *, version: int | None = None) -> Reply:
        """Send a request, and return its response."""
        self.opaque += 1
        header = self._header(code, fields or {}, self.version if version is None else version)
        self.writer.write(frame_of(self.kind, header, body))
        while True:
            flag, opaque, reply = await self.read()
            if flag & 1 and opaque == self.opaque:
                return reply
            self.pushed.append((flag, opaque, reply))

    async def next_request(self) -> tuple[int, int, Reply]:
        """Return the server's next request."""
        return self.pushed.pop(0) if self.pushed else await self.read()

    def respond(self, opaque: int, code: int = 0, body: bytes = b"", remark: str | None = None) -> None:
        """Respond to a request of the server."""
        if self.kind == JSON:
            plain = {"code": code, "flag": 1, "language": self.language, "opaque": opaque, "version": self.version, "remark": remark}
            header = json.dumps(plain).encode()
        else:
            text = (remark or "").encode()
            header = struct.pack(">hbhiii", code, LANGUAGES[self.language], self.version, opaque, 1, len(text)) + text + bytes(4)
        self.writer.write(frame_of(self.kind, header, body))

    def _header(self, code: int, fields: Mapping[str, Any], version: int) -> bytes:
        return header_of(self.kind, self.opaque, code, fields, version, self.language)

    async def read(self) -> tuple[int, int, Reply]:
        """Return the next frame: its flag, its opaque, and the rest."""
        length, word = struct.unpack(">iI", await self.reader.readexactly(8))
        data = await self.reader.readexactly(length - 4)
        header, body = data[: word & 0xFFFFFF], data[word & 0xFFFFFF :]
        assert word >> 24 == self.kind, "a response has the header type of its request"
        if self.kind == JSON:
            plain = json.loads(header)
            assert None not in plain.values()
            return plain["flag"], plain["opaque"], Reply(plain["code"], plain.get("extFields", {}), body, plain.get("remark"), header)
        code, _, _, opaque, flag, size = struct.unpack(">hbhiii", header[:17])
        remark, at, found = header[17 : 17 + size].decode(), 21 + size, {}
        while at < len(header):
            (length,) = struct.unpack_from(">h", header, at)
            name, at = header[at + 2 : at + 2 + length].decode(), at + 2 + length
            (length,) = struct.unpack_from(">i", header, at)
            found[name], at = header[at + 4 : at + 4 + length].decode(), at + 4 + length
        return flag, opaque, Reply(code, found, body, remark or None, header)


def frame(kind: int, opaque: int, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"", version: int = 409) -> bytes:
    """Return a request."""
    return frame_of(kind, header_of(kind, opaque, code, fields or {}, version), body)


def header_of(kind: int, opaque: int, code: int, fields: Mapping[str, Any], version: int, language: str | int = "JAVA") -> bytes:
    if kind == JSON:
        plain = {"code": code, "flag": 0, "language": language, "opaque": opaque, "version": version}
        return json.dumps({**plain, **({"extFields": fields} if fields else {})}).encode()
    texts = [(name.encode(), str(value).encode()) for name, value in fields.items()]
    entries = b"".join(struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value for name, value in texts)
    return struct.pack(">hbhiiii", code, LANGUAGES[language], version, opaque, 0, 0, len(entries)) + entries


def frame_of(kind: int, header: bytes, body: bytes) -> bytes:
    return struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


async def dialled(address: str, kind: int) -> JavaWire:
    host, port = address.rsplit(":", 1)
    return JavaWire(*await asyncio.open_connection(host, int(port)), kind)


@asynccontextmanager
async def java_wire(address: str, kind: int) -> AsyncIterator[JavaWire]:
    wire = await dialled(address, kind)
    try:
        yield wire
    finally:
        wire.writer.close()


def batch(*messages: tuple[bytes, str]) -> bytes:
    """Return the body of SEND_BATCH_MESSAGE: (body, properties) of each message."""
    found = []
    for body, properties in messages:
        text = properties.encode()
        found += [struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 0, len(body)), body, struct.pack(">h", len(text)), text]
    return b"".join(found)


def records(data: bytes) -> list[tuple[int, bytes, dict[str, str]]]:
    """Return (queue offset, body, properties) of stored messages."""
    found = []
    for each in split_records(data):
        (queue_offset,) = struct.unpack_from(">q", each, 20)
        (length,) = struct.unpack_from(">i", each, 84)
        body, at = each[88 : 88 + length], 88 + length
        pairs = each[at + 3 + each[at] :].decode().split("\x02")
        found.append((queue_offset, body, dict(pair.split("\x01") for pair in pairs if pair)))
    return found


def split_records(data: bytes) -> list[bytes]:
    """Return stored messages one by one."""
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        found.append(data[:size])
        data = data[size:]
    return found

"""The content of one frame. RocketMQ: RemotingCommand."""

from dataclasses import dataclass, field
from typing import Any

from lockstep.protocol.codes import ResponseCode

JSON = 0
"""The serialize type of a JSON header (codec/java_json.py)."""
BINARY = 1
"""The serialize type of RocketMQ's binary header (codec/java_binary.py)."""
MSGPACK = 0x4D
"""The serialize type of the native header."""
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2
NATIVE_VERSION = 409
"""RocketMQ's version ordinal that native frames carry (4.9.8)."""
VERSION_5_0 = 413
"""RocketMQ's version ordinal of 5.0.0."""
REMARK_LENGTH_MAX = 4_096
"""The maximum number of characters of a response's remark. An error may quote the peer's text, even twice, which could exceed the size
of a header."""
RETRY_AFTER_FIELD = "retryAfterMs"
"""The field of a SYSTEM_BUSY response with the time, in ms, after which to retry."""
ADDRESS_FIELD, TERM_FIELD = "address", "term"
"""Fields of refusals that say who is responsible instead: NOT_LEADER names the leader's address (host:port of its listener `internal`) and
term if they are known, BROKER_NAME_TAKEN the term of a later start of the same log."""

HIDDEN_FIELDS = frozenset({"Signature", "SecurityToken"})
"""Fields of RocketMQ's signed requests."""


@dataclass(slots=True, repr=False)
class Command:
    """A request or a response. `opaque` pairs them on one connection; `fields` is the header's map of typed values."""

    code: int
    opaque: int = 0
    flag: int = 0
    version: int = NATIVE_VERSION
    remark: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    body: bytes | bytearray | memoryview = b""
    codec: int = MSGPACK
    """The serialize type byte. A response uses that of its request."""
    header_bytes: int = field(default=0, compare=False, repr=False)
    """The encoded length of the header of a received command."""
    language: str | int | None = None
    """The client's language by RocketMQ's name, or its number if that is unknown. None for a native command."""

    def __repr__(self) -> str:
        """Show neither secrets nor bodies: the fields that no log may have are hidden, and a body may be a password's proof."""
        fields = {name: "…" if name in HIDDEN_FIELDS else value for name, value in self.fields.items()}
        parts = self.code, self.opaque, self.flag, self.version, self.remark, fields
        return f"Command({', '.join(map(repr, parts))}, {len(self.body)} bytes, {self.codec})"

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY_FLAG)

    def reply(
        self,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        fields: dict[str, Any] | None = None,
        body: bytes | bytearray | memoryview = b"",
    ) -> "Command":
        """Return the response to this request, with its opaque and codec. The remark is cut to REMARK_LENGTH_MAX."""
        return response(self.opaque, self.codec, code, remark, fields, body)


def response(
    opaque: int, codec: int, code: int, remark: str | None, fields: dict[str, Any] | None, body: bytes | bytearray | memoryview
) -> Command:
    """Return the response to the request with this opaque and codec. The remark is cut to REMARK_LENGTH_MAX."""
    if remark is not None and len(remark) > REMARK_LENGTH_MAX:
        remark = remark[: REMARK_LENGTH_MAX - 1] + "…"
    return Command(code, opaque, RESPONSE_FLAG, NATIVE_VERSION, remark, fields or {}, body, codec)

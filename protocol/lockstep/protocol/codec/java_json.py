"""Header type 0 of RocketMQ's clients: JSON. RocketMQ: RemotingSerializable, RemotingCommand.

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":0,"serializeTypeCurrentRPC":"JSON","version":409}

`serializeTypeCurrentRPC` is written always, because the Rust client requires it, and never read. Members may be missing, null, or numbers
written as strings; values of extFields may be numbers or booleans (C++, Node).
"""

from typing import Any

from lockstep.protocol.codec.java import FIELDS_MAX, OWN_LANGUAGE, JavaCodec, read_json, write_json
from lockstep.protocol.command import JSON, Command
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.fields import text_of

_SCALARS = frozenset({str, int, bool, float})
_INT32 = 0x80000000


class JsonCodec(JavaCodec):
    """Frames with a JSON header."""

    __slots__ = ()

    def encode(self, command: Command) -> bytes:
        plain: dict[str, Any] = {"code": command.code}
        if command.fields:
            plain["extFields"] = {name: text_of(value) for name, value in command.fields.items() if value is not None}
        plain |= {"flag": command.flag, "language": command.language or OWN_LANGUAGE, "opaque": command.opaque}
        if command.remark is not None:
            plain["remark"] = command.remark
        plain |= {"serializeTypeCurrentRPC": "JSON", "version": command.version}
        return write_json(plain)

    def decode(self, header: bytes | bytearray | memoryview, body: bytes) -> Command:
        found = read_json(header, what="header")
        if type(found) is not dict:
            raise RemoteProtocolError("header is not a JSON object")
        fields, remark, language = found.get("extFields"), found.get("remark"), found.get("language")
        if fields is None:
            fields = {}
        elif type(fields) is not dict or len(fields) > FIELDS_MAX:
            raise RemoteProtocolError(f"header's extFields are not an object of at most {FIELDS_MAX} members")
        if None in fields.values():
            fields = {name: value for name, value in fields.items() if value is not None}
        if not _SCALARS.issuperset(map(type, fields.values())):
            raise RemoteProtocolError("header's extFields have a value that is an object or a list")
        if remark is not None and type(remark) is not str:
            raise RemoteProtocolError(f"header's remark is a {type(remark).__name__}: expected a string")
        if type(language) not in (str, int, type(None)):
            raise RemoteProtocolError(f"header's language is a {type(language).__name__}: expected a name or a number")
        code, opaque, flag, version = (_int32(found, name) for name in ("code", "opaque", "flag", "version"))
        return Command(code, opaque, flag, version, remark, fields, body, JSON, language=language)


def _int32(found: dict[str, Any], name: str) -> int:
    value = found.get(name)
    if type(value) is str and len(value) <= 11:
        try:
            value = int(value)
        except ValueError:
            pass
    if value is None:
        return 0
    if type(value) is not int or not -_INT32 <= value < _INT32:
        raise RemoteProtocolError(f"header's {name} is not an int32")
    return value

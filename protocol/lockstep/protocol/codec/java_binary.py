"""Header type 1 of RocketMQ's clients. RocketMQ: RocketMQSerializable.

    2  code         int16
    1  language     int8
    2  version      int16
    4  opaque       int32
    4  flag         int32
    4  remark       length, then UTF-8; 0: none
    4  fields       length in bytes, then repeated: int16 length, name, int32 length, value

A name may occur twice: the last value counts. An empty value is none, as in Java.
"""

from struct import Struct, error

from lockstep.protocol.codec.java import FIELDS_MAX, LANGUAGES, OWN_LANGUAGE, JavaCodec, language_code
from lockstep.protocol.command import BINARY, Command
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.fields import text_of

_FIXED = Struct(">hbhiii")
_INT32 = Struct(">i")
_INT16 = Struct(">h")
_CODE_MAX = 0x7FFF


class BinaryCodec(JavaCodec):
    """Frames with RocketMQ's binary header."""

    __slots__ = ()

    def encode(self, command: Command) -> bytes:
        if command.code > _CODE_MAX:
            raise LocalProtocolError(f"code {command.code} does not fit into a binary header: at most {_CODE_MAX}")
        entries = []
        for name, value in command.fields.items():
            if value is not None:
                key, text = name.encode(), _utf8(text_of(value))
                entries += [_INT16.pack(len(key)), key, _INT32.pack(len(text)), text]
        fields, remark = b"".join(entries), _utf8(command.remark or "")
        language = language_code(command.language or OWN_LANGUAGE)
        fixed = _FIXED.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
        return b"".join((fixed, remark, _INT32.pack(len(fields)), fields))

    def decode(self, header: bytes | bytearray | memoryview, body: bytes) -> Command:
        data = bytes(header)
        try:
            code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(data)
            remark, at = _text(data, _FIXED.size, remark_bytes)
            (field_bytes,) = _INT32.unpack_from(data, at)
            fields = _fields(data, at + 4, field_bytes)
        except (error, UnicodeDecodeError) as reason:
            raise RemoteProtocolError(f"binary header can't be read: {str(reason)[:60]}") from None
        name = LANGUAGES[language] if 0 <= language < len(LANGUAGES) else language
        return Command(code, opaque, flag, version, remark or None, fields, body, BINARY, language=name)


def _fields(data: bytes, at: int, size: int) -> dict[str, object]:
    end = at + size
    if size < 0 or end > len(data):
        raise RemoteProtocolError(f"binary header: fields of {size} bytes in a header of {len(data)}")
    found: dict[str, object] = {}
    count = 0
    while at < end:
        (length,) = _INT16.unpack_from(data, at)
        name, at = _text(data, at + 2, length)
        (length,) = _INT32.unpack_from(data, at)
        value, at = _text(data, at + 4, length)
        if at > end:
            raise RemoteProtocolError("binary header: a field ends behind the fields")
        count += 1
        if count > FIELDS_MAX:
            raise RemoteProtocolError(f"binary header has more than {FIELDS_MAX} fields")
        if name and value:
            found[name] = value
    return found


def _text(data: bytes, at: int, length: int) -> tuple[str, int]:
    end = at + length
    if length < 0 or end > len(data):
        raise RemoteProtocolError(f"binary header: a text of {length} bytes at {at} in a header of {len(data)}")
    return str(data[at:end], "utf-8"), end


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as reason:
        raise LocalProtocolError(f"a header can't be encoded: {reason}") from None

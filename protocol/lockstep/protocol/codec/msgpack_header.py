"""The native header: a msgpack array.

    [code, flag, opaque, version, remark, fields]
     int32 int32 int32   int32    str|nil map of str → nil, bool, int, float, str, bin

A longer array is accepted and its tail ignored, since later versions append. Values are scalars, so nothing is nested deeper than the map.
"""

from lockstep.protocol.codec.plain import pack_plain, unpack_plain
from lockstep.protocol.command import MSGPACK, Command
from lockstep.protocol.errors import RemoteProtocolError

FIELDS_MAX = 128
"""The maximum number of header fields of a frame. RocketMQ's longest header has 24."""
ARRAY_MAX = 32
"""The 6 elements of the header, with room for later versions."""

_SCALARS = frozenset({str, int, bool, bytes, float, type(None)})
_NAMES = frozenset({str})
_INT32 = 0x80000000


class MsgpackHeader:
    """Typed counterpart of RocketMQ's RocketMQSerializable."""

    __slots__ = ()

    def encode(self, command: Command) -> bytes:
        return pack_plain((command.code, command.flag, command.opaque, command.version, command.remark, command.fields))

    def decode(self, header: bytes | bytearray | memoryview, body: bytes) -> Command:
        array = unpack_plain(header, what="header", array_max=ARRAY_MAX, map_max=FIELDS_MAX)
        if type(array) is not list or len(array) < 6:
            raise RemoteProtocolError("header is not an array of 6: expected [code, flag, opaque, version, remark, fields]")
        code, flag, opaque, version, remark, fields = array if len(array) == 6 else array[:6]
        for value in (code, flag, opaque, version):
            if type(value) is not int or not -_INT32 <= value < _INT32:
                raise RemoteProtocolError("header's code, flag, opaque or version is not an int32")
        if remark is not None and type(remark) is not str:
            raise RemoteProtocolError(f"header's remark is a {type(remark).__name__}: expected str or nil")
        if type(fields) is not dict or not _SCALARS.issuperset(map(type, fields.values())) or not _NAMES.issuperset(map(type, fields)):
            raise RemoteProtocolError("header's fields are not a map of names to scalar values")
        return Command(code, opaque, flag, version, remark, fields, body, MSGPACK)

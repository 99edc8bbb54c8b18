"""Append a frame: check, patch and index its records in one pass.

A frame is `count` records of one queue in RocketMQ's stored layout (v1, IPv4), the broker's fields zero:

    at  bytes  field                      here
     0   4     size of the whole record   checked
     4   4     magic 0xDAA320A7           checked
     8   4     CRC-32 of the body         checked
    12   4     queue id                   checked
    16   4     flag                       the user's
    20   8     queue offset               zero, set
    28   8     physical offset            zero, set
    36   4     system flag                transaction, IPv6 and inner-batch bits refused
    40   8     born time                  the sender's
    48   8     born host                  zero, set
    56   8     store time                 zero, set
    64   8     store host                 zero, set
    72   4     reconsume times            zero
    76   8     prepared offset            zero
    84   4+n   body                       1 byte to 4 MiB
         1+t   topic                      checked
         2+p   properties                 UTF-8; names of the broker refused; room reserved for those of a copy
"""

from struct import Struct
from struct import error as StructError

from lockstep.broker.store.log.waiting_records import Room, seal_waiting
from lockstep.protocol.crc import crc32
from lockstep.protocol.errors import MessageIllegalError, RemoteProtocolError
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.messages.properties import SENT_PROPERTIES_BYTES_MAX, SEQUENCE_DIGITS, TIMER_DELAY_MS, TIMER_DELIVER_MS, sent_bytes
from lockstep.protocol.messages.record import BODY_AT, MAGIC, PROPERTIES_BYTES_MAX
from lockstep.protocol.messages.rooms import TIMER_MS_MAX
from lockstep.protocol.messages.sequence import COUNT_AT, COUNT_DIGITS, STAMP_HEAD, find_sequence
from lockstep.protocol.native import kernels
from lockstep.protocol.tags import tags_code

HEAD = Struct(">iIiI4x16si8x24s12sI")
PLACE = Struct(">qq")
"""Queue offset and physical offset, at byte 20."""
STAMP = Struct(">8sq8s")
"""Born host, store time and store host, at byte 48."""
ENTRY = Struct(">qiq")
"""Consume-queue entry: physical offset, size, tag hash."""
ENTRY_BYTES = 20
POSITION = Struct(">q")
"""The physical offset only."""

SYS_FLAGS_REFUSED = 0xFC
"""Transaction 0x0C, IPv6 hosts 0x30, inner batch 0xC0."""
TAGS = b"TAGS\x01"
SEPARATOR = b"\x02"
NAME_END = b"\x01"
TIMERS = (TIMER_DELAY_MS.encode() + NAME_END, TIMER_DELIVER_MS.encode() + NAME_END)
TIMER_DIGITS_MAX = len(str(TIMER_MS_MAX))
SEQUENCE_NAME = b"\x02__LS_"
SEQUENCE_FIRST = b"\x02" + STAMP_HEAD
SEQUENCE_COUNT_AT = len(STAMP_HEAD) + COUNT_AT
SEQUENCE_END = len(STAMP_HEAD) + SEQUENCE_DIGITS
REFUSED_NAMES = (
    b"\x02DELAY\x01",
    b"\x02TIMER_",
    b"\x02TRAN_MSG\x01",
    b"\x02PGROUP\x01",
    b"\x02RETRY_TOPIC\x01",
    b"\x02REAL_TOPIC\x01",
    b"\x02REAL_QID\x01",
)

_ZERO_12 = bytes(12)
_ZERO_16 = bytes(16)
_ZERO_24 = bytes(24)
_TAG_COUNT_MAX = 4096
"""Number of distinct tags that are cached with their hash. Above it the cache is emptied."""
_tag_codes: dict[bytes, int] = {}


class TopicField:
    """A topic as a record stores it: length byte and name, and the struct that reads it together with the properties' length."""

    __slots__ = ("field", "size", "struct")

    def __init__(self, topic: str) -> None:
        name = topic.encode()
        if not 0 < len(name) <= 127:
            raise MessageIllegalError(f"topic of {len(name)} bytes, expected 1 to 127")
        self.field = bytes([len(name)]) + name
        self.size = len(self.field)
        self.struct = Struct(f">{self.size}sH")


def tag_code(properties: bytes, at: int) -> int:
    """Return Java's hash of the tag whose `TAGS` was found at `at`, or 0 if that is the end of another name."""
    while at > 0 and properties[at - 1] != 2:
        at = properties.find(TAGS, at + 1)
    if at < 0:
        return 0
    end = properties.find(b"\x02", at)
    tag = properties[at + 5 : end] if end >= 0 else properties[at + 5 :]
    code = _tag_codes.get(tag)
    if code is None:
        if len(_tag_codes) >= _TAG_COUNT_MAX:
            _tag_codes.clear()
        code = _tag_codes[tag] = tags_code(tag.decode("utf-8", "replace"))
    return code


def take_frame(
    tail: bytearray,
    frame: bytes,
    count: int,
    topic: TopicField,
    queue_id: int,
    *,
    queue_offset: int,
    position: int,
    stamp: bytes,
    size_max: int,
    trusted: bool = False,
    sequenced: bool = False,
    room: Room | None = None,
) -> bytearray:
    """Append the frame to `tail` with the broker's fields set. Return its consume-queue entries.

    `position` is the log offset of the end of `tail`. `sequenced`: the caller has checked the frame's `__LS_SEQ`. `room`: the frame goes to
    a waiting room, and its records get their checksums. Raises MessageIllegalError, which names the record and the rule. After any error
    `tail` is unchanged.
    """
    home, due_max = (b"", None) if room is None else (room.home, room.due_max(STAMP.unpack(stamp)[1]))
    if kernels is not None:
        place = queue_id, queue_offset, position
        packed = kernels.take_frame(tail, frame, count, topic.field, *place, stamp, size_max, trusted, sequenced, home, due_max)
        if packed is not None:
            return packed
    at = len(tail)
    tail += frame
    end = len(frame)
    entries = bytearray(ENTRY_BYTES * count)
    try:
        properties = _patch(tail, at, frame, count, topic, queue_id, queue_offset, position, stamp, size_max, trusted, entries)
        if room is not None:
            properties = [_sent(number, text, home, timed=due_max is not None) for number, text in enumerate(properties)]
        check_properties(properties, trusted=trusted, sequenced=sequenced)
        if room is not None:
            seal_waiting(tail, at, entries, topic.field[1:].decode(), queue_id, STAMP.unpack(stamp)[1], due_max)
    except (StructError, IndexError) as error:
        del tail[at:]
        raise MessageIllegalError(f"frame of {end} bytes does not hold the {count} whole records that it claims") from error
    except Exception:  # re-raised
        del tail[at:]
        raise
    return entries


def _patch(
    tail: bytearray,
    at: int,
    frame: bytes,
    count: int,
    topic: TopicField,
    queue_id: int,
    queue_offset: int,
    position: int,
    stamp: bytes,
    size_max: int,
    trusted: bool,
    entries: bytearray,
) -> list[bytes]:
    """Patch the records (the hot loop). Return every record's properties."""
    unpack, place, pack_entry = HEAD.unpack_from, PLACE.pack_into, ENTRY.pack_into
    unpack_topic, topic_field, behind_topic, codes = topic.struct.unpack_from, topic.field, topic.size + 2, _tag_codes
    end = len(frame)
    # Slices of a view do not copy large bodies, slices of bytes are cheaper for small ones.
    source: bytes | memoryview = memoryview(frame) if end > 4096 * count else frame
    first, last, start, entry = queue_offset, queue_offset + count, 0, 0
    size_min = BODY_AT + behind_topic
    properties: list[bytes] = []
    add = properties.append
    while start < end:
        size, magic, crc, queue, zero16, sys_flag, zero24, zero12, body_bytes = unpack(frame, start)
        body = start + BODY_AT
        behind = body + body_bytes
        stop = start + size
        if (
            queue_offset == last
            or not size_min <= size <= size_max
            or stop > end
            or not 0 < body_bytes <= BODY_BYTES_MAX
            or behind + behind_topic > stop
            or magic != MAGIC
            or queue != queue_id
            or zero16 != _ZERO_16
            or sys_flag & SYS_FLAGS_REFUSED
            or zero24 != _ZERO_24
            or (zero12 != _ZERO_12 and not trusted)
            or crc32(source[body:behind]) & 0x7FFFFFFF != crc
        ):
            raise MessageIllegalError(_reason(frame, start, queue_offset - first, count, topic, queue_id, size_max))
        name, property_bytes = unpack_topic(frame, behind)
        behind += behind_topic
        if (
            name != topic_field
            or behind + property_bytes != stop
            or (property_bytes > SENT_PROPERTIES_BYTES_MAX and _too_long(frame[behind:stop], trusted))
        ):
            raise MessageIllegalError(_reason(frame, start, queue_offset - first, count, topic, queue_id, size_max))
        text = frame[behind:stop]
        add(text)
        tag = 0
        found = text.find(TAGS)
        if found >= 0:
            close = text.find(SEPARATOR, found)
            known = codes.get(text[found + 5 : close] if close >= 0 else text[found + 5 :])
            tag = known if known is not None and (not found or text[found - 1] == 2) else tag_code(text, found)
        physical = position + start
        here = at + start
        place(tail, here + 20, queue_offset, physical)
        tail[here + 48 : here + 72] = stamp
        pack_entry(entries, entry, physical, size, tag)
        entry += 20
        queue_offset += 1
        start = stop
    if queue_offset != last:
        raise MessageIllegalError(f"frame holds {queue_offset - first} records and claims {count}")
    return properties


def _sent(number: int, properties: bytes, home: bytes, *, timed: bool) -> bytes:
    """Return the properties of record `number` of a frame for a waiting room without those of the room, which only such a record has."""
    at = SEQUENCE_END + 1 if number == 0 and properties.startswith(STAMP_HEAD) else 0
    if not properties.startswith(home, at):
        raise MessageIllegalError(f"record {number}: its properties do not begin with {home.decode('utf-8', 'replace')!r}, its home")
    if not timed:
        return properties[:at] + properties[at + len(home) :]
    timer, _, rest = properties[at + len(home) :].partition(SEPARATOR)
    if not timer.startswith(TIMERS):
        raise MessageIllegalError(f"record {number}: {TIMER_DELAY_MS} or {TIMER_DELIVER_MS} does not follow its home")
    digits = timer.partition(NAME_END)[2]
    if not digits.isdigit() or len(digits) > TIMER_DIGITS_MAX or not int(digits):
        raise MessageIllegalError(
            f"record {number}: {timer.decode('utf-8', 'replace')!r}: expected a number of ms from 1 to {TIMER_MS_MAX}"
        )
    return properties[:at] + rest


def check_properties(properties: list[bytes], *, trusted: bool = False, sequenced: bool = False) -> None:
    """Refuse properties that are not UTF-8, names not allowed in a batch, and `__LS_` except first in a sequenced frame.

    Recovery trusts `__LS_SEQ`: an unchecked one with a wrong CRC would look like a torn frame, which is the end of the log.
    """
    joined = b"\x02" + b"\x02".join(properties)
    if b"\0" in joined:
        # No CRC covers the properties: recovery recognises a sector that never reached the disk by its zeros.
        number = next(i for i, text in enumerate(properties) if b"\0" in text)
        raise MessageIllegalError(f"record {number}: a byte 0 in the properties")
    if not joined.isascii():
        for number, text in enumerate(properties):
            try:
                text.decode()
            except UnicodeDecodeError as error:
                raise MessageIllegalError(f"record {number}: properties are not UTF-8 ({error.reason} at byte {error.start})") from error
    if trusted:
        return
    for name in REFUSED_NAMES:
        if name in joined:
            number = next(i for i, text in enumerate(properties) if name in b"\x02" + text)
            raise MessageIllegalError(f"record {number}: property {_name(name)} has no place in a batch")
    marks = joined.count(SEQUENCE_NAME)
    if not marks:
        return
    if not sequenced:
        number = next(i for i, text in enumerate(properties) if SEQUENCE_NAME in b"\x02" + text)
        raise MessageIllegalError(f"record {number}: property names beginning with __LS_ are lockstep's own, choose another name")
    if marks > 1 or not joined.startswith(SEQUENCE_FIRST):
        raise MessageIllegalError(
            "property __LS_SEQ belongs first into the first record of an idempotent frame, other names with __LS_ nowhere"
        )
    # Recovery distinguishes a whole frame from a torn one by this count, so a wrong one must not get into the log.
    first = properties[0]
    counted = first[SEQUENCE_COUNT_AT : SEQUENCE_COUNT_AT + COUNT_DIGITS] == b"%06x" % len(properties)
    if counted and (len(first) == SEQUENCE_END or first[SEQUENCE_END : SEQUENCE_END + 1] == SEPARATOR):
        return  # the caller has checked the other digits
    try:
        sequence = find_sequence(first)
    except RemoteProtocolError as error:
        raise MessageIllegalError(f"record 0: {error}") from error
    raise MessageIllegalError(f"record 0: __LS_SEQ counts {sequence.count if sequence else 0} records, the frame has {len(properties)}")


def _too_long(properties: bytes, trusted: bool) -> bool:
    """Return whether the properties are too long. A copy made by the broker may use the room that is reserved for it."""
    return len(properties) > PROPERTIES_BYTES_MAX or (not trusted and sent_bytes(properties) > SENT_PROPERTIES_BYTES_MAX)


def _name(token: bytes) -> str:
    text = token[1:].decode()
    return text[:-1] if text.endswith("\x01") else text + "*"


def _reason(frame: bytes, start: int, number: int, count: int, topic: TopicField, queue_id: int, size_max: int) -> str:
    """Return why the record at `start` is refused: the first rule that it breaks."""
    end = len(frame)
    size, magic, crc, queue, zero16, sys_flag, zero24, zero12, body_bytes = HEAD.unpack_from(frame, start)
    size_min = BODY_AT + topic.size + 2
    behind = start + BODY_AT + body_bytes
    what = f"record {number}"
    if number == count:
        return f"frame holds more than the {count} records that it claims"
    if not size_min <= size <= size_max:
        return f"{what}: size {size}, expected {size_min} to {size_max}"
    if start + size > end:
        return f"{what}: size {size} runs over the frame's end by {start + size - end} bytes"
    if magic != MAGIC:
        return f"{what}: magic {magic:#010x}, expected {MAGIC:#010x}"
    if queue != queue_id:
        return f"{what}: queue id {queue}, the request names {queue_id}"
    if zero16 != _ZERO_16 or zero24 != _ZERO_24:
        return f"{what}: queue offset, physical offset, born host, store time and store host are the broker's, expected zero"
    if zero12 != _ZERO_12:
        return f"{what}: reconsume times and prepared transaction offset are the broker's, expected zero"
    if sys_flag & SYS_FLAGS_REFUSED:
        return f"{what}: system flag {sys_flag:#x} has transaction, IPv6 or inner-batch bits, which have no place in a batch"
    if not 0 < body_bytes <= BODY_BYTES_MAX:
        return f"{what}: body of {body_bytes} bytes, expected 1 to {BODY_BYTES_MAX} (4 MiB)"
    if behind + topic.size + 2 > start + size:
        return f"{what}: body of {body_bytes} bytes does not fit its size {size}"
    found = crc32(frame[start + BODY_AT : behind]) & 0x7FFFFFFF
    if found != crc:
        return f"{what}: body CRC {crc:#010x}, the body gives {found:#010x}"
    name, property_bytes = topic.struct.unpack_from(frame, behind)
    if name != topic.field:
        return f"{what}: topic is not {topic.field[1:].decode()}, which the request names"
    if behind + topic.size + 2 + property_bytes == start + size:
        counted = sent_bytes(frame[start + size - property_bytes : start + size])
        limit = f"limit {SENT_PROPERTIES_BYTES_MAX} without the properties that have reserved space"
        return f"{what}: properties of {counted} bytes, {limit} (put large values into the body)"
    return f"{what}: its fields make {behind + topic.size + 2 + property_bytes - start} bytes, its size is {size}"

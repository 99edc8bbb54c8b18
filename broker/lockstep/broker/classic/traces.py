"""Marks messages for the traces of RocketMQ's consumers. RocketMQ: AbstractSendMessageProcessor.buildMsgContext.

Java's consumers of 5.x trace only messages that have a property MSG_REGION. RocketMQ's broker stores it with every message. Here it is
added to the messages of a response, so that those are traced too that lockstep's clients have sent, or that were stored before the broker
took traces.
"""

from collections.abc import Sequence

from lockstep.protocol.messages.properties import encode_properties
from lockstep.protocol.messages.record import PROPERTIES_BYTES_MAX, UINT16, UINT32, record_bounds

REGION = "DefaultRegion"
_MARKS = encode_properties({"MSG_REGION": REGION, "TRACE_ON": "true"})


def with_trace_marks(parts: Sequence[bytes]) -> list[bytes]:
    """Return stored records with the properties MSG_REGION and TRACE_ON after their own; those without room for them as they are."""
    pieces: list[bytes] = []
    for data in parts:
        at = 0
        while at < len(data):
            _, properties_at, end = record_bounds(data, at)
            more = _MARKS if data[end - 1] == 2 or properties_at == end else b"\x02" + _MARKS
            size = end - properties_at + len(more)
            if size <= PROPERTIES_BYTES_MAX:
                pieces += (
                    UINT32.pack(end - at + len(more)),
                    data[at + UINT32.size : properties_at - UINT16.size],
                    UINT16.pack(size),
                    data[properties_at:end],
                    more,
                )
            else:
                pieces.append(data[at:end])
            at = end
    return [b"".join(pieces)]

"""What one connection, and one request, may use."""

from dataclasses import dataclass

from lockstep.protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX

REQUEST_BYTES_MAX = 64 * 1024
"""The body of a request, unless its handler declares another limit."""
REQUEST_HEADER_BYTES_MAX = 4 * 1024
"""The header of a request, unless its handler declares another limit: two names of 255 characters, an id, and what later versions add."""
LANE_BYTES_MAX = 64 * 1024 * 1024
"""Of all requests that wait in a lane: 16,384 with the longest usual header, or 32 LOCKs with the longest body."""
MEMBER_BYTES_MAX = 2 * 1024 * 1024
"""The body of a request that names what a member consumes: LOCK, UNLOCK, SYNC, RESET_OFFSETS. 16,384 queues of one member,
where group and topic have names of 20 characters."""
HEARTBEAT_BYTES_MAX = 1024 * 1024
"""The body of HEART_BEAT: 1,024 topics with names of 127 characters, and 4,096 tags of 200."""
LAYOUTS_BYTES_MAX = 4 * 1024 * 1024
"""The body of a request that carries layouts: 4,096 layouts of 8 entries, 4 MiB also where names have 40 characters."""
RECORDS_BYTES_MAX = FRAME_BYTES_MAX
"""The body of a request that carries messages: the frame's limit, which counts the header too."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """What one connection may use."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    turn_bytes_max: int = 256 * 1024
    """Bytes handled in one loop turn: what one read brings at most, so one connection delays the others by some milliseconds."""
    turn_frames_max: int = 256
    """Requests and answers handled in one loop turn: 256 KiB can be thousands of them."""
    join_bytes: int = 64 * 1024
    """Outgoing bytes that are no longer held back for the end of the loop turn: beyond this size joining saves nothing."""
    unsent_bytes_high: int = 2 * 1024 * 1024
    """Above it drain() waits and the dialled end stops reading: two pull answers of the usual 1 MiB."""
    unsent_bytes_low: int = 512 * 1024
    """At or below it both go on."""
    requests_max: int = 65_536
    """Outstanding requests: thirty times the producer's usual 2,000 in flight."""
    partial_frame_ms: int = 30_000
    """A frame that has begun must be complete within this time."""
    idle_ms: int = 120_000
    """The dialled end closes a connection on which nothing came and nothing was taken for so long: four missed heartbeats. 0: never.
    RocketMQ: serverChannelMaxIdleTimeSeconds."""
    linger_ms: int = 5_000
    """How long close() may wait for the peer to take what is still unsent."""
    late_ms: int = 100
    """A timer that fires later than this says that this process stood still: what has come meanwhile is read first."""


DEFAULT_LIMITS = EndpointLimits()

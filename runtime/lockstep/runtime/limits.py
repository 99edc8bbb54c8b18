"""The resources that one connection or request may use."""

from dataclasses import dataclass

from lockstep.protocol.frame import FRAME_BYTES_MAX, HEADER_BYTES_MAX

REQUEST_BYTES_MAX = 64 * 1024
"""The maximum body of a request, unless its handler declares another limit."""
REQUEST_HEADER_BYTES_MAX = 4 * 1024
"""The maximum header of a request, unless its handler declares another limit: two names of 255 characters, an id, and room for later
versions."""
LANE_BYTES_MAX = 64 * 1024 * 1024
"""The maximum for all requests that wait in a lane: 16,384 with the longest usual header, or 32 LOCKs with the longest body."""
MEMBER_BYTES_MAX = 2 * 1024 * 1024
"""The maximum body of a request that lists the queues of a member or of a topic: LOCK, UNLOCK, SYNC, RESET_OFFSETS, PURGE_TOPIC. It fits
16,384 queues of one member if group and topic names have 20 characters."""
HEARTBEAT_BYTES_MAX = 1024 * 1024
"""The maximum body of HEART_BEAT: 1,024 topics with names of 127 characters, and 4,096 tags of 200."""
LAYOUTS_BYTES_MAX = 4 * 1024 * 1024
"""The maximum body of a request that carries layouts: 4,096 layouts of 8 entries are 4 MiB with names of 40 characters."""
RECORDS_BYTES_MAX = FRAME_BYTES_MAX
"""The maximum body of a request that carries messages: the limit of the frame, which includes the header."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """The resources that one connection may use."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    header_bytes_max: int = HEADER_BYTES_MAX
    turn_bytes_max: int = 256 * 1024
    """Bytes handled in one turn of the loop: the maximum of one read, so that a connection delays the others by some milliseconds only."""
    turn_frames_max: int = 256
    """Requests and responses handled in one turn of the loop, since 256 KiB can be thousands of them."""
    join_bytes: int = 64 * 1024
    """Outgoing bytes above which a write is not deferred to the end of the turn: joining larger writes saves nothing."""
    unsent_bytes_high: int = 2 * 1024 * 1024
    """Unsent bytes above which drain() waits and the accepting end stops reading: two pull responses of the usual 1 MiB."""
    unsent_bytes_low: int = 512 * 1024
    """Unsent bytes at which both continue."""
    requests_max: int = 65_536
    """Pending requests: thirty times the producer's usual 2,000 in flight."""
    partial_frame_ms: int = 30_000
    """The time within which a frame must be complete after its first byte."""
    idle_ms: int = 120_000
    """The accepting end closes a connection without received or accepted bytes for this time: four missed heartbeats. 0 disables it.
    RocketMQ: serverChannelMaxIdleTimeSeconds."""
    linger_ms: int = 5_000
    """How long close() may wait for the peer to accept the unsent bytes."""
    late_ms: int = 100
    """A timer that fires later than this shows that this process was suspended or blocked: received data is read first."""


DEFAULT_LIMITS = EndpointLimits()

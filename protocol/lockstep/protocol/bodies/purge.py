"""Bodies of PURGE_TOPIC (30017), which removes what a topic holds below an offset of each queue."""

from dataclasses import dataclass

from lockstep.protocol.bodies.groups import QueueOffset

GROUPS_LISTED_MAX = 1_000
"""The number of groups that a response lists."""


@dataclass(frozen=True, slots=True)
class PurgeBody:
    """The request: purge all named queues, or none."""

    topic: str
    queues: tuple[QueueOffset, ...]
    """The first offset that remains, at most the end of the queue. Queues that are not listed stay unchanged."""
    force: bool = False
    """Purge also what groups have not consumed. Without it the request is refused then."""
    dry_run: bool = False
    """Change nothing: the response says what a purge with `force` would do now."""


@dataclass(frozen=True, slots=True)
class PurgedQueue:
    """The removed part of one queue: the messages from `before` up to `after`, some of which damage may have lost before."""

    queue_id: int
    before: int
    """The first offset that the queue had."""
    after: int
    """The first offset that it has then."""


@dataclass(frozen=True, slots=True)
class UnconsumedGroup:
    """A group that has not consumed all of what a purge removes."""

    group: str
    messages: int
    """The number of removed messages that it has not finished. Without progress it would begin at the first message."""
    parked: int
    """The number of its parked keys of which waiting messages may be removed."""


@dataclass(frozen=True, slots=True)
class PurgeReply:
    """The response."""

    queues: tuple[PurgedQueue, ...]
    """In the order of the request."""
    groups: tuple[UnconsumedGroup, ...]
    """The groups that are moved to the new first offsets: GROUPS_LISTED_MAX of them, those with the most messages first."""
    group_count: int
    """The number of all these groups."""

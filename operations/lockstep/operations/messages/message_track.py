"""What became of one message in one group, by what its broker knows. Pure. RocketMQ: messageTrackDetail, TrackType.

RocketMQ compares positions only: progress past a message does not prove that a listener was called with it. Here the copies of the message
in the group's retry and dead-letter topics count as well, and its key, if that is parked. Certain facts go first; that no member
of the group is connected is reported beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from lockstep.operations.messages.waiting import home_queue, waiting_of
from lockstep.operations.text import format_duration, format_time
from lockstep.protocol.bodies import SQL92, TAG, ConsumeType, GroupStatus, QueueStatus, Subscription
from lockstep.protocol.done_ranges import contains
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.messages.properties import REASON, encode_properties
from lockstep.protocol.names import DLQ_PREFIX, group_of_topic
from lockstep.protocol.sql92 import SqlError, compile_sql, parse_sql
from lockstep.protocol.tags import TagFilter


class TrackType(Enum):
    """RocketMQ: TrackType."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"
    PARKED = "PARKED"
    """This one and those after it are lockstep's own."""
    DELAYED = "DELAYED"
    UNDECIDED = "UNDECIDED"
    RECALLED = "RECALLED"
    RETRYING = "RETRYING"
    DEAD_LETTERED = "DEAD_LETTERED"


MEANINGS: Mapping[TrackType, str] = {
    TrackType.CONSUMED: "the group's progress is past the message",
    TrackType.CONSUMED_BUT_FILTERED: "the group's progress is past the message, and its current subscription does not match it",
    TrackType.PULL: "the group pulls and manages its progress itself",
    TrackType.NOT_CONSUME_YET: "the group's progress has not reached the message",
    TrackType.NOT_ONLINE: "no member of the group is connected to the broker, and it has no progress in the message's queue",
    TrackType.CONSUME_BROADCASTING: "each member keeps progress of its own, which the broker does not know",
    TrackType.UNKNOWN: "the broker could not be reached",
    TrackType.PARKED: "its sharding key is parked, and the message waits for the replay",
    TrackType.DELAYED: "it waits for its delay, and no group can receive it before",
    TrackType.UNDECIDED: "it waits until its producer says how its transaction has ended, and no group can receive it before",
    TrackType.RECALLED: "it was recalled while it waited for its delay, and no group will receive it",
    TrackType.RETRYING: "the group failed to process it, and a copy of it waits for the next call",
    TrackType.DEAD_LETTERED: "a copy of it is in the group's dead-letter topic",
}


@dataclass(frozen=True, slots=True)
class Track:
    """What became of a message in one group."""

    group: str
    type: TrackType
    committed_offset: int | None = None
    """The group's progress in the message's queue; None if it has none."""
    why: str | None = None
    """The error, if `type` is UNKNOWN."""
    online: bool | None = None
    """Whether a member of the group is connected to the broker. None if it is not known."""
    failures: int | None = None
    """The failed calls of the listener, if a copy is retried or dead-lettered. RocketMQ: reconsumeTimes."""
    due_ms: int | None = None
    """When the delay ends, or the wait for the next retry, in ms since 1970. None if the message does not wait for a time."""
    error: str | None = None
    """Why the last call failed, if it is known."""


def track_text(track: Track, now_ms: int) -> str:
    """Describe a track for people. `now_ms`: wall time."""
    parts = [track.why or MEANINGS[track.type]]
    if track.type is TrackType.RETRYING:
        parts[0] += f": retry {track.failures} {_due(track, now_ms)}"
    elif track.type is TrackType.DELAYED:
        parts[0] += f": it {_due(track, now_ms)}"
    elif track.type is TrackType.DEAD_LETTERED and track.failures:
        parts[0] += f", after {'one failed call' if track.failures == 1 else f'{track.failures} failed calls'}"
    if track.error is not None:
        parts.append(f"the last error: {track.error}")
    if track.online is False and track.type is not TrackType.NOT_ONLINE:
        parts.append("no member of the group is connected")
    return "; ".join(parts)


def _due(track: Track, now_ms: int) -> str:
    if track.due_ms is None:
        return "is due"
    left_ms = track.due_ms - now_ms
    return (
        f"is due in {format_duration(left_ms)} ({format_time(track.due_ms)})"
        if left_ms > 0
        else f"is due since {format_time(track.due_ms)}"
    )


def track_json(track: Track, now_ms: int) -> dict[str, Any]:
    """Return a track as `lockstep message show --track --json` prints it. `now_ms`: wall time."""
    return {
        "group": track.group,
        "track": track.type.value,
        "committed_offset": track.committed_offset,
        "online": track.online,
        "failures": track.failures,
        "due_at": None if track.due_ms is None else format_time(track.due_ms),
        "error": track.error,
        "meaning": track_text(track, now_ms),
    }


def concerns(status: GroupStatus, message: MessageExt) -> bool:
    """Return whether the group subscribes to the message's topic or has progress there: in its queue or, if it waits, in any."""
    queue, waits = home_queue(message), waiting_of(message) is not None
    if waits and group_of_topic(queue.topic) == status.group:
        return True
    subscribed = () if status.contract is None else status.contract.subscriptions
    if any(each.topic == queue.topic for each in subscribed):
        return True
    return any(
        each.topic == queue.topic and each.committed_offset >= 0 and (waits or each.queue_id == queue.queue_id) for each in status.queues
    )


def track(
    status: GroupStatus, message: MessageExt, *, copy: MessageExt | None = None, parked: bool = False, recalled: bool = False
) -> Track:
    """Return the group's track of the message.

    `copy`: its newest copy in the group's retry or dead-letter topic, or that waits for the former. `parked`: whether it waits for the
    replay of its key. `recalled`: whether it waited, and was recalled.
    """
    queue, waiting, contract = _queue(status, message), waiting_of(message), status.contract
    found = Track(status.group, TrackType.CONSUMED, None if queue is None else queue.committed_offset, online=bool(status.members))
    if recalled:
        return replace(found, type=TrackType.RECALLED)
    if waiting is not None:
        if group_of_topic(waiting.queue.topic) != status.group:
            waits = TrackType.UNDECIDED if waiting.due_ms is None else TrackType.DELAYED
            return replace(found, type=waits, due_ms=waiting.due_ms)
        copy = message
    if contract is not None and contract.broadcasting:
        return replace(found, type=TrackType.CONSUME_BROADCASTING)
    if parked:
        return replace(found, type=TrackType.PARKED)
    if copy is not None and (kind := _copy_type(status, copy)) is not None:
        due_ms = None if (wait := waiting_of(copy)) is None else wait.due_ms
        return replace(found, type=kind, failures=copy.reconsume_times, due_ms=due_ms, error=copy.all_properties.get(REASON))
    if contract is not None and contract.consume_type is ConsumeType.CONSUME_ACTIVELY:
        return replace(found, type=TrackType.PULL)
    if not is_finished(status, message):
        return replace(found, type=TrackType.NOT_ONLINE if queue is None and not status.members else TrackType.NOT_CONSUME_YET)
    subscribed = () if contract is None else contract.subscriptions
    subscription = next((each for each in subscribed if each.topic == message.stored_topic), None)
    matches = subscription is None or _matches(subscription, message)
    return found if matches else replace(found, type=TrackType.CONSUMED_BUT_FILTERED)


def _copy_type(status: GroupStatus, copy: MessageExt) -> TrackType | None:
    """Return the state that the newest copy of a message shows, or None if the group has finished it."""
    if copy.stored_topic.startswith(DLQ_PREFIX):
        return TrackType.DEAD_LETTERED
    return None if is_finished(status, copy) else TrackType.RETRYING


def is_finished(status: GroupStatus, message: MessageExt) -> bool:
    """Return whether the group's progress is past a message. It is not past one that waits."""
    queue = None if waiting_of(message) is not None else _queue(status, message)
    return queue is not None and (message.queue_offset < queue.committed_offset or contains(queue.done or (), message.queue_offset))


def _matches(subscription: Subscription, message: MessageExt) -> bool:
    """Return whether a subscription matches the message. One of another kind than tags and SQL92 is taken to match."""
    if subscription.expression_type in ("", TAG):
        return TagFilter.parse(subscription.expression).matches_tag(message.tags)
    if subscription.expression_type != SQL92:
        return True
    try:
        condition = parse_sql(subscription.expression)
    except SqlError:
        return True  # the broker's version knows more of SQL than this one
    return compile_sql(condition)(b"\x02" + encode_properties(message.all_properties))


def _queue(status: GroupStatus, message: MessageExt) -> QueueStatus | None:
    """Return the message's queue, or None if the group has no progress there."""
    home = home_queue(message)
    place = (home.topic, home.queue_id)
    return next((each for each in status.queues if (each.topic, each.queue_id) == place and each.committed_offset >= 0), None)

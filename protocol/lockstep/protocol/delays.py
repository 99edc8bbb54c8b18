"""Delay levels: the delay of level n is the n-th time of a table. RocketMQ: MessageStoreConfig.messageDelayLevel."""

import re

from lockstep.protocol.errors import LocalProtocolError

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's table: level 1 is 1 s, level 18 is 2 h."""
FIRST_RETRY_LEVEL = 3
"""The n-th retry has level n + 2: the first one waits 10 s, the 16th 2 h."""
RETRIES_MAX = 16
"""Retries of a concurrent group's message before it is dead-lettered. RocketMQ: maxReconsumeTimes."""

CUSTOM_QUEUE_ID_BASE = 1_000
"""The queue id of a delay that RocketMQ's table does not have: this number + the delay in ms."""
DELAY_MS_MAX = (1 << 31) - 1 - CUSTOM_QUEUE_ID_BASE
"""A queue id is an int32."""

ANY_DELAY = 0
"""Instead of a delay in ms: messages with delays of any length, or that wait until a time of day."""
DUE_WITHIN_MS = (0, 60_000, 300_000, 1_800_000, 7_200_000)
"""Waiting messages are counted by the time at which they are due: within 0 ms, that is already, within a minute, …, or later."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_DOWN = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)]
_TIME = re.compile(r"(\d{1,9})(ms|s|m|h|d)")


def parse_levels(text: str) -> tuple[int, ...]:
    """Return a table of delays in milliseconds, level 1 first. Raise LocalProtocolError, naming the invalid time."""
    found = []
    for word in text.split():
        match = _TIME.fullmatch(word)
        if match is None or not int(match[1]):
            raise LocalProtocolError(f"delay level {word!r}: expected a number above 0 with ms, s, m, h or d, such as 30s")
        delay_ms = int(match[1]) * _UNITS_MS[match[2]]
        if delay_ms > DELAY_MS_MAX:
            raise LocalProtocolError(
                f"delay level {word!r}: at most {DELAY_MS_MAX // _UNITS_MS['d']}d: a delay is kept as the number of its queue"
            )
        found.append(delay_ms)
    if not found:
        raise LocalProtocolError(f"no delay levels: expected times such as {DELAY_LEVELS}")
    return tuple(found)


LEVELS_MS = parse_levels(DELAY_LEVELS)


def delay_queue_id(delay_ms: int) -> int:
    """Return the id of the delay queue for this delay, whatever its level in a broker's table: the delay of a queue never changes.

    A delay of RocketMQ's table has the queue that RocketMQ gives it, level − 1.
    """
    return LEVELS_MS.index(delay_ms) if delay_ms in LEVELS_MS else CUSTOM_QUEUE_ID_BASE + delay_ms


def queue_delay_ms(queue_id: int) -> int:
    """Return the delay of messages in this delay queue, in ms. For a queue that lockstep does not fill, return RocketMQ's longest."""
    if queue_id > CUSTOM_QUEUE_ID_BASE:
        return queue_id - CUSTOM_QUEUE_ID_BASE
    return LEVELS_MS[min(queue_id, len(LEVELS_MS) - 1)]


def format_delay(delay_ms: int) -> str:
    """Format a delay as a table of levels writes it: as a whole number of the largest unit possible, except days. ANY_DELAY is "any"."""
    if delay_ms == ANY_DELAY:
        return "any"
    unit, unit_ms = next((unit, unit_ms) for unit, unit_ms in _UNITS_DOWN if delay_ms % unit_ms == 0)
    return f"{delay_ms // unit_ms}{unit}"


def exhausted_reason(count: int) -> str:
    """Return the reason for dead-lettering a message that has no retries left."""
    return "failed once" if count == 1 else f"failed {count} times"


def check_delay_level(level: int) -> None:
    """Raise LocalProtocolError unless `level` is a level of RocketMQ's table."""
    if type(level) is not int or not 1 <= level <= len(LEVELS_MS):
        raise LocalProtocolError(f"delay_level {level!r}: expected 1 … {len(LEVELS_MS)}, which wait {DELAY_LEVELS}")

"""Delay levels: level n waits for the n-th time of a table. RocketMQ: MessageStoreConfig.messageDelayLevel."""

import re
from collections.abc import Sequence

from lockstep.protocol.errors import LocalProtocolError, MessageIllegalError

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's table: level 1 is 1 s, level 18 is 2 h."""
FIRST_RETRY_LEVEL = 3
"""The n-th retry waits for level n + 2: the first one 10 s, the 16th 2 h."""
RETRIES_MAX = 16
"""Retries of a concurrent group's message before it is dead-lettered. RocketMQ: maxReconsumeTimes."""

OTHER_QUEUES_AT = 1_000
"""Queues of delays that RocketMQ's table has not: this + the delay in ms."""
DELAY_MS_MAX = (1 << 31) - 1 - OTHER_QUEUES_AT
"""A queue id is an int32."""

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS_DOWN = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)]
_TIME = re.compile(r"(\d{1,9})(ms|s|m|h|d)")


def parse_levels(text: str) -> tuple[int, ...]:
    """A table in milliseconds, level 1 first. LocalProtocolError says which time can't be read."""
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


def queue_of(delay_ms: int) -> int:
    """The queue in which messages with this delay wait, whatever the level of a broker's table: a queue has one delay for ever.

    A delay of RocketMQ's table has the queue that RocketMQ gives it, level − 1.
    """
    return LEVELS_MS.index(delay_ms) if delay_ms in LEVELS_MS else OTHER_QUEUES_AT + delay_ms


def delay_of(queue_id: int) -> int:
    """How long messages in this queue wait, ms; of a queue that nobody here fills, RocketMQ's longest."""
    if queue_id > OTHER_QUEUES_AT:
        return queue_id - OTHER_QUEUES_AT
    return LEVELS_MS[min(queue_id, len(LEVELS_MS) - 1)]


def format_ms(delay_ms: int) -> str:
    """As a table of levels says it: in the largest unit, days apart, that it is a whole number of."""
    unit, unit_ms = next((unit, unit_ms) for unit, unit_ms in _UNITS_DOWN if delay_ms % unit_ms == 0)
    return f"{delay_ms // unit_ms}{unit}"


def level_of(delay_ms: int, levels_ms: Sequence[int]) -> int:
    """The level that waits exactly so long. MessageIllegalError names the levels that there are."""
    if delay_ms not in levels_ms:
        levels = " ".join(map(format_ms, levels_ms))
        raise MessageIllegalError(f"a delay of {format_ms(delay_ms)} is no delay level of this broker: choose one of {levels}")
    return levels_ms.index(delay_ms) + 1


def failed_times(count: int) -> str:
    """Why a message was dead-lettered whose retries are used up, in words."""
    return "failed once" if count == 1 else f"failed {count} times"


def check_level(level: int) -> None:
    """LocalProtocolError for what is no level of RocketMQ's table."""
    if type(level) is not int or not 1 <= level <= len(LEVELS_MS):
        raise LocalProtocolError(f"delay_level {level!r}: expected 1 … {len(LEVELS_MS)}, which wait {DELAY_LEVELS}")

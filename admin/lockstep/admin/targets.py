"""Parse the places in a topic that options name: an offset, a time, a queue. Pure."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from lockstep.protocol.errors import ConfigError

UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
NUMBER = re.compile(r"(\d{1,19})([smhd]?)", re.ASCII)
"""Offsets are int64, which has 19 digits."""
QUEUE = re.compile(r"(.+):(\d{1,9})", re.ASCII)
TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?", re.ASCII)
DAY_MS = 86_400_000
TIME_MAX_MS = 253_402_300_799_999
"""The end of the year 9999: a later time can't be printed."""
TIME_FORMS = "a time (2026-11-21T15:00:00Z) or a duration ago (90s, 30m, 2h, 7d)"


@dataclass(frozen=True, slots=True)
class Target:
    """A place in a queue. `kind` is "beginning", "end", "offset" or "time"; `value` is the offset, or milliseconds since 1970."""

    kind: str
    value: int = 0


def parse_target(text: str, now_ms: int) -> Target:
    """Parse the value of --to: beginning, end, an offset, an ISO 8601 time (UTC if it has no zone), or a duration ago: 90s, 30m, 2h, 7d.

    Digits alone are an offset, never a date. Raise ConfigError for other text and for times before 1970 or after the year 9999.
    """
    target = _parse(text.strip(), now_ms)
    if target is None:
        raise ConfigError(f"--to {text[:80]!r}: expected beginning, end, an offset (1500; at most 19 digits), {TIME_FORMS}")
    if target.value < 0:
        raise ConfigError(f"--to {text!r} is before 1970-01-01: use --to beginning")
    _check_year("--to", text, target)
    return target


def parse_since(text: str, now_ms: int) -> Target:
    """Parse the value of --since: an ISO 8601 time (UTC if it has no zone), or a duration ago. Raise ConfigError for other text."""
    target = _parse(text.strip(), now_ms)
    if target is None or target.kind != "time":
        raise ConfigError(f"--since {text[:80]!r}: expected {TIME_FORMS}")
    if target.value < 0:
        raise ConfigError(f"--since {text!r} is before 1970-01-01: use --from-start")
    _check_year("--since", text, target)
    return target


def parse_period(since: str | None, until: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """Return the times of --since and --until in ms since 1970, None for an option that is absent.

    A time of day (15:00, UTC) is the last one before now, and for --until the first one from --since on. Raise ConfigError for other text,
    for times before 1970 or after the year 9999, and if --until is before --since.
    """
    since_ms = None if since is None else _moment("--since", since, now_ms, after_ms=None)
    until_ms = None if until is None else _moment("--until", until, now_ms, after_ms=since_ms)
    if since_ms is not None and until_ms is not None and until_ms < since_ms:
        raise ConfigError(f"--until {until!r} is before --since {since!r}: exchange them")
    return since_ms, until_ms


def _moment(option: str, text: str, now_ms: int, after_ms: int | None) -> int:
    target = _parse(text.strip(), now_ms)
    if target is not None and target.kind == "time":
        _check_year(option, text, target)
        found_ms = target.value
    elif (day_ms := _ms_of_day(text.strip())) is not None:
        if after_ms is None:
            found_ms = now_ms - (now_ms - day_ms) % DAY_MS
        else:
            found_ms = after_ms + (day_ms - after_ms) % DAY_MS
    else:
        raise ConfigError(f"{option} {text[:80]!r}: expected {TIME_FORMS}, or a time of day (15:00)")
    if found_ms < 0:
        raise ConfigError(f"{option} {text!r} is before 1970-01-01: leave it out")
    return found_ms


def _check_year(option: str, text: str, target: Target) -> None:
    if target.kind == "time" and target.value > TIME_MAX_MS:
        raise ConfigError(f"{option} {text[:80]!r} is after the year 9999 in UTC: use an earlier time")


def _ms_of_day(text: str) -> int | None:
    found = TIME_OF_DAY.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = int(found[1]), int(found[2]), int(found[3] or 0)
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000 if hours < 24 and minutes < 60 and seconds < 60 else None


def parse_queue(text: str) -> tuple[str, int]:
    """Return "broker-a:3" as (broker name, queue id). Raise ConfigError."""
    found = QUEUE.fullmatch(text)
    if found is None:
        raise ConfigError(f"--queue {text[:80]!r}: expected BROKER:NUMBER, as in broker-a:3; NUMBER has at most 9 digits")
    return found[1], int(found[2])


def parse_topic_queue(text: str) -> tuple[str, str | None, int] | None:
    """Return "orders:3" as (topic, None, queue id), and "orders@broker-a:3" as (topic, broker name, queue id); None for other text."""
    found = QUEUE.fullmatch(text)
    if found is None:
        return None
    topic, _, broker = found[1].partition("@")
    return topic, broker or None, int(found[2])


def _parse(text: str, now_ms: int) -> Target | None:
    if text in ("beginning", "end"):
        return Target(text)
    if number := NUMBER.fullmatch(text):
        count, unit = int(number[1]), number[2]
        return Target("time", now_ms - count * UNITS_S[unit] * 1000) if unit else Target("offset", count)
    try:
        time = datetime.fromisoformat("" if text.isdecimal() else text)
    except ValueError:
        return None
    return Target("time", int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))

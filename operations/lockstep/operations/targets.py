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
TIME_FORMS = "a time (2026-11-21T15:00:00Z), a time of day (15:00, UTC; the last one before now) or a duration ago (90s, 30m, 2h, 7d)"
SINCE_1970 = {"seconds": 1_000, "milliseconds": 1}
"""Units in which other tools give times, and the milliseconds of each."""
HINTED_MS = range(1_000_000_000_000, 4_000_000_000_000)
"""Times from 2001 to 2096: a number of this size is hardly an offset."""


@dataclass(frozen=True, slots=True)
class Target:
    """A place in a queue. `kind` is "beginning", "end", "offset" or "time"; `value` is the offset, or milliseconds since 1970."""

    kind: str
    value: int = 0


def parse_target(text: str, now_ms: int) -> Target:
    """Parse the value of --to: beginning, end, an offset, an ISO 8601 time (UTC if it has no zone), a time of day, or a duration ago.

    Digits alone are an offset, never a date. Raise ConfigError for other text and for times before 1970 or after the year 9999.
    """
    target = _parse(text.strip(), now_ms)
    if target is None:
        raise ConfigError(f"--to {text[:80]!r}: expected beginning, end, an offset (1500; at most 19 digits), {TIME_FORMS}")
    if target.kind == "time":
        _check_time("--to", text, target.value, "use --to beginning")
    return target


def parse_since(text: str, now_ms: int) -> Target:
    """Parse the value of --since of a command that begins there: a time. Raise ConfigError as `parse_period`."""
    return Target("time", _moment("--since", text, now_ms, "use --from-start"))


def parse_period(since: str | None, until: str | None, now_ms: int) -> tuple[int | None, int | None]:
    """Return the times of --since and --until in ms since 1970, None for an option that is absent.

    A time of day (15:00, UTC) is the last one before now, and for --until the first one from --since on. Raise ConfigError for other text,
    for times before 1970 or after the year 9999, and if --until is before --since.
    """
    since_ms = None if since is None else _moment("--since", since, now_ms, "leave it out")
    until_ms = None if until is None else _moment("--until", until, now_ms, "leave it out")
    if since_ms is not None and until is not None and (day_ms := _ms_of_day(until.strip())) is not None:
        until_ms = since_ms + (day_ms - since_ms) % DAY_MS
    if since_ms is not None and until_ms is not None and until_ms < since_ms:
        raise ConfigError(f"--until {until!r} is before --since {since!r}: exchange them")
    return since_ms, until_ms


def parse_due(option: str, text: str, now_ms: int) -> int:
    """Return the time that an option names in ms since 1970: a duration from now, an ISO 8601 time, or a time of day, the next one.

    Raise ConfigError for other text, and for times before 1970 or after the year 9999.
    """
    text = text.strip()
    number = NUMBER.fullmatch(text)
    if number is not None and number[2]:
        time_ms = now_ms + int(number[1]) * UNITS_S[number[2]] * 1_000
    elif (day_ms := _ms_of_day(text)) is not None:
        time_ms = now_ms + (day_ms - now_ms) % DAY_MS
    else:
        target = _parse(text, now_ms)
        if target is None or target.kind != "time":
            hint = time_hint(target.value) if target is not None and target.kind == "offset" else ""
            raise ConfigError(
                f"{option} {text[:80]!r}: expected a duration from now (90s, 30m, 2h, 7d), a time (2026-11-21T15:00:00Z) or a time of day "
                f"(15:00, UTC; the next one){hint}"
            )
        time_ms = target.value
    _check_time(option, text, time_ms, "leave it out")
    return time_ms


def time_hint(number: int) -> str:
    """Return a clause, after a semicolon, if a number that is taken for an offset looks like a time; otherwise nothing."""
    for unit, factor in SINCE_1970.items():
        if number * factor in HINTED_MS:
            time = datetime.fromtimestamp(number * factor / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            return f"; digits alone are an offset: if {number} is a time in {unit} since 1970, write it as {time}"
    return ""


def _moment(option: str, text: str, now_ms: int, if_too_early: str) -> int:
    target = _parse(text.strip(), now_ms)
    if target is None or target.kind != "time":
        hint = time_hint(target.value) if target is not None and target.kind == "offset" else ""
        raise ConfigError(f"{option} {text[:80]!r}: expected {TIME_FORMS}{hint}")
    _check_time(option, text, target.value, if_too_early)
    return target.value


def _check_time(option: str, text: str, time_ms: int, if_too_early: str) -> None:
    if time_ms < 0:
        raise ConfigError(f"{option} {text[:80]!r} is before 1970-01-01: {if_too_early}")
    if time_ms > TIME_MAX_MS:
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
    if (day_ms := _ms_of_day(text)) is not None:
        return Target("time", now_ms - (now_ms - day_ms) % DAY_MS)
    try:
        time = datetime.fromisoformat("" if text.isdecimal() else text)
    except ValueError:
        return None
    return Target("time", int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000))

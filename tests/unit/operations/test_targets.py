"""Places in a topic, as options name them."""

import pytest

from lockstep.operations.targets import Target, parse_period, parse_queue, parse_since, parse_target, time_hint
from lockstep.protocol.errors import ConfigError

NOW = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("beginning", Target("beginning")),
        (" end ", Target("end")),
        ("0", Target("offset", 0)),
        ("1500", Target("offset", 1500)),
        ("90s", Target("time", NOW - 90_000)),
        ("30m", Target("time", NOW - 1_800_000)),
        ("2h", Target("time", NOW - 7_200_000)),
        ("7d", Target("time", NOW - 604_800_000)),
        ("2023-11-14T22:13:20Z", Target("time", NOW)),
        ("2023-11-14T22:13:20", Target("time", NOW)),
        ("2023-11-14T23:13:20+01:00", Target("time", NOW)),
        ("2023-11-14T22:13:20.001Z", Target("time", NOW + 1)),
        ("20231114", Target("offset", 20_231_114)),
        ("1700000000s", Target("time", 0)),
        ("1970-01-01", Target("time", 0)),
        ("22:13", Target("time", NOW - 20_000)),
        ("22:14", Target("time", NOW + 40_000 - 86_400_000)),
    ],
)
def test_target_has_one_of_five_forms(text: str, target: Target) -> None:
    assert parse_target(text, NOW) == target


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "5.5", "5w", "h", "2023-13-01", "1" * 20, "9" * 4_301, "٣", "nan"])
def test_invalid_target_is_rejected_with_the_five_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="expected beginning, end, an offset"):
        parse_target(text, NOW)


@pytest.mark.parametrize("text", ["1700000001s", "999999999999d", "9" * 19 + "d", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"])
def test_time_before_1970_is_rejected_with_the_next_step(text: str) -> None:
    with pytest.raises(ConfigError, match=r"before 1970-01-01.*use --to beginning"):
        parse_target(text, NOW)


def test_time_after_the_year_9999_is_rejected() -> None:
    text = "9999-12-31T23:59:59-23:00"
    for parse in (parse_target, parse_since):
        with pytest.raises(ConfigError, match="is after the year 9999 in UTC"):
            parse(text, NOW)
    for period in ((text, None), (None, text)):
        with pytest.raises(ConfigError, match="is after the year 9999 in UTC"):
            parse_period(*period, NOW)
    assert parse_target("9999-12-31T23:59:59.999Z", NOW) == Target("time", 253_402_300_799_999)


@pytest.mark.parametrize(
    "text", ["broker-a", "broker-a:", ":1", "broker-a:-1", "broker-a:x", "broker-a:1234567890", "broker-a:" + "9" * 4_301]
)
def test_queue_is_written_as_broker_and_number(text: str) -> None:
    assert parse_queue("broker-a:3") == ("broker-a", 3)
    with pytest.raises(ConfigError, match="expected BROKER:NUMBER"):
        parse_queue(text)


def test_since_is_a_time_or_a_duration_ago() -> None:
    assert parse_since("2h", NOW) == Target("time", NOW - 7_200_000)
    assert parse_since("2023-11-14T22:13:20Z", NOW) == Target("time", NOW)
    assert parse_since("21:13:20", NOW) == Target("time", NOW - 3_600_000)


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (
            1_795_897_648_356,
            "; digits alone are an offset: if 1795897648356 is a time in milliseconds since 1970, write it as 2026-11-28T20:27:28.356Z",
        ),
        (
            1_795_897_648,
            "; digits alone are an offset: if 1795897648 is a time in seconds since 1970, write it as 2026-11-28T20:27:28.000Z",
        ),
        (999_999_999, ""),
        (4_000_000_000, ""),
        (999_999_999_999, ""),
        (4_000_000_000_000, ""),
    ],
)
def test_number_that_is_as_high_as_a_time_is_explained(number: int, hint: str) -> None:
    assert time_hint(number) == hint
    assert parse_target(str(number), NOW) == Target("offset", number)
    with pytest.raises(ConfigError) as refused:
        parse_since(str(number), NOW)
    assert str(refused.value).endswith(f"or a duration ago (90s, 30m, 2h, 7d){hint}")


@pytest.mark.parametrize("text", ["", "1500", "beginning", "end", "yesterday"])
def test_since_that_is_no_time_is_rejected_with_the_two_forms(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--since .*: expected a time .* or a duration ago"):
        parse_since(text, NOW)


def test_since_before_1970_is_rejected_with_the_next_step() -> None:
    with pytest.raises(ConfigError, match=r"before 1970-01-01: use --from-start"):
        parse_since("1969-12-31T23:59:59Z", NOW)


MINUTE, HOUR = 60_000, 3_600_000


@pytest.mark.parametrize(
    ("since", "until", "period"),
    [
        (None, None, (None, None)),
        ("2h", None, (NOW - 2 * HOUR, None)),
        ("2h", "1h", (NOW - 2 * HOUR, NOW - HOUR)),
        ("22:13", None, (NOW - 20_000, None)),
        ("22:13:20", None, (NOW, None)),
        ("22:14", None, (NOW + 40_000 - 24 * HOUR, None)),
        ("9:13:20", "9:18:20", (NOW - 13 * HOUR, NOW - 13 * HOUR + 5 * MINUTE)),
        ("21:13:20", "1:13:20", (NOW - HOUR, NOW + 3 * HOUR)),
        (None, "21:13:20", (None, NOW - HOUR)),
        ("2023-11-14T22:13:20Z", "2023-11-14T22:13:20Z", (NOW, NOW)),
    ],
)
def test_period_is_two_times_of_which_a_time_of_day_is_the_nearest_that_fits(
    since: str | None, until: str | None, period: tuple[int | None, int | None]
) -> None:
    assert parse_period(since, until, NOW) == period


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        ("end", None, "--since 'end': expected a time"),
        ("1500", None, "--since '1500': expected"),
        ("24:00", None, "--since '24:00': expected"),
        ("12:60", None, "--since '12:60': expected"),
        (None, "soon", "--until 'soon': expected"),
        ("1969-12-31", None, "before 1970-01-01: leave it out"),
        ("1h", "2h", "--until '2h' is before --since '1h'"),
    ],
)
def test_invalid_period_is_rejected(since: str | None, until: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_period(since, until, NOW)

"""Places in a topic, as options name them."""

import pytest

from lockstep.admin.targets import Target, parse_queue, parse_since, parse_target
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


@pytest.mark.parametrize("text", ["", "1500", "beginning", "end", "yesterday"])
def test_since_that_is_no_time_is_rejected_with_the_two_forms(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--since .*: expected a time .* or a duration ago"):
        parse_since(text, NOW)


def test_since_before_1970_is_rejected_with_the_next_step() -> None:
    with pytest.raises(ConfigError, match=r"before 1970-01-01: use --from-start"):
        parse_since("1969-12-31T23:59:59Z", NOW)

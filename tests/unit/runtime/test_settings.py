"""A value is checked against the declared type and range of its field."""

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.settings import Range, check_settings


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    wait_ms: Annotated[int, Range(1, 10)] = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Base):
    count: Annotated[int, Range(0)] = 0
    size_bytes: Annotated[int | None, Range(1, 1_000, "a frame")] = None
    factor: Annotated[float, Range(1)] = 1
    enabled: bool = True
    colour: Colour = Colour.RED
    commit: Literal["interval", "each"] = "interval"
    label: str = "x"
    names: list[str] | None = None
    own: Base | None = None
    hosts: Annotated[tuple[str, ...], Range(1)] = ("a",)
    hours: Annotated[float, Range(0, above=True)] = 1
    share: Annotated[float, Range(0, 1, above=True)] = 1

    def __post_init__(self) -> None:
        check_settings(self)


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"wait_ms": 1},
    {"wait_ms": 10},
    {"count": 1 << 70},
    {"size_bytes": None},
    {"size_bytes": 1},
    {"factor": 1.5},
    {"factor": 2},
    {"enabled": False},
    {"colour": Colour.BLUE},
    {"commit": "each"},
    {"names": ["a"]},
    {"names": []},
    {"own": Config()},
    {"hosts": ("a", "b")},
    {"hours": 1e-9},
    {"share": 1},
]
REFUSED = [
    ("wait_ms", 0, "wait_ms is 0: expected an integer in 1 … 10"),
    ("wait_ms", 11, "wait_ms is 11: expected an integer in 1 … 10"),
    ("wait_ms", True, "wait_ms is True: expected an integer in 1 … 10"),
    ("wait_ms", 1.0, "wait_ms is 1.0: expected an integer in 1 … 10"),
    ("wait_ms", None, "wait_ms is None: expected an integer in 1 … 10"),
    ("wait_ms", "5", "wait_ms is '5': expected an integer in 1 … 10"),
    ("count", -1, "count is -1: expected an integer of at least 0"),
    ("size_bytes", 1_001, "size_bytes is 1001: expected an integer in 1 … 1,000 (a frame) or None"),
    ("factor", 0.5, "factor is 0.5: expected a number of at least 1"),
    ("factor", float("nan"), "factor is nan: expected a number of at least 1"),
    ("factor", True, "factor is True: expected a number of at least 1"),
    ("enabled", 1, "enabled is 1: expected True or False"),
    ("colour", "RED", "colour is 'RED': expected Colour.RED or Colour.BLUE"),
    ("commit", "never", 'commit is \'never\': expected "interval" or "each"'),
    ("commit", [], 'commit is []: expected "interval" or "each"'),
    ("label", 3, "label is 3: expected a str"),
    ("names", "a", "names is 'a': expected a list of str or None"),
    ("names", ["a", 1], "names is ['a', 1]: expected a list of str or None"),
    ("names", ("a",), "names is ('a',): expected a list of str or None"),
    ("own", 3, "own is 3: expected a Base or None"),
    ("hosts", "a", "hosts is 'a': expected a tuple of str with a length of at least 1"),
    ("hosts", ("a", 1), "hosts is ('a', 1): expected a tuple of str with a length of at least 1"),
    ("hosts", (), "hosts is (): expected a tuple of str with a length of at least 1"),
    ("hours", 0, "hours is 0: expected a number above 0"),
    ("hours", float("inf"), "hours is inf: expected a number above 0"),
    ("share", 1.5, "share is 1.5: expected a number above 0 and of at most 1"),
]


@pytest.mark.parametrize("settings", ACCEPTED)
def test_value_of_the_declared_type_and_range_is_accepted(settings: dict[str, Any]) -> None:
    Config(**settings)


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_error_for_an_invalid_value_has_the_setting_the_value_and_the_expectation(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config(**{name: value})  # type: ignore[arg-type]
    assert str(refused.value) == message


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted(Config):
    extra: "Annotated[int, Range(1, 5)]" = 3
    anything: "Any" = None


def test_postponed_annotations_are_supported() -> None:
    assert Quoted(extra=5, anything=object()).extra == 5
    with pytest.raises(ConfigError, match=r"extra is 6: expected an integer in 1 … 5"):
        Quoted(extra=6)

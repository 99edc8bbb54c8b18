"""The settings of one class are taken from those of another."""

from dataclasses import dataclass

from lockstep.client.settings import settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    wait_ms: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Base):
    count: int = 0


def test_settings_of_returns_the_changed_settings_of_a_base() -> None:
    assert settings_of(Config(wait_ms=7, count=3), Base) == {"wait_ms": 7}

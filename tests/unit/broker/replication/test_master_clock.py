"""What a replica knows of its master's clock: late responses change nothing, and a clock that was set back is followed soon."""

import pytest

from lockstep.broker.replication.master_clock import LOWER_MS, NEAR_MS, MasterClock

AHEAD = 1_000_000


def known(*responses: tuple[int, int]) -> int | None:
    """Return what is known after responses of (boot clock, by how much the time in it is ahead of that)."""
    clock = MasterClock()
    for boot_ms, ahead_ms in responses:
        clock.heard(1, boot_ms, boot_ms + ahead_ms)
    return clock.ahead_ms


@pytest.mark.parametrize(("name", "responses", "expected"), [
    ("none", (), None),
    ("the first one", ((0, AHEAD),), AHEAD),
    ("one that was delayed a little", ((0, AHEAD), (9_999, AHEAD - NEAR_MS)), AHEAD),
    ("one that was delayed less", ((0, AHEAD), (1, AHEAD + 40)), AHEAD + 40),
    ("one that waited while this process was suspended", ((0, AHEAD), (60_000, AHEAD - 60_000), (60_001, AHEAD)), AHEAD),
    ("a clock that was set forward", ((0, AHEAD), (1, AHEAD + 3_600_000)), AHEAD + 3_600_000),
    ("one that was set back just now", ((0, AHEAD), (1, AHEAD - 9_000), (LOWER_MS, AHEAD - 9_000)), AHEAD),
    ("one that was set back", ((0, AHEAD), (1, AHEAD - 9_300), (9, AHEAD - 9_000), (LOWER_MS + 1, AHEAD - 9_100)), AHEAD - 9_000),
    ("late ones between others", ((0, AHEAD), (1, AHEAD - 999), (2, AHEAD), (LOWER_MS + 1, AHEAD - 999), (LOWER_MS + 2, AHEAD)), AHEAD),
])  # fmt: skip
def test_time_of_the_master(name: str, responses: tuple[tuple[int, int], ...], expected: int | None) -> None:
    assert known(*responses) == expected, name


def test_another_master_has_another_clock_from_its_first_response_on() -> None:
    """The copy may be elected before lower times have come for LOWER_MS."""
    clock = MasterClock()
    clock.heard(1, 0, AHEAD + 5_000)
    clock.heard(2, 1_000, 1_000 + AHEAD)
    assert clock.ahead_ms == AHEAD
    clock.heard(2, 1_001, 1_001 + AHEAD - 9_000)
    assert clock.ahead_ms == AHEAD

"""Counts of the last minute, hour and day."""

from lockstep.broker.classic.windows import WindowCount, Windows


def counted(*totals: int, before: int = 0) -> Windows:
    """Return windows after these totals of `orders`, 10 s apart."""
    windows = Windows()
    windows.begin({"orders": before})
    for total in totals:
        windows.add({"orders": total})
    return windows


def read(windows: Windows, key: str = "orders") -> dict[str, WindowCount]:
    counts = windows.read(key)
    assert counts is not None
    return counts


def test_rate_is_that_of_the_time_since_the_start_until_a_window_is_full() -> None:
    assert read(counted(110, 130, before=100)) == dict.fromkeys(("statsMinute", "statsHour", "statsDay"), WindowCount(30, 1.5))


def test_minute_forgets_what_is_older() -> None:
    counts = read(counted(*range(600, 1_300, 100)))
    assert counts["statsMinute"] == WindowCount(600, 10.0)
    assert counts["statsHour"] == WindowCount(1_200, 1_200 / 70)


def test_hour_and_day_forget_whole_steps() -> None:
    windows = counted(*range(1, 400))
    assert read(windows)["statsHour"] == WindowCount(5 * 60 + 39, 0.1)
    assert read(windows)["statsDay"] == WindowCount(399, 0.1)
    windows = counted(*range(1, 24 * 360 + 2))
    assert read(windows)["statsDay"] == WindowCount(23 * 360 + 1, 0.1)


def test_key_without_a_total_has_no_counts() -> None:
    windows = counted(1)
    assert windows.read("bills") is None
    assert counted().read("orders") is not None
    windows.add({"bills": 5})
    assert windows.read("orders") is None, "its topic is deleted"
    assert read(windows, "bills")["statsMinute"].sum == 5


def test_total_that_falls_counts_nothing() -> None:
    assert read(counted(10, 4, 6))["statsMinute"].sum == 12


def test_only_keys_that_count_take_room() -> None:
    windows = Windows()
    windows.begin({})
    windows.add({f"topic-{number}": 1 for number in range(1_000)})
    for _ in range(24 * 360):
        windows.add({f"topic-{number}": 1 for number in range(1_000)})
    assert not any(step for steps in windows._steps.values() for step in steps)

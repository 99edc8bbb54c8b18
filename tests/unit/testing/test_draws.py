"""The draws of a universe: one random source for each choice."""

from dataclasses import replace

import pytest

from sweep import worlds
from sweep.faults import every_fault
from sweep.settings import Setting
from sweep.worlds import draw

KINDS = every_fault()
SEEDS = range(300)
POLLED = ("readers", "retention", "begin")


def others(setting: Setting) -> Setting:
    """Remove the draws for pull consumers."""
    return replace(setting, readers=False, by_hand=False, poll_count=100, reader_expression="*", iterators_share=0.0)


def test_whether_there_are_pull_consumers_leaves_everything_else_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(worlds, "READERS_SHARE", share)
        drawn.append([draw(seed, "swarm", KINDS) for seed in SEEDS])
    none, all_ = drawn
    assert not any(setting.readers for setting in none)
    assert all(setting.readers for setting in all_)
    assert [others(setting) for setting in all_] == none


def test_a_fifth_of_the_swarm_polls_and_a_third_has_large_bodies() -> None:
    drawn = [draw(seed, "swarm", KINDS) for seed in SEEDS]
    assert 0.15 < sum(setting.readers for setting in drawn) / len(drawn) < 0.25
    assert 0.25 < sum(setting.large_share > 0 for setting in drawn) / len(drawn) < 0.42
    by_hand = sum(setting.by_hand for setting in drawn if setting.readers)
    assert 0 < by_hand < sum(setting.readers for setting in drawn) / 2


@pytest.mark.parametrize("world", [name for name in worlds.WORLDS if name not in ("swarm", *POLLED)])
def test_no_other_world_has_pull_consumers(world: str) -> None:
    assert not any(draw(seed, world, KINDS).readers for seed in range(20))


@pytest.mark.parametrize("world", POLLED)
def test_there_they_read_in_both_ways_and_some_of_them_by_tags(world: str) -> None:
    drawn = [setting for seed in range(90) if (setting := draw(seed, world, KINDS)).readers]
    assert {bool(setting.iterators_share) for setting in drawn} == {setting.reader_expression != "*" for setting in drawn} == {False, True}


def test_a_late_group_of_pull_consumers_has_any_turn_and_changes_nothing_where_there_is_none() -> None:
    drawn = [draw(seed, "begin", KINDS) for seed in range(60)]
    late = ("ledger", "mail", "stats", "search")
    assert {setting.late_groups for setting in drawn if not setting.readers} == {late}
    assert {setting.late_groups for setting in drawn if setting.readers} == {(*late[:at], "readers", *late[at:]) for at in range(5)}

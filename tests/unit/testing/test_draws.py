"""The random settings of a run: one random source for each choice."""

from dataclasses import replace

import pytest

from sweep import worlds
from sweep.faults import every_fault
from sweep.settings import Setting
from sweep.worlds import draw

KINDS = every_fault()
SEEDS = range(300)
POLLED = ("readers", "retention", "purge", "begin", "early_groups", "access")


def without_pull_consumers(setting: Setting) -> Setting:
    """Remove the draws for pull consumers."""
    return replace(setting, readers=False, by_hand=False, poll_count=100, reader_expression="*", iterators_share=0.0)


def test_presence_of_pull_consumers_does_not_change_the_other_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(worlds, "READERS_SHARE", share)
        drawn.append([draw(seed, "swarm", KINDS) for seed in SEEDS])
    none, all_ = drawn
    assert not any(setting.readers for setting in none)
    assert all(setting.readers for setting in all_)
    assert [without_pull_consumers(setting) for setting in all_] == none


def test_some_swarm_runs_have_timers_without_a_change_of_the_other_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = [draw(seed, "swarm", KINDS) for seed in SEEDS]
    assert 0.05 < sum(setting.timer_share > 0 for setting in drawn) / len(drawn) < 0.2
    monkeypatch.setattr(worlds, "TIMERS_SHARE", 0.0)
    none = [draw(seed, "swarm", KINDS) for seed in SEEDS]
    assert not any(setting.timer_share for setting in none)
    assert none == [replace(setting, timer_share=0.0, recall_share=0.0) for setting in drawn]


def test_a_fifth_of_swarm_runs_have_pull_consumers_and_a_third_large_bodies() -> None:
    drawn = [draw(seed, "swarm", KINDS) for seed in SEEDS]
    assert 0.15 < sum(setting.readers for setting in drawn) / len(drawn) < 0.25
    assert 0.25 < sum(setting.large_share > 0 for setting in drawn) / len(drawn) < 0.42
    by_hand = sum(setting.by_hand for setting in drawn if setting.readers)
    assert 0 < by_hand < sum(setting.readers for setting in drawn) / 2


@pytest.mark.parametrize("world", [name for name in worlds.WORLDS if name not in ("swarm", *POLLED)])
def test_other_worlds_have_no_pull_consumers(world: str) -> None:
    assert not any(draw(seed, world, KINDS).readers for seed in range(20))


@pytest.mark.parametrize("world", POLLED)
def test_pull_consumers_use_polls_and_iterators_and_some_filter_by_tag(world: str) -> None:
    drawn = [setting for seed in range(90) if (setting := draw(seed, world, KINDS)).readers]
    assert {bool(setting.iterators_share) for setting in drawn} == {setting.reader_expression != "*" for setting in drawn} == {False, True}


def test_few_swarm_runs_have_users_whose_rights_change() -> None:
    drawn = [draw(seed, "swarm", KINDS) for seed in SEEDS]
    assert 0.02 < sum(setting.users for setting in drawn) / len(drawn) < 0.12
    assert {setting.users for setting in drawn if "lose_sub" in setting.faults} == {True}


def test_late_pull_group_has_any_position_and_leaves_the_other_late_groups_unchanged() -> None:
    drawn = [draw(seed, "begin", KINDS) for seed in range(60)]
    late = ("ledger", "mail", "stats", "search")
    assert {setting.late_groups for setting in drawn if not setting.readers} == {late}
    assert {setting.late_groups for setting in drawn if setting.readers} == {(*late[:at], "readers", *late[at:]) for at in range(5)}

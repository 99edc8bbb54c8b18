"""A short sweep: one small run of each world. scripts/sweep runs the long one."""

import pytest

from support.effort import usually
from sweep.seeds import run_one
from sweep.worlds import WORLDS

STORM_S = 6.0
LONG = (
    "purge",
    "retention",
    "split_records",
    "classic_power",
    "unwatched_queues",
    "blackout",
    "dual",
    "copies",
    "names",
    "late_ports",
    "alone",
    "files",
    "stubborn",
    "early_groups",
    "handover",
    "pause",
    "few_topics",
)
"""Worlds whose universe takes several times as long as others. CI runs them as slow tests, and draws all worlds in its sweep."""


@pytest.mark.parametrize("world", usually(WORLDS.keys() - set(LONG), WORLDS))
def test_world_has_no_violation(world: str) -> None:
    outcome = run_one(1, world, storm_s=STORM_S)
    assert [str(violation) for violation in outcome.violations] == [], f"scripts/sweep --world {world} --seed 1 --storm {STORM_S} -v"


def test_violation_is_reported_with_the_seed_that_reproduces_it() -> None:
    from sweep.report import Total, violation_lines

    total = Total()
    lines = violation_lines(17, "net", ("O1 at 1.000: wrong",) * 7)
    assert lines[0] == "  seed 17 in net; replay: scripts/sweep --world net --seed 17 -v"
    assert lines[-1].strip() == "… and 2 more"
    assert not total.failed
    total.violations.append((17, "net", ("wrong",)))
    assert total.failed


def test_unreached_counters_are_reported_only_for_many_seeds_of_all_worlds() -> None:
    from sweep.reach import COUNTED_SEEDS_MIN, REACH
    from sweep.report import Total

    def total(seeds: int, *worlds: str, without: str) -> list[str]:
        made = Total(seeds)
        made.worlds.update(worlds)
        made.reach.update(name for name in REACH if name != without)
        return made.unreached

    assert total(COUNTED_SEEDS_MIN, *WORLDS, without="pause") == ["pause"]
    assert total(COUNTED_SEEDS_MIN - 1, *WORLDS, without="pause") == []
    assert total(COUNTED_SEEDS_MIN, "net", without="pause") == []
    assert total(COUNTED_SEEDS_MIN, *WORLDS, without="") == []

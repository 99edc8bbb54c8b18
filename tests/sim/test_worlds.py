"""A short sweep: one small universe of every world. The long one is scripts/sweep."""

import pytest

from lockstep.testing.sweep.seeds import run_one
from lockstep.testing.sweep.worlds import WORLDS

STORM_S = 12.0


@pytest.mark.parametrize("world", WORLDS)
def test_nothing_is_violated_in(world: str) -> None:
    outcome = run_one(1, world, storm_s=STORM_S)
    assert [str(violation) for violation in outcome.violations] == [], f"scripts/sweep --world {world} --seed 1 --storm {STORM_S} -v"


def test_a_violation_is_told_with_the_seed_that_replays_it() -> None:
    from lockstep.testing.sweep.report import Total, told

    total = Total()
    lines = told(17, "net", ("O1 at 1.000: wrong",) * 7)
    assert lines[0] == "  seed 17 in net; replay: scripts/sweep --world net --seed 17 -v"
    assert lines[-1].strip() == "… and 2 more"
    assert not total.failed
    total.violations.append((17, "net", ("wrong",)))
    assert total.failed

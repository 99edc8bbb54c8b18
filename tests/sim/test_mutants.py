"""Each rule of ours, switched off, is noticed. The usual run tries a few; LOCKSTEP_TEST_SLOW=1 all of them."""

import pytest

from lockstep.testing.mutants import MUTANTS, switched_off
from lockstep.testing.sweep import catch

FAST = ("epochs_are_not_checked", "locks_in_memory", "repeats_are_stored")
SEEDS_MAX = 60


@pytest.mark.parametrize("name", FAST)
def test_a_rule_that_is_off_is_noticed(name: str) -> None:
    _, found, tried = catch(name, 5)
    assert found is not None, f"{MUTANTS[name].rule} Nobody noticed its absence in {tried} universes"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in FAST])
def test_every_rule_that_is_off_is_noticed(name: str) -> None:
    _, found, tried = catch(name, SEEDS_MAX)
    assert found is not None, f"{MUTANTS[name].rule} Nobody noticed its absence in {tried} universes"


def test_a_rule_holds_again_afterwards() -> None:
    from lockstep.broker.tables.lock_table import Lock

    good = vars(Lock)["good"]
    with switched_off("epochs_are_not_checked"):
        assert vars(Lock)["good"] is not good
    assert vars(Lock)["good"] is good

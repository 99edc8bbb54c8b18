"""A pytest plugin: `LOCKSTEP_MUTANT=name pytest -p support.mutated …` runs tests with that mutant applied."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from sweep.mutants import switched_off

PROFILE = "mutated"
# That an example fails is all that is asked; the smallest example that fails can take minutes to find.
settings.register_profile(PROFILE, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=(Phase.explicit, Phase.generate))


@pytest.fixture(autouse=True)
def _switched_off() -> Iterator[None]:
    with switched_off(os.environ.get("LOCKSTEP_MUTANT")):
        yield

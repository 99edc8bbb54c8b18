"""A pytest plugin: `LOCKSTEP_MUTANT=name pytest -p support.mutated …` runs tests with that mutant applied."""

import os
from collections.abc import Iterator

import pytest

from sweep.mutants import switched_off


@pytest.fixture(autouse=True)
def _switched_off() -> Iterator[None]:
    with switched_off(os.environ["LOCKSTEP_MUTANT"]):
        yield

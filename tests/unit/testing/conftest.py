"""A universe for each test that asks for one. It ends with the test; an error that nobody handled in it fails the test."""

from collections.abc import Iterator

import pytest

from lockstep.testing.simulation import SimLoop


@pytest.fixture
def sim() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.close()
    assert not loop.errors, "\n".join(map(str, loop.errors))

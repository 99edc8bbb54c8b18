"""A simulation loop for each test that requests one. It is closed with the test, and an unhandled error in it fails the test."""

from collections.abc import Iterator

import pytest

from lockstep.testing.simulation import SimLoop


@pytest.fixture
def sim() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.close()
    assert not loop.errors, "\n".join(map(str, loop.errors))

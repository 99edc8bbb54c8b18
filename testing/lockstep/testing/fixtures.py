"""The fixtures. The plugin registers them if pytest-asyncio is installed; the simulator is loaded when a test first uses one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from lockstep.testing.marks import CLOCK, CLUSTER, settings_of

if TYPE_CHECKING:
    from lockstep.testing.chaos import Chaos
    from lockstep.testing.clock import TestClock
    from lockstep.testing.cluster import TestCluster

PLUGIN_SETTINGS = ("seed", "seeds")
NOT_SIMULATED = (
    "this test's event loop is not simulated: the test must be async, name the lockstep fixture among its own or its fixtures' arguments, "
    "and run under pytest-asyncio 1.5 or newer"
)


@pytest_asyncio.fixture(loop_scope="function")
async def lockstep_clock(request: pytest.FixtureRequest) -> "TestClock":
    """`now` and `await advance(minutes=30)`: virtual time for a test without a cluster, or with one."""
    from lockstep.testing.clock import TestClock
    from lockstep.testing.simulation import SimLoop

    loop = asyncio.get_running_loop()
    if not isinstance(loop, SimLoop) and not request.config.getoption("lockstep_real"):
        pytest.fail(NOT_SIMULATED, pytrace=False)
    clock = request.node.stash[CLOCK] = TestClock(loop)
    return clock


@pytest_asyncio.fixture(loop_scope="function")
async def lockstep_cluster(request: pytest.FixtureRequest, lockstep_clock: "TestClock", tmp_path: Path) -> "AsyncIterator[TestCluster]":
    """A started TestCluster. `@pytest.mark.lockstep(brokers=3, flush="sync")` sets its settings."""
    from lockstep.testing.cluster import TestCluster

    real = bool(request.config.getoption("lockstep_real"))
    settings = {name: value for name, value in settings_of(request.node).items() if name not in PLUGIN_SETTINGS}
    async with TestCluster(**settings, real=real, folder=tmp_path if real else None) as cluster:
        request.node.stash[CLUSTER] = cluster
        yield cluster


@pytest.fixture
def lockstep_chaos(lockstep_cluster: "TestCluster") -> "Callable[..., Chaos]":
    """`async with lockstep_chaos(): …`: injects faults while the block runs. Takes the arguments of Chaos."""
    from lockstep.testing.chaos import Chaos

    def chaos(seed: int | None = None, **settings: Any) -> Chaos:
        return Chaos(lockstep_cluster, seed=seed, **settings)

    return chaos

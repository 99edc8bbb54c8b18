"""Fixtures: a cluster per test, and lines for the end of the run."""

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.cluster import MEASURED, Cluster, Report, running_cluster
from support.effort import SHARES, SLOW, in_share
from support.fork_server import ForkServer, forking
from support.hostile_world import World, checked_world, hostile_world


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer | None]:
    """Fork the programs in the usual run. The slow run executes each program, or those of files of its share or with slow tests of it."""
    if (SLOW and SHARES == 1) or sys.platform != "linux":
        yield None
        return
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="module", autouse=True)
def _forking(request: pytest.FixtureRequest, fork_server: ForkServer | None) -> Iterator[None]:
    runs_slow = SLOW and any(
        item.path == request.path and item.get_closest_marker("slow") and in_share(item.nodeid) for item in request.session.items
    )
    with forking(None if runs_slow or (SLOW and in_share(request.path.name)) else fork_server):
        yield


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("module")


@pytest.fixture(scope="module")
def world(folder: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Return a world for the module, with its SERVER_OPTIONS (of nameserver and broker) and BROKER_OPTIONS."""
    options = (getattr(request.module, name, ()) for name in ("SERVER_OPTIONS", "BROKER_OPTIONS"))
    with hostile_world(folder, *next(options), of_broker=next(options)) as made:
        yield made


@pytest.fixture
async def undisturbed(world: World) -> AsyncIterator[None]:
    """Check that the module's producer and consumer continued without an error and that the servers logged no unexpected one."""
    async with checked_world(world):
        yield


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Print a line at the end of the run."""
    return lambda line: request.node.user_properties.append((MEASURED, line))

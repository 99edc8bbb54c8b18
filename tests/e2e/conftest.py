"""Fixtures: a cluster per test, and lines for the end of the run."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.cluster import MEASURED, Cluster, Report, running_cluster
from support.copies import Copies
from support.effort import usually
from support.hostile_world import World, checked_world, hostile_world
from support.registers import RegisterServer, new_register_server
from support.small_disk import small_disk


@pytest.fixture(scope="module", autouse=True)
def _forking(forked_programs: None) -> None:
    """Fork the programs of all files in this folder."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as made:
        yield made


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as path:
        yield path


@pytest.fixture(params=usually(["etcd"], ["etcd", "witness"]))
def register_server(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[RegisterServer]:
    """Return a register that is not started, and killed at the end."""
    server = new_register_server(request.param, cluster.folder)
    yield server
    server.close()


@pytest.fixture
async def copies(cluster: Cluster, register_server: RegisterServer) -> Copies:
    """Two copies of one broker under a register."""
    return await Copies.start_all(cluster, register_server)


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

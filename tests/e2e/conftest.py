"""A cluster per test, and what the tests measured: told at the end of the run, never asserted."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.cluster import Cluster, Report, running_cluster

_measured = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_measured] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash[_measured]:
        terminalreporter.section("measured on this machine, now")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as made:
        yield made


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Notes a line for the end of the run."""
    lines = request.config.stash[_measured]
    return lambda line: lines.append(f"{request.node.name}: {line}")

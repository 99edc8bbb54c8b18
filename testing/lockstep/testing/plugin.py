"""The pytest plugin: selects the tests that run in the simulator and their seeds, and extends failure reports.

Every pytest loads it: keep it light.

A test that uses one of the fixtures (fixtures.py) gets an event loop of its own through pytest-asyncio's hook: a universe for each seed.
"""

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.testing.marks import CLOCK, CLUSTER, settings_of

if TYPE_CHECKING:
    import asyncio

    from lockstep.testing.clock import TestClock

FIXTURES = ("lockstep_cluster", "lockstep_clock", "lockstep_chaos")
HAPPENINGS_SHOWN_MAX = 40
ASYNCIO = "lockstep's fixtures need pytest-asyncio 1.5 or newer: pip install 'lockstep-mq[testing]'"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "tests with a lockstep cluster")
    group.addoption("--lockstep-seed", type=int, default=None, metavar="N", help="the universe that such tests run in (default: 0)")
    group.addoption("--lockstep-seeds", type=int, default=None, metavar="COUNT", help="run each such test in so many universes")
    group.addoption("--lockstep-real", action="store_true", help="real processes in real time instead of the simulator")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "lockstep(seed=0, seeds=1, **settings): the universes that a test with a lockstep cluster runs in, and TestCluster's settings",
    )
    if config.pluginmanager.hasplugin("asyncio"):
        from lockstep.testing import fixtures

        config.pluginmanager.register(fixtures, "lockstep_fixtures")
    else:
        config.pluginmanager.register(_NoFixtures(), "lockstep_fixtures")


class _NoFixtures:
    """The fixtures if pytest-asyncio is not installed."""

    @pytest.fixture
    def lockstep_cluster(self) -> None:
        pytest.fail(ASYNCIO, pytrace=False)

    lockstep_clock = lockstep_chaos = lockstep_cluster


# ------------------------------------------------------------------------------------------------------------------- collection


def seeds_of(config: pytest.Config, settings: Mapping[str, Any]) -> range:
    """Return the seeds by the command line, else by the marker. A seed alone is one universe, a count begins at that seed."""
    seed, count = config.getoption("lockstep_seed"), config.getoption("lockstep_seeds")
    if count is None:
        count = 1 if seed is not None else settings.get("seeds", 1)
    if count < 1:
        raise pytest.UsageError(f"lockstep: {count} seeds; at least 1")
    first = settings.get("seed", 0) if seed is None else seed
    return range(first, first + count)


class _Universes:
    """Provides pytest-asyncio with the loops of one test. Registered for that test only: None from the hook is an error for others."""

    def __init__(self, factories: "Mapping[str, Callable[[], asyncio.AbstractEventLoop]]") -> None:
        self._factories = factories

    @pytest.hookimpl(tryfirst=True)
    def pytest_asyncio_loop_factories(self) -> "Mapping[str, Callable[[], asyncio.AbstractEventLoop]]":
        return self._factories


def _uses_lockstep(names: "list[str]") -> bool:
    return any(name in FIXTURES for name in names)


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    """Generate a test for each seed, on the event loop of that universe."""
    if not _uses_lockstep(metafunc.fixturenames):
        return (yield)
    config = metafunc.config
    metafunc.definition.add_marker(pytest.mark.asyncio(loop_scope="function"), append=False)
    if config.getoption("lockstep_real"):
        return (yield)
    from lockstep.testing.run import simulated_loop

    seeds = seeds_of(config, settings_of(metafunc.definition))
    universes = _Universes({f"seed-{seed}": partial(simulated_loop, seed) for seed in seeds})
    config.pluginmanager.register(universes)
    try:
        return (yield)
    finally:
        config.pluginmanager.unregister(universes)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Mark tests with the fixtures before pytest-asyncio looks: they need no mark in strict mode, and have the loop scope "function"."""
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Function) and _uses_lockstep(item.fixturenames):
            item.add_marker(pytest.mark.asyncio(loop_scope="function"), append=False)
    return made


# ---------------------------------------------------------------------------------------------------------------------- running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Skip a test in real time that needs the simulator; fail a test if its program failed unnoticed."""
    if CLOCK not in item.stash:
        return (yield)
    from lockstep.testing.errors import OnlySimulatedError

    try:
        result = yield
    except OnlySimulatedError as error:
        pytest.skip(str(error))
    cluster = item.stash.get(CLUSTER, None)
    if cluster is not None and (failures := cluster.failures()):
        pytest.fail("\n".join(failures), pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: "pytest.CallInfo[None]") -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    clock = item.stash.get(CLOCK, None)
    if report.failed and clock is not None:
        cluster = item.stash.get(CLUSTER, None)
        if cluster is not None and (failures := cluster.failures()):
            report.sections.append(("lockstep: in the cluster, too", "\n".join(failures)))
        report.sections.append(("lockstep", "\n".join(_failure_lines(item, clock))))
    if call.when == "teardown":
        _forget(item)
    return report


def _forget(item: pytest.Item) -> None:
    """Forget the universe of a test that has ended: pytest keeps all tests until the end of the run."""
    if CLOCK in item.stash:
        del item.stash[CLOCK]
    if CLUSTER in item.stash:
        del item.stash[CLUSTER]


def _failure_lines(item: pytest.Item, clock: "TestClock") -> list[str]:
    cluster = item.stash.get(CLUSTER, None)
    happenings = [] if cluster is None else [str(each) for each in cluster.happenings]
    lines = [f"… {len(happenings) - HAPPENINGS_SHOWN_MAX} more before"] if len(happenings) > HAPPENINGS_SHOWN_MAX else []
    lines += [*happenings[-HAPPENINGS_SHOWN_MAX:], f"{clock.now:9.3f} s  the test failed"]
    if clock.seed is not None:
        lines.append(
            f"seed {clock.seed}, the same again: pytest {_shell_word(_without_seed(item.nodeid, clock.seed))} --lockstep-seed {clock.seed}"
        )
    return lines


def _without_seed(nodeid: str, seed: int) -> str:
    """Remove the universe's name, which pytest-asyncio adds if a test has several loops."""
    name = f"seed-{seed}"
    for shown, left in ((f"[{name}]", ""), (f"[{name}-", "["), (f"-{name}]", "]"), (f"-{name}-", "-")):
        if shown in nodeid:
            return nodeid.replace(shown, left)
    return nodeid


def _shell_word(text: str) -> str:
    from shlex import quote

    return quote(text)

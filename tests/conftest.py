"""Every test: an unhandled error in the loop, or a task that outlives the test, fails it.

Async tests run on asyncio's loop; those marked `both_loops` run on uvloop's too, those marked `simulated` on the simulator's, whose time
costs nothing and whose random numbers repeat, those marked `frozen_clock` on one whose time stops until the test advances it
(the fixture `frozen`). The nearest of these marks decides; `real_network` takes a test out of a file that is simulated.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest
from hypothesis import HealthCheck, settings

from lockstep.testing.simulation import SimLoop
from support.cluster import MEASURED
from support.effort import EXAMPLES, SHARES, SLOW, in_share
from support.fork_server import ForkServer, forking
from support.loops import LOOPS, Factory, FrozenLoop, LoopWatch
from support.ports import claims_of_a_test

# A slow machine does not break a law.
settings.register_profile("lockstep", max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lockstep")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all tests are collected: what that makes is kept
    config.addinivalue_line("markers", "both_loops: runs on asyncio's loop and on uvloop's")
    config.addinivalue_line("markers", "simulated: runs on the simulator's loop, network and clock")
    config.addinivalue_line("markers", "real_network: runs on real sockets and real time in a file that is simulated")
    config.addinivalue_line("markers", "frozen_clock: runs on a loop whose time stands still until the test advances it")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `slow` run when LOCKSTEP_TEST_SLOW=1, and only a share of them when LOCKSTEP_TEST_SHARE=K/N is set too."""
    for item in items:
        if item.get_closest_marker("slow"):
            if not SLOW:
                item.add_marker(pytest.mark.skip(reason="slow: set LOCKSTEP_TEST_SLOW=1"))
            elif not in_share(item.nodeid):
                item.add_marker(pytest.mark.skip(reason="slow: it runs for another commit (LOCKSTEP_TEST_SHARE)"))


def pytest_collection_finish() -> None:
    """Exclude what exists by now (a million objects: modules, tests, parameters) from each later run of the garbage collector."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the measurements of tests, which are never asserted."""
    ended = [one for outcome in ("passed", "failed") for one in terminalreporter.getreports(outcome) if one.when == "call"]
    lines = [f"{one.nodeid.partition('::')[2]}: {line}" for one in ended for name, line in one.user_properties if name == MEASURED]
    if lines:
        terminalreporter.section("measured on this machine, now")
        for line in lines:
            terminalreporter.write_line(line)


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Factory]:
    if item.get_closest_marker("frozen_clock"):
        return {"frozen": FrozenLoop}
    if item.get_closest_marker("both_loops"):
        return LOOPS
    if item.get_closest_marker("simulated") and not item.get_closest_marker("real_network"):
        return {"simulated": SimLoop}
    return {"asyncio": LOOPS["asyncio"]}


@pytest.fixture(autouse=True)
def _watched(request: pytest.FixtureRequest) -> None:
    """Set up before the other fixtures of an async test, so that it looks after they are all gone."""
    if asyncio.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("loop_watch")


@pytest.fixture(autouse=True)
def _claims() -> Iterator[None]:
    with claims_of_a_test():
        yield


@pytest.fixture
async def loop_watch() -> AsyncIterator[LoopWatch]:
    """Collects unhandled errors of this test's loop. A test that expects such an error takes it from `errors`."""
    watch = LoopWatch(asyncio.get_running_loop())
    yield watch
    await watch.check()


@pytest.fixture
async def frozen() -> FrozenLoop:
    """The loop of a test marked `frozen_clock`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FrozenLoop), "mark the test with frozen_clock"
    return loop


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """For tests that set the process's logging up: afterwards it is as before."""
    root = logging.getLogger("lockstep")
    before = (list(root.handlers), root.level, root.propagate)
    yield
    root.handlers[:], root.level, root.propagate = before


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer | None]:
    """Return the server, or None where all programs are executed."""
    if (SLOW and SHARES == 1) or sys.platform != "linux":
        yield None
        return
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def forked_programs(request: pytest.FixtureRequest, fork_server: ForkServer | None) -> Iterator[None]:
    """Fork the programs in the usual run. The slow run executes each program, or those of files of its share or with slow tests of it."""
    runs_slow = SLOW and any(
        item.path == request.path and item.get_closest_marker("slow") and in_share(item.nodeid) for item in request.session.items
    )
    with forking(None if runs_slow or (SLOW and in_share(request.path.name)) else fork_server):
        yield

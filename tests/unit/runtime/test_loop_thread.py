"""A service on its own loop: started once, closed in order, refuses blocking calls on a loop, restarted after a fork."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

import pytest

from lockstep.protocol.errors import StateError, TransportError
from lockstep.runtime.loop_thread import LoopThread

WAIT_S = 30


class Service:
    """A service that records its start and its end."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.start_errors: list[Exception] = []
        self.may_start = threading.Event()
        self.may_start.set()
        self.may_go_on = threading.Event()
        self.called = threading.Event()

    @asynccontextmanager
    async def life(self) -> AsyncIterator["Service"]:
        self.said.append("starting")
        await asyncio.to_thread(self.may_start.wait, WAIT_S)
        if self.start_errors:
            raise self.start_errors.pop()
        yield self
        self.said.append("ended")

    async def double(self, number: int) -> int:
        if number < 0:
            raise ValueError("below zero")
        return number * 2

    async def waits(self) -> str:
        self.called.set()
        try:
            await asyncio.to_thread(self.may_go_on.wait, WAIT_S)
        except asyncio.CancelledError:
            self.said.append("cancelled")
            raise
        return "waited"


@contextmanager
def running(service: Service) -> Iterator[LoopThread[Service]]:
    thread = LoopThread("test service", service.life)
    yield thread
    service.may_go_on.set()
    thread.close(WAIT_S)


def test_concurrent_threads_start_the_service_once_and_each_gets_its_own_result() -> None:
    service = Service()
    service.may_start.clear()
    with running(service) as thread, ThreadPoolExecutor(8) as pool:
        assert thread.state == "new"
        calls = [pool.submit(thread.call, lambda service, n=n: service.double(n)) for n in range(8)]  # type: ignore[misc]
        service.may_start.set()
        assert [call.result(WAIT_S) for call in calls] == [n * 2 for n in range(8)]
        with pytest.raises(ValueError, match="below zero"):
            thread.call(lambda service: service.double(-1))
        assert thread.state == "running"
    assert service.said == ["starting", "ended"]
    assert thread.state == "closed"


def test_failed_start_is_raised_to_all_waiting_threads_and_can_be_retried() -> None:
    service = Service()
    service.start_errors = [TransportError("no nameserver")]
    service.may_start.clear()
    with running(service) as thread, ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(thread.start) for _ in range(4)]
        while thread._running is None:
            assert not any(call.done() for call in calls)
        service.may_start.set()
        failed = [call.exception(WAIT_S) for call in calls]
        assert any(isinstance(error, TransportError) for error in failed)
        assert all(error is None or isinstance(error, TransportError) for error in failed)
        assert thread.call(lambda service: service.double(2)) == 4


def test_call_after_close_raises_and_close_is_idempotent() -> None:
    service = Service()
    with running(service) as thread:
        thread.start()
        thread.close()
        assert service.said == ["starting", "ended"]
        for _ in range(2):
            with pytest.raises(StateError, match=r"test service is closed: start\(\) opens it again"):
                thread.call(lambda service: service.double(1))
            thread.close()
    never = LoopThread("never", Service().life)
    never.close()
    with pytest.raises(StateError, match="never is closed"):
        never.call(lambda service: service.double(1))


def test_start_after_close_starts_the_service_again() -> None:
    service = Service()
    with running(service) as thread:
        for _ in range(2):
            thread.start()
            assert thread.call(lambda service: service.double(21)) == 42
            thread.close()
            assert thread.state == "closed"
    assert service.said == ["starting", "ended"] * 2


@pytest.mark.parametrize("used", [False, True])
def test_failed_call_of_a_start_ends_the_service_unless_another_thread_uses_it(used: bool) -> None:
    service = Service()
    with running(service) as thread, ThreadPoolExecutor() as pool:
        calls = []

        async def fails(_: Service) -> None:
            if used:
                calls.append(pool.submit(thread.call, Service.waits))
                await asyncio.to_thread(service.called.wait, WAIT_S)
            raise TransportError("no nameserver")

        with pytest.raises(TransportError):
            thread.start(fails)
        assert thread.state == ("running" if used else "new")
        service.may_go_on.set()
        assert [call.result() for call in calls] == ["waited"] * used
        thread.close()


def test_call_pending_at_close_raises() -> None:
    service = Service()
    with running(service) as thread, ThreadPoolExecutor(1) as pool:
        call = pool.submit(thread.call, lambda service: service.waits())
        assert service.called.wait(WAIT_S)
        closing = threading.Thread(target=thread.close)
        closing.start()
        assert isinstance(call.exception(WAIT_S), StateError)
        service.may_go_on.set()
        closing.join(WAIT_S)
    assert service.said == ["starting", "ended", "cancelled"]


async def test_blocking_call_on_an_event_loop_raises() -> None:
    with running(Service()) as thread, pytest.raises(StateError, match="this thread runs an event loop: use the asynchronous one"):
        thread.call(lambda service: service.double(1))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts programs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_keyboard_interrupt_cancels_the_call_and_is_raised_immediately() -> None:
    service = Service()
    with running(service) as thread:

        async def interrupted(service: Service) -> str:
            main = threading.main_thread().ident
            assert main is not None
            while sys._current_frames()[main].f_code.co_name != "wait":  # noqa: ASYNC110
                await asyncio.sleep(0)
            signal.pthread_kill(main, signal.SIGINT)
            return await service.waits()

        with pytest.raises(KeyboardInterrupt):
            thread.call(interrupted)
        service.may_go_on.set()
        assert thread.call(lambda service: service.double(3)) == 6, "it goes on"
        assert "cancelled" in service.said


@pytest.mark.parametrize("closed", [False, True])
def test_forked_child_starts_its_own_service(closed: bool) -> None:
    service = Service()
    with running(service) as thread:
        thread.call(lambda service: service.double(1))
        if closed:
            thread.close()
        out, into = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                state = thread.state
                try:
                    found = f"{state} {thread.call(lambda service: service.double(21))} {service.said}"
                except StateError as error:
                    found = f"{state} {error}"
                os.write(into, found.encode())
            finally:
                os._exit(0)
        os.close(into)
        with os.fdopen(out, "rb") as reported:
            text = reported.read().decode()
        assert os.waitpid(child, 0)[1] == 0
        if closed:
            assert text == "closed test service is closed: start() opens it again"
        else:
            assert text == "new 42 ['starting', 'starting']"
            assert thread.call(lambda service: service.double(4)) == 8
            assert service.said == ["starting"]


AT_EXIT = """
import asyncio, sys
from contextlib import asynccontextmanager
from lockstep.runtime.loop_thread import LoopThread

@asynccontextmanager
async def life():
    yield 7
    print("ended", flush=True)

async def doubled(number):
    return number * 2

thread = LoopThread("forgotten", life)
print(thread.call(doubled), flush=True)
"""


def test_open_services_are_closed_at_exit() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", AT_EXIT], capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("14\nended\n", "", 0)

"""run(): misuse, and the order in which services start and stop. For signals see tests/e2e/test_run.py."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Thread

import pytest

from lockstep.client import ConsumeOrderlyStatus, PushConsumer, run
from lockstep.protocol.errors import ConfigError, LockstepError, StateError, TransportError

UNUSED_ADDRESS = "127.0.0.1:1"


def consumer() -> PushConsumer:
    made = PushConsumer("billing", nameserver=UNUSED_ADDRESS).subscribe("orders")
    made.orderly(lambda messages, context: ConsumeOrderlyStatus.SUCCESS)
    return made


def test_run_without_a_consumer_raises() -> None:
    with pytest.raises(ConfigError, match=r"run\(producer, consumer\)"):
        run()


async def test_run_on_a_running_loop_raises() -> None:
    with pytest.raises(StateError, match="async with"):
        run(consumer())


def test_run_outside_the_main_thread_raises() -> None:
    refused: list[LockstepError] = []

    def work() -> None:
        try:
            run(consumer())
        except LockstepError as error:
            refused.append(error)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert "only the main thread" in str(refused[0])


def test_failed_start_ends_earlier_services_in_reverse_order_and_restores_signal_handlers() -> None:
    reported: list[str] = []

    @asynccontextmanager
    async def service(name: str) -> AsyncIterator[None]:
        reported.append(f"{name} begins")
        try:
            yield
        finally:
            reported.append(f"{name} ends")

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(SystemExit, match=r"^lockstep: no nameserver") as ended:
        run(service("a"), service("b"), consumer())
    assert isinstance(ended.value.__cause__, TransportError)
    assert "\n" not in str(ended.value)
    assert reported == ["a begins", "b begins", "b ends", "a ends"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_error_that_is_not_of_lockstep_is_raised_as_it_is() -> None:
    @asynccontextmanager
    async def service() -> AsyncIterator[None]:
        raise ValueError("no database")
        yield

    with pytest.raises(ValueError, match="no database"):
        run(service(), consumer())


def test_signal_during_start_ends_run_without_an_error() -> None:
    @asynccontextmanager
    async def service() -> AsyncIterator[None]:
        signal.raise_signal(signal.SIGTERM)
        yield

    unstarted = consumer()
    run(service(), unstarted)
    assert unstarted.ended.is_set()

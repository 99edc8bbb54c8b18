"""run(): its refusals, and the order in which services begin and end. For signals see tests/e2e/test_run.py."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Thread

import pytest

from lockstep.client import ConsumeOrderlyStatus, PushConsumer, run
from lockstep.protocol.errors import ConfigError, LockstepError, StateError, TransportError

NOBODY = "127.0.0.1:1"


def consumer() -> PushConsumer:
    made = PushConsumer("billing", nameserver=NOBODY).subscribe("orders")
    made.orderly(lambda messages, context: ConsumeOrderlyStatus.SUCCESS)
    return made


def test_without_a_consumer_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(ConfigError, match=r"run\(producer, consumer\)"):
        run()


async def test_on_a_running_loop_it_is_refused() -> None:
    with pytest.raises(StateError, match="async with"):
        run(consumer())


def test_in_another_thread_it_is_refused() -> None:
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


def test_where_a_start_fails_those_before_it_end_in_the_opposite_order_and_signals_are_as_before() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def service(name: str) -> AsyncIterator[None]:
        told.append(f"{name} begins")
        try:
            yield
        finally:
            told.append(f"{name} ends")

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(TransportError, match="no nameserver"):
        run(service("a"), service("b"), consumer())
    assert told == ["a begins", "b begins", "b ends", "a ends"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_signal_during_the_start_ends_it_quietly() -> None:
    @asynccontextmanager
    async def service() -> AsyncIterator[None]:
        signal.raise_signal(signal.SIGTERM)
        yield

    unstarted = consumer()
    run(service(), unstarted)
    assert unstarted.ended.is_set()

"""A trace from a request in a blocking program to a plain listener in its thread, through a real broker."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry import trace

from lockstep.client import Message, MessageExt, OrderlyContext, PushConsumer, sync
from lockstep.otel import LockstepInstrumentor
from support.processes import Program, program, run_program
from support.telemetry import Telemetry, id_of, trace_of

pytestmark = pytest.mark.e2e

CLI = "lockstep.cli.main"


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Program]:
    with program(CLI, "up", "--port", "0", "--store", str(tmp_path / "store"), event="up.started") as laptop:
        where = str(laptop.started["nameserver"])
        assert run_program(CLI, "topic", "create", "orders", "--nameserver", where).returncode == 0
        yield laptop


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    LockstepInstrumentor().instrument(**made.providers)
    yield made
    LockstepInstrumentor().uninstrument()


def test_trace_goes_from_a_request_to_a_plain_listener(laptop: Program, telemetry: Telemetry) -> None:
    where = str(laptop.started["nameserver"])
    with sync.Producer("web", nameserver=where) as producer:
        for number in range(3):
            with telemetry.tracer.start_as_current_span(f"request {number}"):
                producer.send(Message("orders", b"%d" % number))
    inside: dict[bytes, int] = {}

    async def consume() -> None:
        consumer = PushConsumer("billing", nameserver=where).subscribe("orders")
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        @consumer.orderly
        def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
            inside[messages[0].body] = trace.get_current_span().get_span_context().trace_id
            if len(inside) == 3:
                loop.call_soon_threadsafe(done.set)

        async with consumer, asyncio.timeout(60):
            await done.wait()

    asyncio.run(consume())
    requests = {f"{number}".encode(): telemetry.spans(f"request {number}")[0] for number in range(3)}
    assert inside == {body: trace_of(span) for body, span in requests.items()}
    parents = {trace_of(span): span.parent.span_id for span in telemetry.spans("send orders") if span.parent}
    assert parents == {trace_of(span): id_of(span) for span in requests.values()}
    assert len(telemetry.spans("process orders")) == 3

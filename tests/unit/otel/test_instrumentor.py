"""LockstepInstrumentor: every producer and push consumer that is made while the process is instrumented has the hooks."""

import inspect
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Message, Producer, PushConsumer, Sending
from lockstep.client.consumer.calls.hooks import watched
from lockstep.otel import ConsumeTracing, LockstepInstrumentor, SendTracing
from lockstep.testing import message, orderly_context
from support.telemetry import Telemetry

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


@pytest.fixture
def instrumentor() -> Iterator[LockstepInstrumentor]:
    made = LockstepInstrumentor()
    yield made
    made.uninstrument()


def hooks() -> tuple[list[object], list[object]]:
    """Return the hooks of a new producer and of a new consumer."""
    return list(Producer("shop")._hooks), list(PushConsumer("billing")._call_hooks)


def test_instances_that_are_made_while_it_is_instrumented_have_one_hook(instrumentor: LockstepInstrumentor) -> None:
    signatures = inspect.signature(Producer), inspect.signature(PushConsumer)
    before = Producer("shop")
    providers = Telemetry().providers
    instrumentor.instrument(**providers)
    LockstepInstrumentor().instrument()
    assert instrumentor.is_instrumented_by_opentelemetry
    (sending,), (consuming,) = hooks()
    assert (type(sending), type(consuming)) == (SendTracing, ConsumeTracing)
    assert (inspect.signature(Producer), inspect.signature(PushConsumer)) == signatures
    instrumentor.uninstrument()
    assert hooks() == ([], [])
    assert not before._hooks
    assert not instrumentor.is_instrumented_by_opentelemetry
    instrumentor.instrument()
    assert [len(found) for found in hooks()] == [1, 1]


def test_without_a_provider_nothing_is_recorded_and_nothing_fails() -> None:
    """The global providers of the API alone do nothing."""
    sending, called = Sending("shop", [Message("orders", b"paid")], "send"), [message("orders", b"paid")]
    hook = SendTracing()
    hook.before_send(sending)
    hook.after_send(sending)
    assert not sending.properties
    call: Any = watched(lambda messages, context: len(messages), "billing", [ConsumeTracing()])  # type: ignore[arg-type, return-value]
    assert call(called, orderly_context(called)) == 1


def test_instrumentor_is_the_entry_point_of_opentelemetry_instrument() -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["opentelemetry_instrumentor"]
    module, _, name = declared["lockstep"].partition(":")
    found = getattr(import_module(module), name)
    assert found is LockstepInstrumentor
    found().instrument(skip_dep_check=True)
    found().uninstrument(skip_dep_check=True)

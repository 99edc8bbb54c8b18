"""The hooks of OpenTelemetry: what is whose parent, and where a context ends."""

from typing import Any

from opentelemetry import propagate
from opentelemetry.context import Context, detach
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lockstep.client import Consuming, OrderlyContext
from lockstep.otel import tracing
from lockstep.otel.tracing import ConsumeTracing
from sweep.mutants.registry import Patches, mutant

TRACING = "tests/unit/otel/test_tracing.py"


@mutant("swarm", aimed=f"{TRACING}::test_batch_has_a_trace_of_its_own_with_links_to_its_messages")
def a_batch_has_one_parent(patch: Patches) -> None:
    """The call of a batch has links to all its messages, and none of them is its parent."""
    patch.set(tracing, "_origin", lambda messages: (tracing.context_of(messages[0]), []))


@mutant("swarm", aimed=f"{TRACING}::test_context_of_a_call_ends_with_it")
def context_leaks_into_the_next_call(patch: Patches) -> None:
    """When a call ends, the context before it is restored."""
    patch.set(tracing, "detach", lambda token: None)


@mutant("swarm", aimed=f"{TRACING}::test_trace_continues_over_attempts_a_dead_letter_and_its_replay")
def attempts_are_new_traces(patch: Patches) -> None:
    """Every attempt of a message is a child of its send."""
    before: Any = ConsumeTracing.before_consume

    def before_consume(self: ConsumeTracing, consuming: Consuming) -> None:
        again = isinstance(consuming.context, OrderlyContext) and consuming.context.attempt > 0
        origin = tracing._origin
        if again:
            vars(tracing)["_origin"] = lambda messages: (Context(), [])
        try:
            before(self, consuming)
        finally:
            vars(tracing)["_origin"] = origin

    patch.set(ConsumeTracing, "before_consume", before_consume)


@mutant("swarm", aimed=f"{TRACING}::test_baggage_of_the_caller_is_in_the_listener")
def baggage_is_dropped(patch: Patches) -> None:
    """A message carries the baggage of its sender to the listener."""
    patch.set(propagate, "inject", TraceContextTextMapPropagator().inject)


@mutant("swarm", aimed=f"{TRACING}::test_plain_listener_has_the_context_in_its_thread")
def thread_listeners_lose_the_context(patch: Patches) -> None:
    """The span is the current one in the thread of a plain listener."""
    before: Any = ConsumeTracing.before_consume

    def before_consume(self: ConsumeTracing, consuming: Consuming) -> None:
        before(self, consuming)
        running = consuming.memory[self]
        detach(running.token)
        running.token = None

    patch.set(ConsumeTracing, "before_consume", before_consume)

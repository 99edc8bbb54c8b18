"""Traces and metrics by OpenTelemetry, through the hooks of producers and consumers. See docs/operations.md.

from lockstep.otel import LockstepInstrumentor

LockstepInstrumentor().instrument()                 # every Producer and PushConsumer made from now on
producer.add_hook(SendTracing())                    # or one producer
consumer.add_hook(ConsumeTracing())                 # and one consumer
"""

from lockstep.runtime.extras import with_advice

try:
    from lockstep.otel.instrumentor import LockstepInstrumentor
    from lockstep.otel.tracing import ConsumeTracing, SendTracing, context_of
except ModuleNotFoundError as error:
    raise with_advice(error) from None

__all__ = ["ConsumeTracing", "LockstepInstrumentor", "SendTracing", "context_of"]

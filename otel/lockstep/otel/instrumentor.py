"""Adds the hooks to every producer and push consumer of the process, also without a change of the program (`opentelemetry-instrument`)."""

import functools
from collections.abc import Callable
from typing import Any

from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from lockstep.client import Producer, PushConsumer
from lockstep.otel.tracing import ConsumeTracing, SendTracing

_constructors: dict[type[Any], Callable[..., None]] = {}
"""The original constructors of the instrumented classes."""


class LockstepInstrumentor:
    """Adds SendTracing to every Producer, and ConsumeTracing to every PushConsumer, that is made between `instrument` and `uninstrument`.

    That includes the producers of `lockstep.client.sync`. Instances that exist already are not changed.
    """

    def instrument(
        self, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None, **_: object
    ) -> None:
        """Instrument the classes. If they are instrumented already, this changes nothing.

        Args:
            tracer_provider, meter_provider: Default: the global ones.
        """
        if not _constructors:
            _add_hook(Producer, SendTracing(tracer_provider=tracer_provider, meter_provider=meter_provider))
            _add_hook(PushConsumer, ConsumeTracing(tracer_provider=tracer_provider, meter_provider=meter_provider))

    def uninstrument(self, **_: object) -> None:
        """Restore the classes. Hooks that producers and consumers have stay."""
        while _constructors:
            owner, construct = _constructors.popitem()
            owner.__init__ = construct

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Return whether the classes are instrumented."""
        return bool(_constructors)


def _add_hook(owner: type[Any], hook: object) -> None:
    original = _constructors[owner] = owner.__init__

    @functools.wraps(original)
    def construct(self: Any, /, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.add_hook(hook)

    owner.__init__ = construct

"""Test what you build on lockstep: a cluster in memory under a virtual clock, chaos from a seed, an order checker. docs/testing.md.

The names below are loaded when they are first used: pytest imports this package for its plugin at every start.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.testing.chaos import FAULTS, Chaos
    from lockstep.testing.clock import TestClock
    from lockstep.testing.cluster import TestCluster
    from lockstep.testing.errors import NotReachedError, OnlySimulatedError, OrderViolationError, WorkerFailedError
    from lockstep.testing.messages import concurrently_context, message, orderly_context
    from lockstep.testing.order import OrderChecker
    from lockstep.testing.run import simulate

_HOMES = {
    "FAULTS": "chaos",
    "Chaos": "chaos",
    "NotReachedError": "errors",
    "OnlySimulatedError": "errors",
    "OrderChecker": "order",
    "OrderViolationError": "errors",
    "TestClock": "clock",
    "TestCluster": "cluster",
    "WorkerFailedError": "errors",
    "concurrently_context": "messages",
    "message": "messages",
    "orderly_context": "messages",
    "simulate": "run",
}

__all__ = [
    "FAULTS",
    "Chaos",
    "NotReachedError",
    "OnlySimulatedError",
    "OrderChecker",
    "OrderViolationError",
    "TestClock",
    "TestCluster",
    "WorkerFailedError",
    "concurrently_context",
    "message",
    "orderly_context",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from lockstep.runtime.extras import with_advice

        raise with_advice(error) from None

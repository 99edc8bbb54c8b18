"""The errors of a test with a cluster."""

from lockstep.protocol.errors import LockstepError


class OnlySimulatedError(LockstepError):
    """An operation needs the simulator and was called on real processes. Under `pytest --lockstep-real` the test is skipped."""


class NotReachedError(AssertionError):
    """A condition did not become true in time."""


class WorkerFailedError(AssertionError):
    """A process of the cluster failed, and the test did not call `cluster.failures`."""


class OrderViolationError(AssertionError):
    """An OrderChecker found a violation."""

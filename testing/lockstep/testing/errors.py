"""What goes wrong in a test with a cluster."""

from lockstep.protocol.errors import LockstepError


class OnlySimulatedError(LockstepError):
    """Asked of real processes what only the simulator can do. Under `pytest --lockstep-real` the test is skipped."""


class NotReachedError(AssertionError):
    """What was awaited did not come in time."""


class WorkerFailedError(AssertionError):
    """A process of the cluster failed, and the test did not look at it (`cluster.failures`)."""


class OrderViolationError(AssertionError):
    """What an OrderChecker found."""

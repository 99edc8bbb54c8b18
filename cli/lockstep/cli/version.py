"""What `lockstep --version` prints."""

from importlib.metadata import version

from lockstep.protocol.native import implementation
from lockstep.runtime.extras import DISTRIBUTION


def describe_version() -> str:
    """Return the version of the distribution, and whether the native kernels run."""
    return f"lockstep {version(DISTRIBUTION)} ({implementation()})"

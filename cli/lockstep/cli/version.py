"""What `lockstep --version` prints."""

from lockstep.protocol.native import implementation
from lockstep.runtime.extras import VERSION


def describe_version() -> str:
    """Return the version of the distribution, and whether the native kernels run."""
    return f"lockstep {VERSION} ({implementation()})"

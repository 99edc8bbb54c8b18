"""The compiled kernels, if they are installed and may be used (ADR 27). `kernels` is None if the Python forms run.

A kernel returns None for whatever it does not handle, and has changed nothing. The Python form of the same loop then decides: it is the law
that the kernels are tested against, and has the only copy of each error text.
"""

__all__ = ["KERNEL_VARIABLES", "implementation", "kernels", "reason"]

INTERFACE = 4
"""The signatures that this code calls. A library of another number was built from other sources."""

KERNEL_VARIABLES = frozenset({"LOCKSTEP_NATIVE", "LOCKSTEP_PURE_PYTHON"})
"""The variables of the environment that concern kernels: whether the installation builds them, and whether a process uses them."""

reason = ""
"""Why the Python forms run; empty if the kernels do."""

try:
    import lockstep.protocol._native as kernels

    if kernels.INTERFACE != INTERFACE:
        raise ImportError("the kernels were built from other sources, install lockstep-mq again")
except ModuleNotFoundError:
    kernels = None  # type: ignore[assignment]
    reason = "the kernels were not built at the installation"
except ImportError as error:  # the library itself refuses if LOCKSTEP_PURE_PYTHON is set
    kernels = None  # type: ignore[assignment]
    reason = str(error)


def implementation() -> str:
    """Return which forms run, for people."""
    return f"pure Python: {reason}" if reason else "native kernels"

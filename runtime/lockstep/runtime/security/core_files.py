"""Core files of a process: the kernel writes its memory into one when it dies by a signal, with the keys and passwords in it."""

try:
    import resource
except ImportError:  # pragma: no cover
    resource = None  # type: ignore[assignment]


def forbid_core_files() -> None:
    """Let this process, and those that it starts, leave no core file, whatever their limit was."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

"""Finds objects that only the garbage collector would free."""

import gc
import logging
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lockstep.runtime.connections.endpoint

ROOT = Path(lockstep.runtime.connections.endpoint.__file__).parents[3]


@contextmanager
def collector_off() -> Iterator[None]:
    """Check at the end that no object of lockstep is left that nothing refers to, but for itself. The collector does not run in between.

    Before the end, the test must have dropped its own references. Nothing is logged: pytest keeps what is, with its tracebacks.
    """
    before = logging.root.manager.disable
    logging.disable()
    gc.collect()
    gc.disable()
    try:
        yield
        found = _unreachable()
    finally:
        gc.enable()
        logging.disable(before)
    assert not found, "only the garbage collector frees " + ", ".join(sorted(found))


def _unreachable() -> set[str]:
    flags = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return {name for name in map(_name_of, gc.garbage) if name is not None}
    finally:
        gc.set_debug(flags)
        gc.garbage.clear()


def _name_of(thing: object) -> str | None:
    """Return what is reported of an object: None for those of Python, of other packages (such as
    asyncio's transports) and of the simulator."""
    if isinstance(thing, types.FrameType):
        return f"frame of {thing.f_code.co_qualname}" if _is_ours(thing.f_code) else None
    if isinstance(thing, types.FunctionType):
        return f"function {thing.__qualname__}" if _is_ours(thing.__code__) else None
    if isinstance(thing, types.CoroutineType):
        return f"coroutine {thing.__qualname__}" if _is_ours(thing.cr_code) else None
    if isinstance(thing, types.MethodType):
        return _name_of(thing.__func__)
    if isinstance(thing, BaseException):
        return repr(thing)
    kind = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    return name if name.startswith("lockstep.") and not name.startswith("lockstep.testing.") else None


def _is_ours(code: types.CodeType) -> bool:
    path = Path(code.co_filename)
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] not in ("tests", "testing", ".venv")

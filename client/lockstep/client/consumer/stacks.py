"""Where a running call of a listener is: the file, line and function of each of its frames, the innermost last. Never values, which may
be secrets."""

import asyncio
import sys
from collections.abc import Iterable
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any

FRAMES_MAX = 12
"""Frames that are returned: the first one, and the innermost."""
WALKED_MAX = 1_000
"""Frames that are looked at."""
PREFIX = "lockstep."
"""Frames of modules with this prefix, or without a name, are left out before the first frame of the application."""

Place = tuple[CodeType, int, str]
"""A frame's code, its line and its module."""


def stack_of_task(task: "asyncio.Task[Any]") -> tuple[str, ...]:
    """Return the stack of what a task awaits. It is not the running task."""
    places: list[Place] = []
    awaited: object = task.get_coro()
    while awaited is not None and len(places) < WALKED_MAX:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None) or getattr(awaited, "ag_frame", None)
        if frame is None:
            break
        places.append(_place(frame))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None) or getattr(awaited, "ag_await", None)
    return _shown(places)


def stack_of_thread(ident: int) -> tuple[str, ...]:
    """Return the stack of a thread; empty if it has ended."""
    places: list[Place] = []
    frame = sys._current_frames().get(ident)
    while frame is not None and len(places) < WALKED_MAX:
        places.append(_place(frame))
        frame = frame.f_back
    return _shown(reversed(places))


def _place(frame: FrameType) -> Place:
    return frame.f_code, frame.f_lineno, frame.f_globals.get("__name__", "")


def _shown(places: Iterable[Place]) -> tuple[str, ...]:
    """Return the frames from the first one of the application on."""
    shown: list[str] = []
    for code, line, module in places:
        if shown or not (module.startswith(PREFIX) or module == "threading"):
            shown.append(f"{'/'.join(PurePath(code.co_filename).parts[-2:])}:{line} in {code.co_qualname}")
    return tuple(shown if len(shown) <= FRAMES_MAX else [shown[0], *shown[1 - FRAMES_MAX :]])

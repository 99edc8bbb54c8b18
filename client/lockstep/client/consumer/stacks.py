"""Where a running call of a listener is: the file, line and function of each of its frames, the innermost last. Never values, which may
be secrets."""

import asyncio
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Any, cast

from lockstep.protocol.object_text import encodable

FRAMES_MAX = 12
"""Frames that are returned: the first one, the innermost one of the application, and the innermost ones."""
WALKED_MAX = 1_000
"""Frames that are looked at."""
PREFIX = "lockstep."
"""Frames of modules with this prefix, or without a name, are left out before the first frame of the application."""
PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})
STANDARD_LIBRARY = tuple({os.path.join(folder, "") for folder in (sysconfig.get_path("stdlib"), os.path.dirname(os.__file__))})

FramePlace = tuple[CodeType, int, str]
"""A frame's code, its line and its module."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack as text."""

    frames: tuple[str, ...] = ()
    """As "app/billing.py:41 in bill", the innermost last."""
    own: str | None = None
    """The innermost of `frames` that belongs to the application; None if none does."""


def stack_of_task(task: "asyncio.Task[Any]") -> Stack:
    """Return the stack of what a task awaits; empty if it has ended. It is not the running task."""
    places: list[FramePlace] = []
    awaited: object = task.get_coro()
    while awaited is not None and len(places) < WALKED_MAX:
        frame = _attribute(awaited, "cr_frame", "gi_frame", "ag_frame")
        if type(frame) is not FrameType:
            break
        places.append(_place(frame))
        awaited = _attribute(awaited, "cr_await", "gi_yieldfrom", "ag_await")
    return _shown(places)


def stack_of_thread(ident: int) -> Stack:
    """Return the stack of a thread; empty if it has ended."""
    places: list[FramePlace] = []
    frame = sys._current_frames().get(ident)
    while frame is not None and len(places) < WALKED_MAX:
        places.append(_place(frame))
        frame = frame.f_back
    return _shown(reversed(places))


def _attribute(awaited: object, *names: str) -> object:
    """Return the first of these attributes that is there. What a task awaits may be an object of the user's."""
    for name in names:
        try:
            found = getattr(awaited, name, None)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # listener: the stack ends where it can't be read
            return None
        if found is not None:
            return cast(object, found)
    return None


def _place(frame: FrameType) -> FramePlace:
    module = frame.f_globals.get("__name__")
    return frame.f_code, frame.f_lineno, module if isinstance(module, str) else ""


def _shown(places: Iterable[FramePlace]) -> Stack:
    """Return the frames from the first one of the application on."""
    shown: list[FramePlace] = []
    for place in places:
        module = place[2]
        if shown or not (module.startswith(PREFIX) or module == "threading"):
            shown.append(place)
    own = innermost_own(shown)
    return Stack(tuple(_text(shown[index]) for index in _kept(len(shown), own)), None if own is None else _text(shown[own]))


def _kept(count: int, own: int | None) -> Iterable[int]:
    """Return the indices of the frames that are returned."""
    if count <= FRAMES_MAX:
        return range(count)
    outer = [0, own] if own is not None and 0 < own <= count - FRAMES_MAX else [0]
    return [*outer, *range(count - FRAMES_MAX + len(outer), count)]


def innermost_own(places: list[FramePlace]) -> int | None:
    """Return the index of the innermost frame of the application's own code, or None if there is none.

    That is neither the standard library nor an installed package nor lockstep. An application that is itself installed as a package is
    recognized by its first frame.
    """
    own = (index for index in reversed(range(len(places))) if not _is_library(places[index]))
    found = next(own, None)
    if found is not None or not places or not _is_installed(places[0]):
        return found
    package = _package(places[0])
    return next(index for index in reversed(range(len(places))) if _package(places[index]) == package)


def _is_library(place: FramePlace) -> bool:
    code, _, module = place
    file = code.co_filename
    return f"{module}.".startswith(PREFIX) or file.startswith((*STANDARD_LIBRARY, "<frozen ")) or _is_installed(place)


def _is_installed(place: FramePlace) -> bool:
    return not PACKAGE_FOLDERS.isdisjoint(PurePath(place[0].co_filename).parts)


def _package(place: FramePlace) -> str:
    return place[2].partition(".")[0]


def _text(place: FramePlace) -> str:
    code, line, _ = place
    return encodable(f"{'/'.join(PurePath(code.co_filename).parts[-2:])}:{line} in {code.co_qualname}")

"""Run one call by the compiled kernels and by the Python form (ADR 27), and compare."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from lockstep.protocol.native import implementation, kernels

T = TypeVar("T")

needs_kernels = pytest.mark.skipif(kernels is None, reason=implementation())


@contextmanager
def pure(*modules: ModuleType) -> Iterator[None]:
    """Run the Python forms of these modules inside the block."""
    patches = [patch.object(module, "kernels", None) for module in modules]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


class Counting:
    """Stands for the kernels in a module, and counts their calls and how many of them declined."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.declined: dict[str, int] = {}

    def __getattr__(self, name: str) -> Callable[..., object]:
        kernel: Callable[..., object] = getattr(kernels, name)

        def counted(*arguments: Any) -> object:
            result = kernel(*arguments)
            self.calls[name] = self.calls.get(name, 0) + 1
            self.declined[name] = self.declined.get(name, 0) + (result is None)
            return result

        return counted


def outcome(call: Callable[[], T]) -> "T | tuple[type[Exception], str]":
    """Return what the call returns, or the type and the text of its error."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def mutations(data: bytes) -> Iterator[bytes]:
    """Yield `data` with each bit flipped and each byte replaced, cut at each length, and with a byte more at either end."""
    for at, byte in enumerate(data):
        for value in {*(byte ^ 1 << bit for bit in range(8)), 0, 1, 2, 0xFF} - {byte}:
            yield data[:at] + bytes([value]) + data[at + 1 :]
        yield data[:at]
        yield data[:at] + data[at + 1 :]
    yield from (data + b"\0", b"\0" + data)

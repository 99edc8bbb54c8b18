"""The result of a checker."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """A law was broken at `t` (global seconds). The text names queue, epochs, times and processes, to find the interleaving by."""

    law: str
    t: float
    text: str

    def __str__(self) -> str:
        return f"{self.law} at {self.t:.3f}: {self.text}"


def who(machine: str, process: int) -> str:
    """Return a process for the text of a violation."""
    return f"{machine}#{process}"

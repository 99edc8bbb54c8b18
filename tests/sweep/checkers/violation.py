"""The result of a checker."""

from dataclasses import dataclass

from sweep.history import Event


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken law, at `t` (global seconds). The text names queue, epochs, times and processes, which identify the interleaving."""

    law: str
    t: float
    text: str

    def __str__(self) -> str:
        return f"{self.law} at {self.t:.3f}: {self.text}"


def process_name(event: Event) -> str:
    """Return the machine and the process of an event, for the text of a violation."""
    return f"{event.machine}#{event.process}"

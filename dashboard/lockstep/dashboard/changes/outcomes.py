"""The outcomes of confirmed plans. A plan is carried out once: not by a second click, nor when its page is reloaded. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

KEPT_MAX = 1_000
UNDO_MAX = 50
"""Commands that undo a change which a page shows."""
NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """The outcome of a plan."""

    done: tuple[str, ...] = ()
    """Sentences."""
    error: str | None = None
    """Why it failed."""


class Outcomes:
    """The outcomes of the last plans, by the nonce of the page that showed the plan."""

    def __init__(self) -> None:
        self._outcomes: dict[str, PlanOutcome | None] = {}
        """None while the plan is carried out."""

    def __contains__(self, nonce: str) -> bool:
        return nonce in self._outcomes

    def begin(self, nonce: str) -> None:
        """Note that a plan is carried out from here on. The oldest outcomes are forgotten above KEPT_MAX."""
        assert nonce not in self._outcomes, "a plan is carried out once"
        self._outcomes[nonce] = None
        while len(self._outcomes) > KEPT_MAX:
            del self._outcomes[next(iter(self._outcomes))]

    def end(self, nonce: str, outcome: PlanOutcome) -> None:
        """Record the outcome of a plan, unless it has one."""
        if self._outcomes.get(nonce) is None:
            self._outcomes[nonce] = outcome

    def of(self, nonce: str) -> PlanOutcome | None:
        """Return the outcome of a plan; None while it is carried out. Raise KeyError for one that was not confirmed, or is forgotten."""
        return self._outcomes[nonce]


def sentences(lines: Sequence[str], undo: Sequence[str]) -> tuple[str, ...]:
    """Return what was done as sentences, and the commands that undo it."""
    found = [f"{line[:1].upper()}{line[1:]}." for line in lines]
    if undo:
        found += ["To undo it:", *undo[:UNDO_MAX]]
    return (*found, *([f"… and {len(undo) - UNDO_MAX} more commands."] if len(undo) > UNDO_MAX else []))

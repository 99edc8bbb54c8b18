"""What confirmed plans have done. A plan is carried out once: not by a second click, nor when its answer is reloaded. Pure."""

import re

KEPT_MAX = 1_000
NONCE = re.compile(r"[0-9a-f]{32}", re.ASCII)

Done = tuple[str, ...]


class Outcomes:
    """The outcomes of the last plans, by the nonce of the page that showed the plan."""

    def __init__(self) -> None:
        self._done: dict[str, Done | None] = {}
        """None while the plan is carried out."""

    def __contains__(self, nonce: str) -> bool:
        return nonce in self._done

    def begin(self, nonce: str) -> None:
        """Note that a plan is carried out from here on. The oldest outcomes are forgotten above KEPT_MAX."""
        assert nonce not in self._done, "a plan is carried out once"
        self._done[nonce] = None
        while len(self._done) > KEPT_MAX:
            del self._done[next(iter(self._done))]

    def end(self, nonce: str, done: Done) -> None:
        """Note what was done."""
        self._done[nonce] = done

    def release(self, nonce: str) -> None:
        """Note that a plan is no longer carried out. If it has not ended, it failed, and may be confirmed again."""
        if nonce in self._done and self._done[nonce] is None:
            del self._done[nonce]

    def of(self, nonce: str) -> Done | None:
        """Return what was done; None while that goes on. Raise KeyError for a plan that was not confirmed, or is forgotten."""
        return self._done[nonce]

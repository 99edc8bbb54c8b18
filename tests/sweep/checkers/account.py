"""The offsets that a consumer has finished in one queue; no commit may cover more. Used for ordered epochs and concurrent generations."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Account:
    """One epoch, or one process in one generation, at one queue."""

    committed: int
    """Every offset below was accounted for when it was committed, here or by an earlier consumer."""
    finished: set[int] = field(default_factory=set)
    """Finished offsets that are not committed yet."""

    def commit(self, upto: int, may_pass: Callable[[int], bool]) -> int | None:
        """Commit `upto`. Return the first offset below it that is neither finished nor may be passed over; None if there is none."""
        open_ = range(self.committed, upto)
        missed = next((offset for offset in open_ if offset not in self.finished and not may_pass(offset)), None)
        self.finished.difference_update(open_)
        self.committed = max(self.committed, upto)
        return missed

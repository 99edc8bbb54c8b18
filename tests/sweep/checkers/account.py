"""What a consumer has finished of one queue: no commit may cover more. The same for ordered epochs and for concurrent generations."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Account:
    """One epoch, or one process in one generation, at one queue."""

    committed: int
    """Everything below was accounted for when it was committed, here or by whoever was here before."""
    finished: set[int] = field(default_factory=set)
    """Of what is not committed yet."""

    def commit(self, upto: int, may_pass: Callable[[int], bool]) -> int | None:
        """Progress goes to `upto`. The first offset below it that is neither finished nor may be passed over; None: there is none."""
        open_ = range(self.committed, upto)
        missed = next((offset for offset in open_ if offset not in self.finished and not may_pass(offset)), None)
        self.finished.difference_update(open_)
        self.committed = max(self.committed, upto)
        return missed

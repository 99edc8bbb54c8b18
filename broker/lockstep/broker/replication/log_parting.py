"""Where the logs of a master and of a replica part. Pure.

Every term has one writer. So two logs that hold the same term, begun at the same offset by the same writer, are equal up to the end of that
term in the shorter one. Kafka: KIP-101, leader epochs. Without a register two masters may begin terms of the same number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Term(NamedTuple):
    """A term of the log."""

    number: int
    begin: int
    """Where the log ended before anything of the term was appended."""
    assumed_loss: bool
    """Whether its start announced that something may have been lost: a promotion of a replica that may lack what was acknowledged."""
    writer: int
    """32 bits that its start has drawn."""

    @property
    def key(self) -> tuple[int, int, int]:
        """What no other term of any copy of the log has."""
        return self.number, self.begin, self.writer


class PartingAction(StrEnum):
    FOLLOW = "follow"
    """Ask for what is behind the replica's end."""
    TRUNCATE = "truncate"
    """Cut the log first: what is behind `keep` was never confirmed, or was announced as lost."""
    INSTALL = "install"
    """Begin with an empty store: the master has not the log that this one would go on from."""
    REFUSE = "refuse"
    """Nothing: the replica has confirmed messages that the master lacks, and nobody announced their loss."""


@dataclass(frozen=True, slots=True)
class Parting:
    """What a replica has to do."""

    action: PartingAction
    keep: int = 0
    """Where the logs part."""


def end_of_term(terms: Sequence[Term], index: int, log_end: int) -> int:
    return terms[index + 1].begin if index + 1 < len(terms) else log_end


def parting(own: Sequence[Term], own_end: int, confirmed: int, master: Sequence[Term], master_start: int, master_end: int) -> Parting:
    """Return what a replica with the terms `own` and a log up to `own_end` does at a master with the terms `master`.

    `confirmed` is up to where the replica knows that its log was confirmed. Terms are in the order of the log. Terms that ended before the
    log begins need not be listed.
    """
    begins = {term.key: index for index, term in enumerate(master)}
    common = next(((index, begins[term.key]) for index, term in reversed(list(enumerate(own))) if term.key in begins), None)
    if common is None:
        return Parting(PartingAction.INSTALL)
    own_index, master_index = common
    keep = min(end_of_term(own, own_index, own_end), end_of_term(master, master_index, master_end))
    if keep < master_start:
        return Parting(PartingAction.INSTALL)
    if keep >= own_end:
        return Parting(PartingAction.FOLLOW, own_end)
    if keep < confirmed and not any(term.assumed_loss for term in master[master_index + 1 :]):
        return Parting(PartingAction.REFUSE, keep)
    return Parting(PartingAction.TRUNCATE, keep)

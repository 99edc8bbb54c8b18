"""Whether a master may open its ports: its replicas are asked first. Pure.

Without a referee the word of the operator is "the old master is down". This is what a master that was only away finds out by itself:

- another copy has a higher term: somebody promoted it, or this store is a backup from before;
- a member of the set has a longer log, or has all of this one while this store may have lost some of it with its machine: this store is not
  the one to go on from;
- a member of the set does not answer: it may be one of these. The start waits for it. Nobody else is waited for.

A master's log is written before its replicas get the bytes. So no replica is longer after a mere kill.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The state of a copy of the log, as a start or REPLICA_STATUS has it."""

    term: int
    """The last term of its log."""
    end: int
    may_have_forgotten: bool
    """Whether it may lack bytes that it had acknowledged: its machine crashed under async flush, or it was restored from a backup."""
    is_replica: bool = False
    """Whether it is no master now."""


@dataclass(frozen=True, slots=True)
class StartVerdict:
    """`refused`: why the start must not go on, because of the copy at `refused_by`. Else `waiting_for`: addresses of members without whose
    answer it can't. Else it may open."""

    refused: str = ""
    refused_by: str = ""
    waiting_for: tuple[str, ...] = ()


def judge_start(
    name: str, own: CopyStatus, members: Mapping[str, str], answers: Mapping[str, CopyStatus | None], addresses: Mapping[str, str]
) -> StartVerdict:
    """Return whether a master may open.

    `members`: member id → address of the set without this store. `answers`: member id → status, None for one that does not answer, of all
    replicas that this store knows (`addresses`).
    """
    later = [(status.is_replica, addresses[member], status.term) for member, status in answers.items() if status and status.term > own.term]
    if later:
        is_replica, address, term = min(later, key=lambda each: (each[0], -each[2]))
        terms, then = f"(term {term}, here {own.term})", f"start this one with --replica-of {address}"
        if not is_replica:
            return StartVerdict(f"broker {name} was promoted at {address} {terms}: {then}", address)
        what = f"this store is older than the replica of broker {name} at {address} {terms}"
        promote = f"if no other copy is the master, promote that one by `lockstep replica promote {address}`"
        return StartVerdict(f"{what}: {promote}, then {then}", address)
    for member, address in members.items():
        status = answers.get(member)
        if status is None or (status.may_have_forgotten and not own.may_have_forgotten):
            continue
        if status.end > own.end or (own.may_have_forgotten and not status.may_have_forgotten and status.end >= own.end):
            ends = f"its log ends at {status.end}, this one at {own.end}"
            why = "; this store may have lost acknowledged messages with its machine" if own.may_have_forgotten else ""
            what = f"the replica of broker {name} at {address} has more ({ends}{why})"
            promote = f"promote it by `lockstep replica promote {address}`"
            return StartVerdict(f"{what}: {promote}, then start this one with --replica-of {address}", address)
    waiting = tuple(address for member, address in members.items() if answers.get(member) is None)
    return StartVerdict(waiting_for=waiting)

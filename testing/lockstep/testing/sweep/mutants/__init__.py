"""Rules of ours, switched off by name: what a sweep must notice."""

from lockstep.testing.sweep.mutants import (
    broadcast,
    broker,
    client,
    clocks,
    copies,
    deadlines,
    fences,
    hands,
    layouts,
    log,
    members,
    peers,
    readers,
    restarts,
    sends,
    sums,
)
from lockstep.testing.sweep.mutants.registry import MUTANTS, Mutant, switched_off

__all__ = [
    "MUTANTS",
    "Mutant",
    "broadcast",
    "broker",
    "client",
    "clocks",
    "copies",
    "deadlines",
    "fences",
    "hands",
    "layouts",
    "log",
    "members",
    "peers",
    "readers",
    "restarts",
    "sends",
    "sums",
    "switched_off",
]

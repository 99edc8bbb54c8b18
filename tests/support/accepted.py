"""Commits that brokers accepted: the offsets that each consumer knows to be committed, and whether any was accepted twice.

A worker appends a line whenever a broker's response moves the committed offset of a queue that it holds: both offsets and the epoch.
This is the consumers' view of invariants O1 and O2, without a request to a broker.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from lockstep.protocol.order import fence_falls


@dataclass(frozen=True, slots=True)
class Accepted:
    """Offsets first ≤ offset < end of a queue were accepted from `consumer` for the first time, as it sees it."""

    consumer: str
    queue: str
    epoch: int
    first: int
    end: int
    at_us: int
    """Monotonic clock of the machine."""

    def line(self) -> str:
        return json.dumps([self.consumer, self.queue, str(self.epoch), self.first, self.end, self.at_us])


def parse_accepted(line: str) -> Accepted:
    consumer, queue, epoch, first, end, at_us = json.loads(line)
    return Accepted(consumer, queue, int(epoch), first, end, at_us)


def accepted_twice(accepted: Iterable[Accepted]) -> list[str]:
    """Return faults: an offset that two responses cover for the first time, or a later offset that was accepted under a lower epoch."""
    of_queue: dict[str, list[Accepted]] = {}
    for each in accepted:
        of_queue.setdefault(each.queue, []).append(each)
    faults = []
    for queue in sorted(of_queue):
        rising = sorted(of_queue[queue], key=lambda each: (each.first, each.end))
        for before, after in pairwise(rising):
            if after.first < before.end:
                both = f"{before.consumer} (epoch {before.epoch}) and {after.consumer} (epoch {after.epoch})"
                faults.append(f"{queue}: offset {after.first} was accepted from {both}")
        for before, after in fence_falls(rising, lambda each: each.epoch):
            faults.append(f"{queue}: offset {after.first} was accepted under epoch {after.epoch}, those before it under {before.epoch}")
    return faults

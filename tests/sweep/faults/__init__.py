"""The kinds of faults."""

from collections.abc import Callable

from sweep.faults import access, alone, brokers, disks, elections, members, network, operations, processes, replicas, rot, starts, stores
from sweep.storm import Storm

Kind = Callable[[Storm], None]

FAULTS: dict[str, Kind] = {
    kind.__name__: kind
    for module in (processes, brokers, disks, network, operations, rot, alone, members, starts, stores, access, replicas, elections)
    for kind in module.KINDS
}
"""By name. A seed draws from them in this order: a new kind at the end of its file changes the universes of most seeds."""


def every_fault() -> tuple[str, ...]:
    """Return the kinds that a swarm draws from."""
    return tuple(FAULTS)

"""Groups that begin while the cluster works: at the end of every queue, or at a time."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.protocol.bodies import ConsumeFromWhere
from sweep.history import Reached

if TYPE_CHECKING:
    from sweep.universe import Universe

AGO_MAX_S = 30.0


@dataclass(frozen=True, slots=True)
class Begin:
    """A group's start policy. `t`: what its time means on the universe's clock."""

    where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET
    timestamp_ms: int | None = None
    t: float = 0.0


def begin_one(universe: "Universe") -> str | None:
    """The next of the groups that have not begun does. None: all have."""
    setting, random = universe.setting, universe.random
    group = next((name for name in setting.late_groups if name not in universe.begun), None)
    if group is not None:
        by_time, ago_s = random.random() < 0.4, random.uniform(0, AGO_MAX_S)
        machine = universe.machine(next(iter(universe.brokers.values())))
        begin = Begin(ConsumeFromWhere.LAST_OFFSET)
        if by_time:
            begin = Begin(ConsumeFromWhere.TIMESTAMP, int((machine.wall_s() - ago_s) * 1_000), universe.loop.now - ago_s)
        universe.begun[group] = begin
        universe.history.append(Reached(*universe.place(), "group began", f"{group} {begin}"))
    return group

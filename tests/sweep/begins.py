"""Lets groups begin while the cluster works: at the end of every queue, or at a time."""

from lockstep.protocol.bodies import ConsumeFromWhere
from sweep.universe import Begin, Universe

AGO_MAX_S = 30.0


def begin_one(universe: Universe) -> str | None:
    """Let the next group begin, and return it; None if all have begun."""
    setting, random = universe.setting, universe.random
    group = next((name for name in setting.late_groups if name not in universe.begun), None)
    if group is not None:
        by_time, ago_s = random.random() < 0.4, random.uniform(0, AGO_MAX_S)
        machine = universe.machine(next(iter(universe.brokers.values())))
        begin = Begin(ConsumeFromWhere.LAST_OFFSET)
        if by_time:
            begin = Begin(ConsumeFromWhere.TIMESTAMP, int((machine.wall_s() - ago_s) * 1_000), universe.loop.now - ago_s)
        universe.begun[group] = begin
        universe.reached("group began", f"{group} {begin}")
    return group

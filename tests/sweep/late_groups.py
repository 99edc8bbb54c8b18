"""Lets groups begin while the cluster works: at the end of every queue, or at a time."""

from lockstep.protocol.bodies import ConsumeFromWhere
from sweep.universe import StartPolicy, Universe

AGO_MAX_S = 30.0


def start_next_group(universe: Universe) -> str | None:
    """Let the next group begin, and return it; None if all have begun."""
    setting, random = universe.setting, universe.random
    group = next((name for name in setting.late_groups if name not in universe.start_policies), None)
    if group is not None:
        by_time, ago_s = random.random() < 0.4, random.uniform(0, AGO_MAX_S)
        machine = universe.machine(next(iter(universe.brokers.values())))
        begin = StartPolicy(ConsumeFromWhere.LAST_OFFSET)
        if by_time:
            begin = StartPolicy(ConsumeFromWhere.TIMESTAMP, int((machine.wall_s() - ago_s) * 1_000), universe.loop.now - ago_s)
        universe.start_policies[group] = begin
        universe.record_reached("group began", f"{group} {begin}")
    return group

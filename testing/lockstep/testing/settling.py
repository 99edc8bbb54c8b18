"""Describes what a group has not consumed yet."""

from collections.abc import Callable

from lockstep.operations.groups.group_report import GroupReport, QueueLine


def unsettled(report: GroupReport | None, name_of: Callable[[str], str]) -> str:
    """Return a line for each queue with unconsumed messages. `name_of` maps a client id to the name of its program."""
    if report is None:
        return "no broker knows the group: has a consumer of it ever started?"
    waiting = [line for line in report.queues if not line.reached or line.lag]
    if report.queues and not waiting:
        return ""
    head = f"lag {report.lag}" if report.queues else "it has no queues: is its topic created?"
    return "\n  ".join([head, *(_line(line, name_of) for line in waiting)])


def _line(line: QueueLine, name_of: Callable[[str], str]) -> str:
    queue = f"{line.topic}@{line.broker}:{line.queue_id}"
    if not line.reached:
        return f"{queue}  the broker does not respond"
    owner = "no owner" if line.owner is None else f"owner {name_of(line.owner)}"
    failed = f", failed {line.attempts} times" if line.attempts else ""
    return f"{queue}  {owner}, {line.committed_offset or 0} of {line.max_offset} done{failed}"

"""Compute a topic's next layout for a command, and read the counts of its options. Pure."""

from collections.abc import Mapping

from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.layout_counts import with_counts
from lockstep.protocol.topics.queue import TopicLayout


def alter_layout(layout: TopicLayout, counts: Mapping[str, tuple[int, int]], *, writer: int) -> TopicLayout:
    """Return `with_counts` of the layout.

    Raises:
        OperationError: No queue to write to would be left.
    """
    after = with_counts(layout, counts, writer=writer)
    if after is not layout and not after.write_total:
        raise OperationError(
            f"nothing was changed: topic {after.topic} would have no queue to write to. Give another broker queues of it first "
            f"(`lockstep topic alter {after.topic} --broker NAME --queues N`), or use `lockstep topic delete`"
        )
    return after


def parse_queue_counts(queues: int | None, write_queues: int | None, read_queues: int | None) -> tuple[int, int]:
    """Return the (write, read) counts per broker that the options specify. Raise ConfigError if they contradict each other."""
    if queues is not None and (write_queues is not None or read_queues is not None):
        raise ConfigError("--queues sets both counts: leave out --write-queues and --read-queues")
    write, read = (queues, queues) if queues is not None else (write_queues, read_queues)
    if write is None or read is None:
        raise ConfigError("the number of queues is missing: use --queues N, or --write-queues N and --read-queues N")
    if write > read:
        raise ConfigError(f"--write-queues {write} is more than --read-queues {read}: messages in the other queues would never be consumed")
    return write, read

"""A topic's next layout. Pure. Queues that stay keep their numbers' owners; where the count of queues to write changes, order per key ends.

A broker's queue ids run on through its entries, each as long as the larger of its two counts: what is taken away goes from the end, what
is added comes in an entry of its own, which says since when its queues exist (a group that knew the topic before begins there at 0).
"""

from collections.abc import Collection

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout


def altered(layout: TopicLayout, brokers: Collection[str], *, write_count: int, read_count: int, writer: int) -> TopicLayout:
    """The layout with so many queues on each of `brokers`, one counter higher; the same layout where nothing would change.

    Where queues of a broker go away, a marker (LayoutEntry) says so: else the broker would append those in which messages lie.
    """
    counter = layout.version.counter + 1
    entries: list[LayoutEntry] = []
    left = dict.fromkeys(sorted(brokers), (write_count, read_count))
    shrunk = {name: None for name in left if layout.id_count(name) > max(write_count, read_count)}
    for entry in layout.entries:
        if entry.broker_name not in left or (entry.is_marker and entry.broker_name not in shrunk):
            entries.append(entry)
            continue
        write_left, read_left = left[entry.broker_name]
        write, read = min(entry.id_count, write_left), min(entry.id_count, read_left)
        left[entry.broker_name] = write_left - write, read_left - read
        if write or read:
            entries.append(LayoutEntry(entry.broker_name, write, read, entry.counter))
    entries += [LayoutEntry(name, write, read, counter) for name, (write, read) in left.items() if write or read]
    entries += [LayoutEntry(name, 0, 0, counter) for name in shrunk]
    if tuple(entries) == layout.entries:
        return layout
    return TopicLayout(layout.topic, LayoutVersion(counter, writer), tuple(entries))


def counts(queues: int | None, write_queues: int | None, read_queues: int | None) -> tuple[int, int]:
    """(write, read) queues on each broker as asked for. ConfigError."""
    if queues is not None and (write_queues is not None or read_queues is not None):
        raise ConfigError("--queues sets both counts: leave out --write-queues and --read-queues")
    write, read = (queues, queues) if queues is not None else (write_queues, read_queues)
    if write is None or read is None:
        raise ConfigError("say how many: --queues N, or --write-queues N and --read-queues N")
    if write > read:
        raise ConfigError(f"{write} queues to write and {read} to read: nobody would ever read the others")
    return write, read

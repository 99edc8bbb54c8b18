"""Compute a topic's next layout. Pure.

A broker's queue ids continue through its entries, each as long as the larger of its two counts. Queues are removed from the end. Added
queues come in an entry of their own, which records since when they exist (a group that knew the topic before begins there at 0).
If the number of writable queues changes, keys map to other queues and order per key ends.
"""

from collections.abc import Mapping

from lockstep.admin.options import CommandError
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.queue import LayoutEntry, LayoutVersion, TopicLayout


def alter_layout(layout: TopicLayout, counts: Mapping[str, tuple[int, int]], *, writer: int) -> TopicLayout:
    """Return the layout with these counts (broker → queues to write, to read) and the next counter, or `layout` itself if nothing would
    change.

    If queues of a broker are removed, a marker entry (LayoutEntry) records it: else the broker would add those that hold messages again.
    Its first entry always stays, if need be without queues: with a higher `TopicLayout.began` the brokers would take the layout for that of
    a topic that was created again, and delete all messages.

    Raises:
        CommandError: No queue to write to would be left.
    """
    counter = layout.version.counter + 1
    entries: list[LayoutEntry] = []
    remaining = {name: counts[name] for name in sorted(counts)}
    shrunk = {name: None for name in remaining if layout.id_count(name) > max(counts[name])}
    for entry in layout.entries:
        if entry.broker_name not in remaining or (entry.is_marker and entry.broker_name not in shrunk):
            entries.append(entry)
            continue
        write_remaining, read_remaining = remaining[entry.broker_name]
        write, read = min(entry.id_count, write_remaining), min(entry.id_count, read_remaining)
        remaining[entry.broker_name] = write_remaining - write, read_remaining - read
        is_first = all(earlier.broker_name != entry.broker_name for earlier in entries)
        if write or read or is_first:
            entries.append(LayoutEntry(entry.broker_name, write, read, entry.counter))
    entries += [LayoutEntry(name, write, read, counter) for name, (write, read) in remaining.items() if write or read]
    entries += [LayoutEntry(name, 0, 0, counter) for name in shrunk]
    if tuple(entries) == layout.entries:
        return layout
    after = TopicLayout(layout.topic, LayoutVersion(counter, writer), tuple(entries))
    assert after.began == layout.began, (layout, after)
    if not after.write_total:
        raise CommandError(
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

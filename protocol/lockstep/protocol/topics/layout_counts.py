"""Compute a topic's next layout from the number of queues that brokers are to have. Pure.

A broker's queue ids continue through its entries, each as long as the larger of its two counts. Queues are removed from the end. Added
queues come in an entry of their own, which records since when they exist (a group that knew the topic before begins there at 0).
If the number of writable queues changes, keys map to other queues and order per key ends.
"""

from collections.abc import Mapping

from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout


def with_counts(layout: TopicLayout, counts: Mapping[str, tuple[int, int]], *, writer: int) -> TopicLayout:
    """Return the layout with these counts (broker → queues to write, to read) and the next counter, or `layout` itself if nothing would
    change.

    If queues of a broker are removed, a marker entry (LayoutEntry) records it: else the broker would add those that hold messages again.
    Its first entry always stays, if need be without queues: with a higher `TopicLayout.began` the brokers would take the layout for that of
    a topic that was created again, and delete all messages.
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
    return after

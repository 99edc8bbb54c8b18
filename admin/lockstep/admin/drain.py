"""Take the queues of topics off a broker (`lockstep broker drain`, `lockstep topic alter --to`).

Each step leaves a state from which the same command continues:

    queues to write and read ─close_queues─▶ queues to read only ─drop_queues─▶ no queue
      in order (queue_move.py)                 when every group has consumed them, and nothing is delayed there
"""

import asyncio
from collections.abc import Collection

from lockstep.admin.client import AdminClient, by_name
from lockstep.admin.layout_change import alter_layout
from lockstep.admin.layout_publish import publish_layout
from lockstep.admin.options import CommandError, print_error
from lockstep.admin.queue_move import put_in_order
from lockstep.admin.topic_lag import read_lag
from lockstep.protocol.errors import TopicNotExistError
from lockstep.protocol.queue import TopicLayout

STEP_S = 0.5
REPORT_S = 5.0
"""How often a wait says what it waits for, if that does not change."""


async def close_queues(admin: AdminClient, topic: str, source: str, target: str | None, lost: Collection[str] = ()) -> None:
    """Close the queues of `source` to writers, and give `target` as many instead. Raise CommandError if groups lag too much."""
    layout = await _layout(admin, topic)
    count = 0 if layout is None else layout.write_count(source)
    if layout is None or not count:
        return
    counts = {source: (0, layout.read_count(source))}
    if target is not None:
        counts[target] = layout.write_count(target) + count, layout.read_count(target) + count
    after = alter_layout(layout, counts, writer=_writer(admin))
    held_ms = await put_in_order(admin, layout, after, lost)
    moved = f"{count} queues of {topic} on {source} are closed to writers" + (f", {count} added on {target}" if target else "")
    print_error(moved if held_ms is None else f"{moved}; order per key is kept: writes were held for {held_ms} ms")


async def drop_queues(admin: AdminClient, topics: Collection[str], source: str) -> None:
    """Wait until every group has consumed the queues of `source` and nothing is delayed there, then take them out of the layouts."""
    left = dict.fromkeys(topics)
    said, said_ms = "", 0
    while left:
        waits = []
        delayed = await _delayed_count(admin, source)
        if delayed:
            waits.append(f"{delayed} messages wait there for their delay or a retry")
        for topic in list(left):
            layout = await _layout(admin, topic)
            if layout is None or source not in layout.brokers:
                del left[topic]
                continue
            lag = await read_lag(admin, (), layout.queues_of(source))
            if lag.lags or lag.unknown:
                waits.append(f"{topic}: {lag if lag.lags else next(iter(lag.unknown.values()))}")
            elif not delayed:
                await publish_layout(admin, alter_layout(layout, {source: (0, 0)}, writer=_writer(admin)))
                print_error(f"topic {topic} has no queue on {source} any more")
                del left[topic]
        text, now_ms = f"waiting for the groups of {source}: {'; '.join(waits)}", admin.host.clock.monotonic_ms()
        if waits and (text != said or now_ms - said_ms >= REPORT_S * 1_000):
            print_error(text)
            said, said_ms = text, now_ms
        if left:
            await asyncio.sleep(STEP_S)


async def _layout(admin: AdminClient, topic: str) -> TopicLayout | None:
    try:
        return (await admin.route(topic)).layout
    except TopicNotExistError:
        return None


async def _delayed_count(admin: AdminClient, source: str) -> int:
    """Return how many messages wait at the broker for their delay. Raise CommandError if it is not registered."""
    broker = by_name(await admin.brokers()).get(source)
    if broker is None or not broker.registered:
        raise CommandError(f"broker {source} is not registered now: start it, and run the command again")
    return (await admin.broker_status(broker)).delayed_messages or 0


def _writer(admin: AdminClient) -> int:
    return int.from_bytes(admin.host.random.token(4), "big")

"""Take the queues of topics off a broker (`lockstep broker drain`, `lockstep topic alter --to`).

Each step leaves a state from which the same command continues:

    queues to write and read ─close_queues─▶ queues to read only ─drop_queues─▶ no queue
      in order (queue_move.py)                 in order too: every group has consumed them, and nothing is delayed there
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping

from lockstep.operations.admin_client import AdminClient, by_name
from lockstep.operations.changes.layouts.layout_change import alter_layout
from lockstep.operations.changes.layouts.queue_move import NotConsumedError, put_in_order
from lockstep.operations.changes.layouts.write_hold import NotHeldError
from lockstep.operations.errors import OperationError
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.topics.queue import TopicLayout

STEP_S = 0.5
REPORT_S = 5.0
"""The interval in which a wait reports its reason again, if that does not change."""


async def close_queues(admin: AdminClient, topic: str, source: str, target: str | None = None) -> None:
    """Close the queues of `source` to writers, and give `target` as many instead; if none is named, a substitute if the topic needs one.

    Wait, without a hold of the writes, while groups lag that can't catch up as they are: until they run, or their progress is ended; and
    while transactions are open for long.

    Raises:
        OperationError: Groups lag too much (put_in_order), or there is no substitute.
    """
    report = WaitReport(admin)
    while True:
        layout = await admin.find_layout(topic)
        count = 0 if layout is None else layout.write_count(source)
        if layout is None or not count:
            return
        to = target or await find_substitute(admin, layout, source)
        after = alter_layout(layout, counts_without(layout, source, layout.read_count(source), to), writer=new_writer(admin))
        try:
            held_ms = await put_in_order(admin, layout, after)
        except NotConsumedError as error:
            if not error.lag.standing and not error.undecided:
                raise
            report.say(f"waiting for the groups of {source}: {error.waits_for}")
            await asyncio.sleep(STEP_S)
        else:
            break
    moved = f"{count} queues of {topic} on {source} are closed to writers" + (f", {count} added on {to}" if to else "")
    admin.reporter.note(moved if held_ms is None else f"{moved}; order per key is kept: writes were held for {held_ms} ms")


async def find_substitute(admin: AdminClient, layout: TopicLayout, source: str) -> str | None:
    """Return the broker that gets the queues of a topic which has queues to write on `source` alone: the one with the fewest. Return None
    if the topic has others too.

    Call it with the layout that is about to be altered: another command may have closed the queues of other brokers meanwhile.
    """
    if layout.write_total > layout.write_count(source):
        return None
    others = sorted(broker.name for broker in await admin.brokers() if broker.registered and broker.name != source)
    if not others:
        raise OperationError(
            f"topic {layout.topic} has queues on {source} alone, and no other broker is registered now: start one, or wait until a "
            "copy of one serves, and run the command again"
        )
    counts = Counter(dict.fromkeys(others, 0))
    for each in (await admin.layouts()).values():
        counts.update({other: each.write_count(other) for other in others})
    return min(others, key=lambda other: (counts[other], other))


def counts_without(layout: TopicLayout, source: str, read_count: int, target: str | None) -> dict[str, tuple[int, int]]:
    """Return the counts for `alter_layout`: `source` has no queue to write to and `read_count` to read, `target` gets those to write."""
    counts = {source: (0, read_count)}
    if target is not None:
        more = max(1, layout.write_count(source))
        counts[target] = layout.write_count(target) + more, layout.read_count(target) + more
    return counts


async def drop_queues(admin: AdminClient, topics: Collection[str], source: str) -> None:
    """Wait until every group has consumed the queues of `source` and nothing is delayed there, then take them out of the layouts.

    Raises:
        OperationError: The broker is not registered now, or only queues of broadcasting groups are left.
    """
    report = WaitReport(admin)
    left = dict.fromkeys(topics)
    while left:
        waits: dict[str, None] = {}
        broadcasting: dict[str, tuple[str, ...]] = {}
        for topic in list(left):
            await registered_broker(admin, source)
            try:
                await _drop(admin, topic, source)
                del left[topic]
            except NotConsumedError as error:
                waits[error.waits_for] = None
                if error.lag.broadcasting and not error.lag.lags:
                    broadcasting[topic] = error.lag.broadcasting
            except NotHeldError as error:
                waits[str(error)] = None
        if left and left.keys() == broadcasting.keys():
            raise _unknown_progress(broadcasting, source)
        if left:
            report.say(f"waiting for the groups of {source}: {'; '.join(waits)}")
            await asyncio.sleep(STEP_S)


async def _drop(admin: AdminClient, topic: str, source: str) -> None:
    """Take the queues of `source` out of the layout. Raise NotConsumedError or NotHeldError if that has to wait."""
    layout = await admin.find_layout(topic)
    if layout is not None and source in layout.brokers:
        await put_in_order(admin, layout, alter_layout(layout, {source: (0, 0)}, writer=new_writer(admin)), lag_max=0)
        admin.reporter.note(f"topic {topic} has no queue on {source} any more")


def _unknown_progress(broadcasting: Mapping[str, Collection[str]], source: str) -> OperationError:
    topics = "; ".join(f"{topic} (groups {', '.join(groups)})" for topic, groups in broadcasting.items())
    topic = next(iter(broadcasting))
    return OperationError(
        "members of broadcasting groups keep their progress themselves, so it is not known whether they have consumed the queues on "
        f"{source} of {topics}. Stop them, or wait until they have and use `lockstep topic alter {topic} --broker {source} --queues 0 "
        "--force`; then run this command again"
    )


class WaitReport:
    """Reports why a command waits: when that changes, and every 5 s."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._said = ""
        self._said_ms = 0

    def say(self, text: str) -> None:
        now_ms = self._admin.host.clock.monotonic_ms()
        if text != self._said or now_ms - self._said_ms >= REPORT_S * 1_000:
            self._admin.reporter.note(text)
            self._said, self._said_ms = text, now_ms


async def registered_broker(admin: AdminClient, name: str) -> BrokerAddress:
    """Return the broker. Raise OperationError if it is not registered."""
    broker = by_name(await admin.brokers()).get(name)
    if broker is None or not broker.registered:
        raise OperationError(
            f"broker {name} is not registered now: start it, or wait until another copy of it serves, and run the command again. If it is "
            f"lost for good with all its copies, `lockstep broker remove {name}` removes its queues"
        )
    return broker


def new_writer(admin: AdminClient) -> int:
    """Return 32 random bits for the version of a layout."""
    return int.from_bytes(admin.host.random.token(4), "big")

"""Change the queues of a topic so that the order of each key is kept (ordering.md 9.6).

    the ordered groups have almost consumed the topic ─▶ hold its writes at every broker ─▶ they have consumed all of it
    ─▶ put the new layout into force ─▶ end the hold

Sends wait meanwhile: those of a key for as long as `keyed_send_timeout_ms` (30 s), so the hold is shorter. If the groups do not get there
in time, the hold ends and nothing has changed. Queues that are removed must have been consumed by every group.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from lockstep.admin.client import AdminClient, broker_reasons
from lockstep.admin.layout_publish import publish_layout
from lockstep.admin.options import CommandError
from lockstep.admin.topic_lag import TopicLag, read_lag
from lockstep.admin.write_hold import WriteHold
from lockstep.protocol.queue import MessageQueue, TopicLayout

HOLD_MS = 20_000
"""How long the writes are held at the longest."""
HOLD_LAG_MAX = 10_000
"""The lag above which the hold is not begun: the groups would hardly consume so much in time."""
STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be consumed before a new layout may be in force."""

    ordered: frozenset[MessageQueue]
    """By ordered groups: else they would mix old and new messages of a key."""
    every: frozenset[MessageQueue]
    """By every group: queues that are removed."""

    def __bool__(self) -> bool:
        return bool(self.ordered or self.every)

    @property
    def why(self) -> str:
        """Return what would go wrong otherwise."""
        return "messages in the removed queues would be lost" if self.every else "messages of a key would be consumed out of order"


def needs_of(before: TopicLayout, after: TopicLayout) -> Needs:
    """Return what groups must have consumed before `after` follows `before`."""
    moves = before.write_queues != after.write_queues and bool(before.write_queues)
    return Needs(frozenset(before.read_queues if moves else ()), frozenset(before.read_queues) - frozenset(after.read_queues))


async def put_in_order(admin: AdminClient, before: TopicLayout, after: TopicLayout, lost: Collection[str] = ()) -> int | None:
    """Put `after` into force without breaking the order of a key or losing a message. Return for how long writes were held, in ms; None
    if that was not necessary.

    `lost`: brokers that are gone for good, whose queues can't be consumed.

    Raises:
        CommandError: Groups lag, or their lag is not known. Nothing was changed.
    """
    needs = needs_of(before, after)
    if not needs:
        await publish_layout(admin, after)
        return None
    lag = await read_lag(admin, needs.ordered, needs.every, lost)
    _raise_if_unknown(before.topic, lag, needs)
    if lag.total > HOLD_LAG_MAX:
        raise _lagging(before.topic, lag, needs)
    clock = admin.host.clock
    async with WriteHold(admin, before.topic) as hold:
        begun_ms = clock.monotonic_ms()
        while True:
            lag = await read_lag(admin, needs.ordered, needs.every, lost)
            await hold.confirm()
            _raise_if_unknown(before.topic, lag, needs)
            if not lag.lags:
                break
            if clock.monotonic_ms() - begun_ms >= HOLD_MS:
                raise _lagging(before.topic, lag, needs)
            await asyncio.sleep(STEP_S)
        await publish_layout(admin, after, hold)
        return clock.monotonic_ms() - begun_ms


def _raise_if_unknown(topic: str, lag: TopicLag, needs: Needs) -> None:
    if lag.unknown:
        raise CommandError(
            f"nothing was changed: the lag of groups in {topic} is unknown ({broker_reasons(lag.unknown)}), and if a group lags, "
            f"{needs.why}. Start the broker again, or use --force"
        )
    if lag.broadcasting:
        raise _lagging(topic, lag, needs)


def _lagging(topic: str, lag: TopicLag, needs: Needs) -> CommandError:
    return CommandError(
        f"nothing was changed: some groups have not consumed all of {topic} (lag of {lag}), and {needs.why}. "
        "Wait until they have, or use --force"
    )

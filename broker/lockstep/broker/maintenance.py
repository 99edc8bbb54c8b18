"""What a running broker does with its store at intervals: snapshots, retention, the scrub, and the removal of idle groups."""

import asyncio
from collections.abc import Sequence

from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.broker.store.health.retention import BeforeRemoval
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.metrics import Slices
from lockstep.runtime.waiting import is_set_within

log = get_logger("broker")

SNAPSHOT_CHECK_MS = 1_000
"""A snapshot is due after 64 MiB of log, which take a second at full speed."""
SCRUB_FIRST_MS = 60_000
"""Time from the open port to the first pass of the scrub, so that clients reconnect first. A scrub that is off is looked at as often."""
SCRUB_REST_MS = 3_600_000
"""Time from the end of one pass to the next."""
MOVES_PER_SLICE = 200
"""The number of progress entries that retention checks and moves in one turn of the loop: about a millisecond."""
RETENTION_MS = 10_000
"""RocketMQ: cleanResourceInterval."""


class StoreMaintenance:
    """Snapshots, retention and scrub of the store. The loops end after `stop`: a snapshot is never interrupted half-way."""

    def __init__(self, host: Host, store: Store, state: BrokerState, before_removal: BeforeRemoval | None = None) -> None:
        self._clock = host.clock
        self._before_removal = before_removal
        self._store = store
        self._state = state
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def keep_snapshots(self) -> None:
        """Write a snapshot whenever one is due."""
        while await self._sleep(SNAPSHOT_CHECK_MS):
            self._store.upkeep()
            if self._store.snapshot_due(self._clock.monotonic_ms()):
                await self.snapshot()

    async def snapshot(self) -> None:
        """Write the tables as of this turn, at the log's end as of this turn."""
        await self._store.write_snapshot(self._state.take_snapshot())

    async def keep_retention(self) -> None:
        """Remove old messages, move the groups that had not consumed them, and watch the disk."""
        config = self._state.coordination.state.config
        while await self._sleep(RETENTION_MS):
            now_ms = self._store.safe_now_ms()
            moved = await self._store.retention(now_ms, self._before_removal)
            if moved:
                await self.move_groups(moved)
            await self._forget_sequences(now_ms)
            before, config = config, self._state.coordination.state.config
            if self._state.coordination.set_day(now_ms) or config.group_idle_days != before.group_idle_days:
                await self._forget_groups()
            self._store.disk_status()  # logs a change that no send and no probe has noticed

    async def move_groups(self, moved: Sequence[tuple[str, int, int]]) -> None:
        """Move the groups past removed messages. `moved` has (topic, queue id, new minimum)."""
        slices = Slices(MOVES_PER_SLICE)
        for _ in self._state.coordination.skip_removed({(topic, queue_id): new_min for topic, queue_id, new_min in moved}):
            await slices.step()

    async def _forget_sequences(self, now_ms: int) -> None:
        slices = Slices()
        for _ in self._state.sequences.forget_idle(now_ms=now_ms):
            await slices.step()

    async def _forget_groups(self) -> None:
        """Forget idle groups, once a day and after a change of the limit. Each group is checked in a turn of its own."""
        coordination, slices = self._state.coordination, Slices()
        for group in coordination.status.groups():
            await slices.step()
            idle_days = coordination.state.activity.idle_days(group)
            queue_count = coordination.admin.forget_idle(group) if coordination.admin.is_idle(group) else None
            if queue_count is not None:
                log.info(
                    "group.forgotten",
                    group=group,
                    queues=queue_count,
                    idle_days=idle_days,
                    why="it had no member and no commit for that time",
                )
                await asyncio.sleep(0)

    async def keep_scrubbed(self) -> None:
        """Compare the log with itself and with the consume queues, repeatedly."""
        rest_ms = SCRUB_FIRST_MS
        while await self._sleep(rest_ms):
            await self._store.scrubber.run(self._stopping)
            rest_ms = SCRUB_REST_MS if self._store.scrubber.bytes_per_s else SCRUB_FIRST_MS

    async def _sleep(self, for_ms: int) -> bool:
        """Sleep. Return False if the broker is stopping."""
        return not await is_set_within(self._stopping, for_ms / 1000)

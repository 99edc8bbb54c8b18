"""The broker's background work: effects, leases, snapshots, retention. Each task sleeps until it is next due."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import assert_never

from lockstep.broker.groups.coordination import TICK_MS_MAX, Coordination
from lockstep.broker.groups.effects import CloseConnection, DrainFault, Effect, Notify, PushLayout, PushQueueFree, StalePulls
from lockstep.broker.groups.pending_effects import PendingEffects
from lockstep.broker.processors.pull import PullProcessor
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.protocol.bodies import QueueFreeBody, RegisterReply
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.clients import NotifyHeader
from lockstep.runtime.daemon import call_isolated
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.log import get_logger
from lockstep.runtime.log_limit import log_limited
from lockstep.runtime.metrics import Slices
from lockstep.runtime.timer import Timer
from lockstep.runtime.turn import Turn

log = get_logger("broker")

STEPS_PER_TURN = 250
"""The number of effects, sends and checked free queues of one turn of the loop: about a millisecond."""
NOTICES_PER_TURN_MIN = 50
"""The number of these steps reserved for pending notifications, however many other effects there are."""
LATE_MS = 100
"""A lease timer that fires this late shows that the process was suspended or blocked: received data is read first."""
FREE_QUEUES_MAX = 4_096
"""The maximum number of queues in one QUEUE_FREE: with the longest names 2 MB, far below the limit of a frame."""
NOTICES_UNSENT_BYTES_MAX = 16 << 20
"""Unsent bytes of a connection above which a notice closes it: its client has not read for long. Responses stop far below."""
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


class EffectRunner:
    """Carries out the effects of the coordination tables, a slice of them in each turn of the loop. `on_drain` is called first in each.

    Layouts and notifications go to every member of a group. They have lower priority, so that the next turn closes connections, responds to
    stale pulls and notifies the owners of free queues, however many notifications are pending.
    """

    def __init__(
        self,
        pending: PendingEffects,
        endpoints: Mapping[int, Endpoint],
        pulls: PullProcessor,
        on_drain: Callable[[], None] = lambda: None,
    ) -> None:
        self._pending = pending
        self._on_drain = on_drain
        self._endpoints = endpoints
        self._pulls = pulls
        self._urgent: deque[Callable[[], None]] = deque()
        """Drained effects that are not notifications, in order."""
        self._notices: deque[Callable[[], None]] = deque()
        """Steps of drained notifications, in order: the effect, or one send of it."""
        self._has_effects = False
        self._turn = Turn("effects", self.run_slice, self._failed)
        pending.on_effects = self._wake

    def _wake(self) -> None:
        self._has_effects = True
        self._turn.schedule()

    def _failed(self, _: Exception) -> None:
        """Retry: drained effects are carried out later, and the others are drained again."""
        self._has_effects = True
        self._turn.retry()

    def run_slice(self) -> None:
        """Carry out one slice; the next turns do the rest. An effect that fails is logged, and the others are carried out."""
        self._drain()
        kept = min(len(self._notices), NOTICES_PER_TURN_MIN)
        left = STEPS_PER_TURN - self._run_steps(self._urgent, STEPS_PER_TURN - kept)
        self._run_steps(self._notices, left)
        if self._urgent or self._notices or self._has_effects:
            self._turn.schedule()

    def _drain(self) -> None:
        """Drain notifications only when the earlier ones are sent: a notification contains all changes until it is drained."""
        self._has_effects = False
        self._on_drain()
        for effect in self._pending.drain(STEPS_PER_TURN, notices=not self._notices):
            steps = self._notices if isinstance(effect, Notify | PushLayout) else self._urgent
            steps.append(partial(self._execute, effect))

    def _run_steps(self, steps: deque[Callable[[], None]], count_max: int) -> int:
        """Carry out at most `count_max` steps. Return their number."""
        count = 0
        while steps and count < count_max:
            count += 1
            call_isolated("effect.failed", steps.popleft())
        return count

    def _execute(self, effect: Effect) -> None:
        match effect:
            case Notify(group, connections, version):
                header = NotifyHeader(group, version.term, version.counter)
                self._send_soon(connections, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
            case PushLayout(layout, connections):
                self._send_soon(connections, RequestCode.LAYOUTS_CHANGED, None, encode_body(RegisterReply((layout,))))
            case PushQueueFree(connection, queues):
                for first in range(0, len(queues), FREE_QUEUES_MAX):
                    free = QueueFreeBody(queues[first : first + FREE_QUEUES_MAX])
                    self._send(connection, RequestCode.QUEUE_FREE, None, encode_body(free))
            case CloseConnection(connection, reason):
                if (endpoint := self._endpoints.get(connection)) is not None:
                    log_limited(log, "info", "connection.ended", peer=endpoint.peer, reason=reason)
                    endpoint.abort(reason)
            case StalePulls():
                self._pulls.stale(effect)
            case DrainFault(error):
                raise error
            case _:
                assert_never(effect)

    def _send_soon(self, connections: tuple[int, ...], code: RequestCode, header: object | None, body: bytes = b"") -> None:
        """Schedule one send to each connection as the next steps."""
        self._notices.extendleft(partial(self._send, connection, code, header, body) for connection in reversed(connections))

    def _send(self, connection: int, code: RequestCode, header: object | None, body: bytes) -> None:
        if (endpoint := self._endpoints.get(connection)) is None:
            return
        if endpoint.unsent_bytes > NOTICES_UNSENT_BYTES_MAX:
            reason = f"it reads too slowly: {endpoint.unsent_bytes} bytes are unsent"
            log_limited(log, "info", "connection.ended", peer=endpoint.peer, reason=reason)
            endpoint.abort(reason)
        else:
            endpoint.oneway(code, None if header is None else CODECS[endpoint.codec].write_fields(header), body)


class LeaseTimer:
    """Calls Coordination.tick when it is due, at most 1 s after the last time, so that a grace period that begins in between does not end
    unnoticed.

    It is never called from the close of a connection: after this process was suspended or blocked, data from clients is read before leases
    end.
    """

    def __init__(self, host: Host, coordination: Coordination) -> None:
        self._clock = host.clock
        self._coordination = coordination
        self._loop = asyncio.get_running_loop()
        self._timer = Timer(self._loop, self._tick, LATE_MS)

    def start(self) -> None:
        self._tick()

    def _tick(self) -> None:
        now_ms = self._clock.boot_ms()
        due_ms = now_ms + TICK_MS_MAX
        try:
            due_ms = self._coordination.tick(now_ms)
        finally:
            # Even after an error: without a next tick no session would ever end again.
            self._timer.set(self._loop.time() + max(1, due_ms - now_ms) / 1000)

    def stop(self) -> None:
        self._timer.cancel()


class StoreMaintenance:
    """Snapshots, retention and scrub of the store. The loops end after `stop`: a snapshot is never interrupted half-way."""

    def __init__(
        self, host: Host, store: Store, state: BrokerState, before_removal: Callable[[int], Awaitable[None]] | None = None
    ) -> None:
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
                await self._move_groups(moved)
            await self._forget_sequences(now_ms)
            before, config = config, self._state.coordination.state.config
            if self._state.coordination.set_day(now_ms) or config.group_idle_days != before.group_idle_days:
                await self._forget_groups()
            self._store.disk_status()  # logs a change that no send and no probe has noticed

    async def _move_groups(self, moved: Sequence[tuple[str, int, int]]) -> None:
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
            await self._store.scrubber.run(self._stopping.is_set)
            rest_ms = SCRUB_REST_MS if self._store.scrubber.bytes_per_s else SCRUB_FIRST_MS

    async def _sleep(self, for_ms: int) -> bool:
        """Sleep. Return False if the broker is stopping."""
        try:
            async with asyncio.timeout(for_ms / 1000):
                await self._stopping.wait()
        except TimeoutError:
            return True
        return False

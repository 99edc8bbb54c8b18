"""Carries out the effects that the tables of groups leave: sends notifications, closes connections, ends held pulls.

The tables have changed when an effect is drained, and the log may not have it yet. So the effect is carried out when the log has confirmed
what was recorded until then, as a response is sent (ordering.md 8.9).
"""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import assert_never

from lockstep.broker.groups.effects import CloseConnection, DrainFault, GroupEffect, Notify, PushLayout, PushQueueFree, StalePulls
from lockstep.broker.groups.pending_effects import PendingEffects
from lockstep.protocol.bodies import QueueFreeBody, RegisterReply
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.clients import NotifyHeader
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.daemon import call_isolated
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.turn import Turn

log = get_logger("broker")

STEPS_PER_TURN = 250
"""The number of effects, sends and checked free queues of one turn of the loop: about a millisecond."""
NOTICES_PER_TURN_MIN = 50
"""The number of these steps reserved for pending notifications, however many other effects there are."""
FREE_QUEUES_MAX = 4_096
"""The maximum number of queues in one QUEUE_FREE: with the longest names 2 MB, far below the limit of a frame."""
NOTICES_UNSENT_BYTES_MAX = 16 << 20
"""Unsent bytes of a connection above which a notice closes it: its client has not read for long. Responses stop far below."""


class EffectRunner:
    """Carries out the effects of the coordination tables, a slice of them in each turn of the loop. `on_drain` is called first in each, and
    `on_stale` for each StalePulls. `when_confirmed` calls back when the log is confirmed up to its present end, at once if it is.

    Layouts and notifications go to every member of a group. They have lower priority, so that the next turn closes connections, responds to
    stale pulls and notifies the owners of free queues, however many notifications are pending.
    """

    def __init__(
        self,
        pending: PendingEffects,
        endpoints: Mapping[int, Endpoint],
        on_stale: Callable[[StalePulls], None],
        on_drain: Callable[[], None] = lambda: None,
        *,
        when_confirmed: Callable[[Callable[[], None]], None],
    ) -> None:
        self._pending = pending
        self._when_confirmed = when_confirmed
        self._on_drain = on_drain
        self._endpoints = endpoints
        self._on_stale = on_stale
        self._urgent: deque[Callable[[], None]] = deque()
        """Confirmed effects that are not notifications, in order."""
        self._notices: deque[Callable[[], None]] = deque()
        """Steps of confirmed notifications, in order: the effect, or one send of it."""
        self._notices_wait = False
        """Drained notifications wait for the log. Nothing more is drained until then."""
        self._has_effects = False
        self._turn = Turn("effects", self.run_slice, self._failed)
        pending.on_effects = self._wake

    def _wake(self) -> None:
        self._has_effects = True
        if not self._notices_wait:
            self._turn.schedule()

    def _failed(self, _: Exception) -> None:
        """Retry: drained effects are carried out later, and the others are drained again."""
        self._has_effects = True
        self._turn.retry()

    def run_slice(self) -> None:
        """Carry out one slice; the next turns do the rest. An effect that fails is logged, and the others are carried out."""
        if not self._notices_wait:
            self._drain()
        kept = min(len(self._notices), NOTICES_PER_TURN_MIN)
        left = STEPS_PER_TURN - self._run_steps(self._urgent, STEPS_PER_TURN - kept)
        self._run_steps(self._notices, left)
        if self._urgent or self._notices or (self._has_effects and not self._notices_wait):
            self._turn.schedule()
        else:
            self._turn.cancel()  # scheduled by effects that were confirmed at once

    def _drain(self) -> None:
        """Drain notifications only when the earlier ones are sent: a notification contains all changes until it is drained."""
        self._has_effects = False
        self._on_drain()
        urgent: list[Callable[[], None]] = []
        notices: list[Callable[[], None]] = []
        for effect in self._pending.drain(STEPS_PER_TURN, notices=not self._notices):
            (notices if isinstance(effect, Notify | PushLayout) else urgent).append(partial(self._execute, effect))
        if urgent or notices:
            self._notices_wait = bool(notices)
            self._when_confirmed(partial(self._confirmed, urgent, notices))

    def _confirmed(self, urgent: list[Callable[[], None]], notices: list[Callable[[], None]]) -> None:
        """Carry out drained effects, because the log has what they tell."""
        self._urgent += urgent
        if notices:
            self._notices += notices
            self._notices_wait = False
        self._turn.schedule()

    def _run_steps(self, steps: deque[Callable[[], None]], count_max: int) -> int:
        """Carry out at most `count_max` steps. Return their number."""
        count = 0
        while steps and count < count_max:
            count += 1
            call_isolated("effect.failed", steps.popleft())
        return count

    def _execute(self, effect: GroupEffect) -> None:
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
                self._on_stale(effect)
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

"""PULL_MESSAGE and long polling. RocketMQ: PullMessageProcessor, PullRequestHoldService.

    arrives ──▶ found ──────▶ served ──▶ response
                 ▲  ▲           │ └────▶ waits for the disk (cold) ──▶ response
                 │  │           ├──────▶ waits for the connection to drain ──┐
                 │  └───────────┼────────────────────────────────────────────┘
                 └── arrival ── held ── deadline, stale, stop ──▶ response

Pulls found in one loop turn are served at its end, after its other frames, so that they see earlier sends. An arrival wakes the pulls that
are held for its queue once the messages are visible, so nothing is polled. One timer serves all deadlines. If many pulls are woken or due
at once, each turn serves a limited number of them; the others follow in the next turns, in order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeVar

from lockstep.broker.classic.traces import with_trace_marks
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.groups.effects import StalePulls
from lockstep.broker.groups.tables.lock_table import QueueKey
from lockstep.broker.groups.tables.park_table import KeyFilter, WaitingFilter
from lockstep.broker.processors.cold_reads import ColdReads
from lockstep.broker.processors.pull_request import Filter, Pull, check_given, filter_of, page_of, unsupported_filter
from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.store import ReadResult, ReadStatus, Store
from lockstep.broker.tables.long_poll_table import (
    HELD_MAX,
    HELD_PER_GROUP_MAX,
    HeldPull,
    LongPollTable,
    expression_bytes,
)
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.bodies import SQL92, TAG
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import (
    BrokerError,
    BrokerSystemError,
    LocalProtocolError,
    StoreError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    TransportError,
)
from lockstep.protocol.headers.pull import COMMIT_OFFSET, SUBSCRIPTION, PullHeader, PullReply
from lockstep.protocol.names import check_group, check_topic, is_tool_group
from lockstep.protocol.object_text import text_of
from lockstep.protocol.tags import EXPRESSION_LENGTH_MAX
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.limits import REQUEST_HEADER_BYTES_MAX
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import GET, SUB, inside
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, Request, RetryLaterError
from lockstep.runtime.security.authenticated_user import ANYBODY
from lockstep.runtime.turn import Turn

log = get_logger("broker.pull")

T = TypeVar("T")

SUSPEND_MS_MAX = 30_000
"""How long a pull is held at most. RocketMQ's clients request at most 20 s (Go, Python) and give up a pull after 30 s."""
UNSENT_BYTES_MAX = 1 << 20
"""Unsent bytes of a connection above which its pulls wait. The server's endpoints pause at the same limit, so `drain` returns when they
end.
"""
TURN_BYTES_MAX = 8 << 20
"""Bytes of responses in one loop turn, some milliseconds of work. The rest follows in the next turn, after the frames that have come
since.
"""
TURN_HELD_MAX = 512
"""Held pulls that one loop turn serves: one message may wake all pulls of its queue, in any number of groups."""
PULL_HEADER_BYTES_MAX = REQUEST_HEADER_BYTES_MAX + 4 * EXPRESSION_LENGTH_MAX
"""A pull may carry a subscription expression."""
PULL_NEEDS = [inside("Sub group and topic; for a tool that only reads, Sub or Get both")]
LATE_MS = 1_000
"""How long a pull whose client does not let it wait does so all the same if its user is above a limit. RocketMQ's clients wait 10 s."""
TURN_PULLS_MAX = 1_024
"""Pulls that one loop turn serves, of any kind."""
DELIVERED_MAX = 10_000
"""Pairs of topic and group that are counted: a client may name any group."""
_READ = (ReadStatus.FOUND, ReadStatus.NO_MATCHED, ReadStatus.OFFSET_AT_END)
"""The results of reads that passed over messages only because the subscription does not match them."""
_FACTS = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND)
"""That confirmed messages are at their offsets, or that there are none yet, is true at a former master too. What is not: that the group has
to read from another offset, and which keys are parked."""

CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_AT_END: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_LARGE: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.LOST: ResponseCode.PULL_OFFSET_MOVED,
}
"""The statuses that are not listed depend on the offset: PULL_NOT_FOUND at 0, which waits for the first message, else PULL_OFFSET_MOVED."""


class Delivered(NamedTuple):
    """What pulls of one group have returned from one topic since the start."""

    messages: int
    size: int
    filtered: int
    """Messages that its subscription did not match."""


class PullProcessor:
    """Serves pulls from the store, and holds those that find nothing."""

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        store: Store,
        topics: TopicTable,
        coordination: Coordination,
        *,
        quotas: UserQuotas,
        held_max: int = HELD_MAX,
        held_per_group_max: int = HELD_PER_GROUP_MAX,
        traced: bool = False,
    ) -> None:
        """`traced`: the broker takes the traces of RocketMQ's consumers."""
        self._clock = host.clock
        self._tasks = tasks
        self._store = store
        self._topics = topics
        self._coordination = coordination
        self._quotas = quotas
        self._holds: LongPollTable[Pull] = LongPollTable(held_max=held_max, held_per_group_max=held_per_group_max)
        self._found: deque[Pull] = deque()
        self._turn = Turn("pulls", self._serve_found, self._turn_failed)
        self._deadline = Turn("pulls.deadline", self._expire, lambda error: self._deadline.retry())
        self._lowered = Turn("pulls.lowered", self._end_excess, lambda error: self._lowered.retry())
        self._deadline_ms = 0
        """The time for which the deadline turn is scheduled, while it is scheduled."""
        self.excess_count = 0
        """Held pulls that got a response before their time because a limit was exceeded, since the start."""
        self._blocked: dict[Endpoint, list[Pull]] = {}
        """Pulls of connections that have too many unsent bytes."""
        self._cold = ColdReads(tasks, self._read_one_cold)
        self._turn_bytes = 0
        """Bytes of responses in this turn so far."""
        self.delivered: dict[tuple[str, str], Delivered] = {}
        """By (topic, group), for metrics; at most DELIVERED_MAX pairs."""
        self.found_count = self.empty_count = 0
        """Pulls that were answered with messages, and without, since the start."""
        self._stopping = False
        self._traced = traced

    @property
    def held_count(self) -> int:
        return len(self._holds)

    @property
    def held_max(self) -> int:
        return self._holds.held_max

    def limit_held(self, held_max: int, held_per_group_max: int) -> None:
        """Change the limits of held pulls. Pulls above a lower one end in the next turns, as at their deadline."""
        self._holds.held_max, self._holds.held_per_group_max = held_max, held_per_group_max
        self._lowered.schedule()

    @handles(RequestCode.PULL_MESSAGE, PullHeader, needs=PULL_NEEDS, header_bytes_max=PULL_HEADER_BYTES_MAX, classic=True)
    @handles(RequestCode.LITE_PULL_MESSAGE, PullHeader, needs=PULL_NEEDS, header_bytes_max=PULL_HEADER_BYTES_MAX, classic=True)
    def pull(self, request: Request) -> HandlerResult:
        header: PullHeader = request.header
        if request.is_oneway:
            return NO_RESPONSE
        pull = Pull(request)
        if pull.suspends:
            pull.deadline_ms = self._clock.monotonic_ms() + min(header.suspend_timeout_millis, SUSPEND_MS_MAX)
        self._serve_soon([pull])
        return NO_RESPONSE

    # ---------------------------------------------------------------------------------------------------------------- waking

    def arrived(self, topic: str, queue_id: int) -> None:
        """Wake the pulls of the queue: it has new visible messages. The store calls this once for each queue and turn."""
        if self._call_table(lambda holds: holds.mark_woken(topic, queue_id), False):
            self._turn.schedule()

    def serve_woken(self) -> None:
        """Serve the woken pulls now instead of in the next loop turn. A message then reaches its consumer two iterations of the loop
        earlier."""
        self._turn.run_scheduled()

    def stale(self, effect: StalePulls) -> None:
        """Serve the group's held pulls of the queue now: its epoch rose, so those that carry an older one are stale."""
        self._serve_soon(self._take(lambda holds: holds.take_group(effect.group, effect.topic, effect.queue_id)))

    def topic_changed(self, topic: str) -> None:
        """Check the held pulls of the topic again: its layout changed."""
        if self._call_table(lambda holds: holds.mark_topic_woken(topic), False):
            self._turn.schedule()

    def connection_closed(self, endpoint: Endpoint) -> None:
        self._take(lambda holds: holds.take_connection(endpoint.id))
        self._blocked.pop(endpoint, None)
        self._cold.drop(endpoint)

    def stop(self) -> None:
        """Respond to all held pulls; none is held from here on."""
        self._stopping = True
        self._deadline.cancel()
        self._lowered.cancel()
        self._found += self._take(LongPollTable.take_all)
        while self._found:
            self._serve_found()

    def held_offset(self, queue: QueueKey) -> int | None:
        """Return the highest offset at which a pull of the group is held at the queue: its subscription matches no message before it."""
        held = self._holds.held_by(*queue)
        return max(pull.offset for pull in held) if held else None

    def disk_count(self, queue: QueueKey) -> int:
        """Return how many pulls of the group at the queue wait for the disk."""
        return self._cold.count_of(queue)

    def _expire(self) -> None:
        self._deadline.cancel()
        now_ms = self._clock.monotonic_ms()
        expired = self._take(lambda holds: holds.take_expired(now_ms, TURN_HELD_MAX))
        for pull in expired:
            if pull.deadline_ms is not None and pull.deadline_ms <= now_ms:  # else it is tried again
                pull.deadline_ms = None
        self._serve_soon(expired)
        self._arm()

    def _end_excess(self) -> None:
        """End a limited number of the pulls above a limit that was lowered; the next turns end the others."""
        excess = self._take(lambda holds: holds.take_above_limits(TURN_HELD_MAX))
        self._end_early(excess)
        if excess:
            self._lowered.schedule()

    def _end_early(self, excess: list[Pull]) -> None:
        self.excess_count += len(excess)
        for pull in excess:
            pull.deadline_ms, pull.late_ms = None, 0  # its response is that of a pull at its deadline
        self._serve_soon(excess)

    def _arm(self) -> None:
        """Set the timer to the earliest deadline, unless it is due before."""
        due_ms = self._call_table(LongPollTable.next_deadline_ms, None)
        if due_ms is None or (self._deadline.is_scheduled and self._deadline_ms <= due_ms):
            return
        self._deadline_ms = due_ms
        self._deadline.schedule_after(max(1, due_ms - self._clock.monotonic_ms()))

    # ----------------------------------------------------------------------------------------------------------- held pulls

    def _take(self, take: Callable[["LongPollTable[Pull]"], list["HeldPull[Pull]"]]) -> list[Pull]:
        """Return the pulls that a call takes out of the table of held pulls."""
        none: list[HeldPull[Pull]] = []
        return [held.item for held in self._call_table(take, none)]

    def _call_table(self, call: Callable[["LongPollTable[Pull]"], T], otherwise: T) -> T:
        """Call the table of held pulls. After an error in it its indices may be wrong: empty it, and fail each pull that it held."""
        try:
            return call(self._holds)
        except Exception as error:  # one table: each pull that it held fails
            self._fail_held(error)
            return otherwise

    def _fail_held(self, error: Exception, except_for: Pull | None = None) -> None:
        log_limited(log, "error", "pulls.failed", error=text_of(error), exc_info=error, then="each held pull fails with SYSTEM_ERROR")
        for held in self._holds.clear():
            if held.item is not except_for:
                held.item.failure = error
                self._found.append(held.item)
        self._turn.schedule()

    # --------------------------------------------------------------------------------------------------------------- serving

    def _serve_soon(self, pulls: list[Pull]) -> None:
        if pulls:
            self._found += pulls
            self._turn.schedule()

    def _serve_found(self) -> None:
        """Serve a limited number of pulls: a thousand groups that catch up at once must not delay heartbeats and commits."""
        found = self._found
        found += self._take(lambda holds: holds.take_woken(TURN_HELD_MAX))
        self._turn_bytes = 0
        endpoints: dict[Endpoint, None] = {}
        for _ in range(min(len(found), TURN_PULLS_MAX)):
            if self._turn_bytes >= TURN_BYTES_MAX:
                break
            pull = found.popleft()
            endpoints[pull.request.endpoint] = None
            try:
                self._serve(pull)
            except Exception as error:
                pull.request.fail(error)
        for endpoint in endpoints:
            endpoint.flush()
        if found or self._holds.has_woken:
            self._turn.schedule()

    def _turn_failed(self, error: Exception) -> None:
        """Fail the pulls that the turn would have served: how far it has come is not known. Held pulls stay."""
        while self._found:
            self._found.popleft().request.fail(error)
        if self._holds.has_woken:
            self._turn.retry()

    def _has_room(self, endpoint: Endpoint) -> bool:
        """Return whether the connection has room for another response."""
        return endpoint not in self._blocked and endpoint.unsent_bytes <= UNSENT_BYTES_MAX

    def _serve(self, pull: Pull) -> None:
        request = pull.request
        if request.endpoint.closed:
            return
        if pull.failure is not None:
            failure, pull.failure = pull.failure, None  # its traceback may hold the pull
            request.fail(failure)
            return
        if not self._has_room(request.endpoint):
            self._block(pull)
            return
        if not self._admit(pull):
            return
        if self._quotas.limited and not self._stopping and self._waits_for_quota(pull):
            return
        header: PullHeader = request.header
        count, size = page_of(header, native=request.is_native)
        wanted = self._wanted(pull)
        try:
            result = self._store.read(
                header.topic,
                header.queue_id,
                pull.offset,
                max_count=count,
                max_bytes=size,
                tag_hashes=wanted.tag_hashes,
                keep=wanted.keep,
            )
        except (StoreError, OSError) as error:
            raise _unreadable(pull, error) from error
        if result is None:
            self._cold.add(pull)
        else:
            self._turn_bytes += examining_cost(wanted, result)
            self._deliver(pull, result)

    def _admit(self, pull: Pull) -> bool:
        """Make RocketMQ's checks in RocketMQ's order, then check the epoch. Return False if the response was sent or the connection is
        being closed.
        """
        request = pull.request
        header: PullHeader = request.header
        check_group(header.consumer_group)
        check_topic(header.topic)
        if request.user is not ANYBODY:
            _check_rights(pull)
        self._topics.check_readable(header.topic, header.queue_id)
        if pull.inspects:
            return True
        key = (header.consumer_group, header.topic, header.queue_id)
        check = self._coordination.pulls.admit(request.endpoint.id, key, header.epoch, header.generation, header.queue_offset)
        if check is None:
            return False
        if check.stale:
            what = f"generation {header.generation}" if header.epoch is None else f"epoch {header.epoch}"
            remark = f"{what} of {header.consumer_group} at {header.topic}:{header.queue_id} is stale: drop the queue"
            self._send(pull, ResponseCode.STALE_EPOCH, remark=remark)
            return False
        if check.moved_to is not None:
            self._send_moved(pull, check.moved_to)
            return False
        pull.gap = check.gap or pull.gap
        if not pull.commit_seen and check.may_commit and header.sys_flag & COMMIT_OFFSET:
            self._commit(request, header)
        pull.commit_seen = True
        return True

    def _commit(self, request: Request, header: PullHeader) -> None:
        """Carry out the commit bit of a classic pull. A commit that is refused does not fail the pull."""
        try:
            self._coordination.legacy.update_offset(
                request.endpoint.id, (header.consumer_group, header.topic, header.queue_id), header.commit_offset, self._clock.boot_ms()
            )
        except (BrokerError, LocalProtocolError):
            pass

    def _wanted(self, pull: Pull) -> Filter:
        """Return the filter of the request, and of what is parked: only these messages, or all but these."""
        header: PullHeader = pull.request.header
        wanted = self._filter(header, pull.request.endpoint.id)
        if header.key:
            return wanted.also(KeyFilter(header.key).keep)
        queue = (header.consumer_group, header.topic, header.queue_id)
        if header.key is not None:
            return wanted.also(WaitingFilter(self._coordination.parking.rows(queue)).keep)
        pull.hidden = hidden = self._coordination.parking.filter(queue)
        return wanted if hidden is None else wanted.also(hidden.keep)

    def _filter(self, header: PullHeader, connection: int) -> Filter:
        """Return the filter of the request's expression, or else of its group's subscription."""
        if header.sys_flag & SUBSCRIPTION:
            kind = header.expression_type or TAG
            self._turn_bytes += check_given(kind, header.subscription)
            return filter_of(kind, header.subscription)
        if header.expression_type not in (None, "", TAG, SQL92):
            raise unsupported_filter(header.expression_type)
        group, topic = header.consumer_group, header.topic
        subscription = self._coordination.membership.subscription(group, topic, connection)
        if subscription is None:
            raise SubscriptionNotExistError(
                f"group {group} has no subscription to {topic} here: send HEART_BEAT first, or the expression with the pull"
            )
        if subscription.sub_version < header.sub_version:
            raise SubscriptionNotLatestError(
                f"group {group} has version {subscription.sub_version} of its subscription to {topic} here: send HEART_BEAT first"
            )
        return filter_of(subscription.expression_type, subscription.expression)

    def _deliver(self, pull: Pull, result: ReadResult) -> None:
        header: PullHeader = pull.request.header
        parking = self._coordination.parking
        if header.key is None and (pull.hidden is not None or parking.any_parked):
            queue = (header.consumer_group, header.topic, header.queue_id)
            if not parking.note_passed(queue, pull.hidden, result.next_offset):
                self._serve_soon([pull])
                return
        status = result.status
        if status is ReadStatus.LOST and pull.gap is not None:
            # A response reports one gap. The next pull reports this one, from the same offset.
            status, result = ReadStatus.NO_MATCHED, replace(result, status=ReadStatus.NO_MATCHED, next_offset=pull.offset)
        code = CODES.get(status, ResponseCode.PULL_NOT_FOUND if pull.offset == 0 else ResponseCode.PULL_OFFSET_MOVED)
        skipped = status is ReadStatus.NO_MATCHED and not pull.fresh and result.next_offset >= result.max_offset
        pull.fresh = False
        if skipped:
            # None of the new messages match: the pull waits for those after them.
            pull.offset = result.next_offset
        if (skipped or code == ResponseCode.PULL_NOT_FOUND) and self._hold(pull):
            return
        self._send(pull, code, result)

    def _hold(self, pull: Pull) -> bool:
        header: PullHeader = pull.request.header
        if pull.deadline_ms is None or self._stopping or pull.gap is not None:
            return False
        if self._store.bounds(header.topic, header.queue_id)[1] > pull.offset:
            self._serve_soon([pull])
            return True
        return self._put(pull, pull.deadline_ms)

    def _put(self, pull: Pull, until_ms: int) -> bool:
        """Put a pull into the table. Return False if its connection holds its maximum. Raise RetryLaterError if its user does."""
        header: PullHeader = pull.request.header
        user = pull.request.user.name if self._quotas.limited else ""
        if user:
            self._quotas.check_held(user, self._holds.count_of(user))
        place = header.consumer_group, header.topic, header.queue_id
        held = HeldPull(pull, pull.request.endpoint.id, *place, until_ms, expression_bytes(header.subscription), user)
        try:
            if not self._holds.hold(held):
                return False
            oldest = self._holds.take_excess(held)
        except Exception as error:  # re-raised
            self._fail_held(error, except_for=pull)
            raise
        if oldest is not None:
            self._end_early([oldest.item])
        self._arm()
        return True

    def _waits_for_quota(self, pull: Pull) -> bool:
        """Return whether the pull waits because its user is above a limit, or was answered without messages because it has for so long.

        It waits in the table of held pulls, so that all their limits and ends hold for it. One that is woken too early keeps its turn.
        Raise RetryLaterError if it has waited for so long and its client takes an empty response for the end of the queue.
        """
        user, now_ms = pull.request.user.name, self._clock.monotonic_ms()
        if self._quotas.admit_pull(user, is_counted=pull.is_counted):
            pull.is_counted = True
            return False
        if pull.late_ms is None:
            pull.late_ms = now_ms + LATE_MS if pull.deadline_ms is None else pull.deadline_ms
        if pull.due_ms <= now_ms:
            pull.due_ms = self._quotas.pull_due_ms(user)
        if now_ms >= pull.late_ms or not self._put(pull, min(pull.due_ms, pull.late_ms)):
            if not pull.suspends:
                raise RetryLaterError(f"pulls of user {user} are above its limits at this broker", max(pull.due_ms - now_ms, LATE_MS))
            first, end = self._store.bounds(pull.request.header.topic, pull.request.header.queue_id)
            self._send(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, ReadResult(ReadStatus.NO_MATCHED, pull.offset, first, end))
        return True

    # -------------------------------------------------------------------------------------------------------------- responding

    def _send_moved(self, pull: Pull, offset: int) -> None:
        """Tell a classic client that its group's progress was reset."""
        request = pull.request
        header: PullHeader = request.header
        reply = PullReply(offset, *self._store.bounds(header.topic, header.queue_id))
        request.respond(request.reply(reply, code=ResponseCode.PULL_OFFSET_MOVED, remark=f"the group was reset to offset {offset}"))

    def _send(self, pull: Pull, code: ResponseCode, result: ReadResult | None = None, remark: str | None = None) -> None:
        request = pull.request
        if result is None:
            request.respond(request.reply(code=code, remark=remark))
            return
        reply = PullReply(result.next_offset, result.min_offset, result.max_offset)
        if pull.gap is not None:
            reply = PullReply(result.next_offset, result.min_offset, result.max_offset, 0, *pull.gap)
        command = request.reply(reply, code=code, remark=None if code == ResponseCode.SUCCESS else result.status.value)
        parts = result.parts
        if parts:
            if self._traced and not request.is_native:
                parts = with_trace_marks(parts)
            size = sum(map(len, parts))
            self._turn_bytes += size
            if self._quotas.limited:
                self._quotas.count_pulled(request.user.name, size)
            self.found_count += 1
        else:
            self.empty_count += 1
        if result.status in _READ and not pull.inspects:
            self._count(request.header, result)
        request.respond(command, parts, is_fact=code in _FACTS and pull.hidden is None)

    def _count(self, header: PullHeader, result: ReadResult) -> None:
        """Count what was returned, and what the subscription did not match between the requested offset and the next one."""
        key = header.topic, header.consumer_group
        found = self.delivered.get(key)
        if found is None:
            if len(self.delivered) >= DELIVERED_MAX:
                return
            found = Delivered(0, 0, 0)
        filtered = max(result.next_offset - header.queue_offset - result.count, 0) if header.key is None else 0
        self.delivered[key] = Delivered(found.messages + result.count, found.size + result.body_bytes, found.filtered + filtered)

    # -------------------------------------------------------------------------------------------------------------- waiting

    def _block(self, pull: Pull) -> None:
        endpoint = pull.request.endpoint
        if endpoint in self._blocked:
            self._blocked[endpoint].append(pull)
            return
        self._blocked[endpoint] = [pull]
        self._tasks.spawn(self._wait_drained(endpoint), f"drain {endpoint.peer}")

    async def _wait_drained(self, endpoint: Endpoint) -> None:
        try:
            await endpoint.drain()
        except TransportError:
            pass
        self._serve_soon(self._blocked.pop(endpoint, []))

    async def _read_one_cold(self, pull: Pull) -> None:
        header: PullHeader = pull.request.header
        if not self._has_room(pull.request.endpoint):
            self._block(pull)
            return
        count, size = page_of(header, native=pull.request.is_native)
        wanted = self._wanted(pull)
        try:
            result = await self._store.read_cold(
                header.topic,
                header.queue_id,
                pull.offset,
                max_count=count,
                max_bytes=size,
                tag_hashes=wanted.tag_hashes,
                keep=wanted.keep,
            )
        except (StoreError, OSError) as error:
            raise _unreadable(pull, error) from error
        self._turn_bytes += examining_cost(wanted, result)
        # The epoch may have risen since the pull began, the connection may be closed.
        if not pull.request.endpoint.closed and self._admit(pull):
            self._deliver(pull, result)


def _check_rights(pull: Pull) -> None:
    """Raise AccessDeniedError unless the user may have the messages now. A pull that has waited is checked again."""
    header, user = pull.request.header, pull.request.user
    actions = (SUB, GET) if pull.inspects or is_tool_group(header.consumer_group) else (SUB,)
    user.check_group(header.consumer_group, *actions)
    user.check_topic(header.topic, *actions)


def examining_cost(wanted: Filter, result: ReadResult) -> int:
    """Return what a predicate has cost in this turn, also if it let nothing pass, as bytes of responses."""
    return result.examined_bytes + wanted.examine_bytes * result.examined_count


def _unreadable(pull: Pull, error: StoreError | OSError) -> BrokerSystemError:
    header: PullHeader = pull.request.header
    log_limited(log, "error", "read.failed", topic=header.topic, queue_id=header.queue_id, offset=pull.offset, error=str(error))
    return BrokerSystemError(str(error))

"""PULL_MESSAGE and long polling. RocketMQ: PullMessageProcessor, PullRequestHoldService.

    arrives ──▶ found ──────▶ served ──▶ answered
                 ▲  ▲           │ └────▶ waits for the disk (cold) ──▶ answered
                 │  │           ├──────▶ waits for the connection to drain ──┐
                 │  └───────────┼──────────────────────────────────────────-─┘
                 └── arrival ── held ── deadline, stale, stop ──▶ answered

Pulls found in one loop turn are served at its end, behind its other frames: what was sent to the broker before is seen. An arrival
wakes whoever waits for that queue once the messages may be read, so nothing is scanned for and nobody waits for a period. One timer
serves all deadlines. However many are woken or due at once, so many are served a turn; the others have the next turns, in order.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from lockstep.broker.coordination import Coordination
from lockstep.broker.effects import StalePulls
from lockstep.broker.store import ReadResult, ReadStatus, Store
from lockstep.broker.tables.long_poll_table import (
    HELD_MAX,
    HELD_PER_CONNECTION_MAX,
    HELD_PER_GROUP_MAX,
    HeldPull,
    LongPollTable,
    expression_bytes,
)
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import (
    BrokerError,
    BrokerSystemError,
    LocalProtocolError,
    StoreError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    SubscriptionParseError,
    TransportError,
)
from lockstep.protocol.headers.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullHeader, PullReply
from lockstep.protocol.names import check_group, check_topic
from lockstep.protocol.tags import EXPRESSION_LENGTH_MAX, TagFilter
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.dispatch import handles
from lockstep.runtime.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.limits import REQUEST_HEADER_BYTES_MAX
from lockstep.runtime.log import get_logger
from lockstep.runtime.log_limit import log_limited
from lockstep.runtime.request import NO_RESPONSE, Outcome, Request, RetryLaterError
from lockstep.runtime.turn import Turn

log = get_logger("broker.pull")

T = TypeVar("T")

NATIVE_COUNT_MAX = 1_000
NATIVE_BYTES_MAX = 1 << 20
"""What one pull brings to a native client at most: a page of it is decoded in a millisecond."""
CLASSIC_COUNT_MAX = 32
CLASSIC_BYTES_MAX = 256 << 10
"""RocketMQ: maxTransferCountOnMessageInMemory, maxTransferBytesOnMessageInMemory."""
SUSPEND_MS_MAX = 30_000
"""Above RocketMQ's 20 s (Go, Python) and at its clients' own time-out of a pull."""
UNSENT_BYTES_MAX = 1 << 20
"""Unsent bytes of a connection above which its pulls wait. The server's endpoints pause at the same mark, so drain() tells the end."""
COLD_COUNT_MAX = 4
"""Cold reads at a time: they wait for one disk, and other work needs threads too."""
COLD_PER_CONNECTION_MAX = HELD_PER_CONNECTION_MAX
"""Pulls of one connection that wait for a cold read; one more is answered SYSTEM_BUSY."""
COLD_RETRY_MS = 200

TURN_BYTES_MAX = 8 << 20
"""Read and answered in one loop turn, some milliseconds' work; what is left has the next turn, behind what has come meanwhile."""

TURN_HELD_MAX = 512
"""Held pulls that one loop turn takes up: one message may wake all that wait for its queue, of any number of groups."""
PULL_HEADER_BYTES_MAX = REQUEST_HEADER_BYTES_MAX + 4 * EXPRESSION_LENGTH_MAX
"""A pull may bring a subscription expression."""
TURN_PULLS_MAX = 1_024
"""Pulls that one loop turn serves, of whatever kind."""
GIVEN_MAX = 10_000
"""Pairs of topic and group that are counted: whoever pulls may name any group."""

CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.NO_MATCHED: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_AT_END: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_LARGE: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.LOST: ResponseCode.PULL_OFFSET_MOVED,
}
"""The other two depend on the offset: 0 waits for the first message, anything else has moved."""


class Pull:
    """One pull on its way. `offset` runs ahead of the request's while it waits and what comes does not match its filter."""

    __slots__ = ("deadline_ms", "fault", "fresh", "gap", "held", "offset", "request")

    def __init__(self, request: Request) -> None:
        header: PullHeader = request.header
        self.request = request
        self.offset = header.queue_offset
        self.fresh = True
        """Not served yet: its commit bit counts, and filtered-out messages are answered at once."""
        self.deadline_ms: int | None = None
        """Until when it may be held; None: not at all."""
        self.gap: tuple[int, int] | None = None
        self.held: HeldPull[Pull] | None = None
        self.fault: Exception | None = None
        """It can't be served because of this error, and is answered so."""


class PullProcessor:
    """Serves pulls from the store, holds those that find nothing."""

    def __init__(
        self,
        host: Host,
        tasks: Tasks,
        store: Store,
        topics: TopicTable,
        coordination: Coordination,
        *,
        held_max: int = HELD_MAX,
        held_per_group_max: int = HELD_PER_GROUP_MAX,
    ) -> None:
        self._clock = host.clock
        self._tasks = tasks
        self._store = store
        self._topics = topics
        self._coordination = coordination
        self._holds: LongPollTable[Pull] = LongPollTable(held_max=held_max, held_per_group_max=held_per_group_max)
        self._found: deque[Pull] = deque()
        self._turn = Turn("pulls", self._serve_found, self._turn_failed)
        self._deadline = Turn("pulls.deadline", self._expire, lambda error: self._deadline.retry())
        self._deadline_ms = 0
        """When the deadline's turn is, while it is scheduled."""
        self.excess_count = 0
        """Held pulls that were answered before their time, since the start: more were held than may be."""
        self._blocked: dict[Endpoint, list[Pull]] = {}
        """Pulls of connections that have too much unsent."""
        self._cold: OrderedDict[Endpoint, deque[Pull]] = OrderedDict()
        """Pulls that wait for the disk: one connection after the other has its turn."""
        self._cold_count = 0
        self._turn_bytes = 0
        """Answered so far by this turn's share."""
        self.given: dict[tuple[str, str], tuple[int, int]] = {}
        """(topic, group) → messages and bytes given since the start; of at most GIVEN_MAX pairs, for metrics."""
        self._stopping = False

    @property
    def held_count(self) -> int:
        return len(self._holds)

    @property
    def held_max(self) -> int:
        return self._holds.held_max

    @handles(RequestCode.PULL_MESSAGE, PullHeader, header_bytes_max=PULL_HEADER_BYTES_MAX)
    def pull(self, request: Request) -> Outcome:
        header: PullHeader = request.header
        if request.is_oneway:
            return NO_RESPONSE
        pull = Pull(request)
        if header.sys_flag & SUSPEND and header.suspend_timeout_millis > 0:
            pull.deadline_ms = self._clock.monotonic_ms() + min(header.suspend_timeout_millis, SUSPEND_MS_MAX)
        self._serve_soon([pull])
        return NO_RESPONSE

    # ------------------------------------------------------------------------------------------------------------ what wakes

    def arrived(self, topic: str, queue_id: int) -> None:
        """Messages of the queue may be read from now on. The store calls it, once per queue and turn."""
        if self._ask(lambda holds: holds.mark_woken(topic, queue_id), False):
            self._turn.schedule()

    def stale(self, effect: StalePulls) -> None:
        """The group's epoch of the queue rose: who carries an older one is told now."""
        self._serve_soon(self._take(lambda holds: holds.take_group(effect.group, effect.topic, effect.queue_id)))

    def topic_changed(self, topic: str) -> None:
        """The topic's layout changed: who waits there is checked anew."""
        if self._ask(lambda holds: holds.mark_topic_woken(topic), False):
            self._turn.schedule()

    def connection_closed(self, endpoint: Endpoint) -> None:
        self._take(lambda holds: holds.take_connection(endpoint.id))
        self._blocked.pop(endpoint, None)
        self._cold.pop(endpoint, None)

    def stop(self) -> None:
        """Answers everyone who waits; from now on nobody is held."""
        self._stopping = True
        self._deadline.cancel()
        self._found += self._take(LongPollTable.take_all)
        while self._found:
            self._serve_found()

    def _expire(self) -> None:
        self._deadline.cancel()
        now_ms = self._clock.monotonic_ms()
        expired = self._take(lambda holds: holds.take_expired(now_ms, TURN_HELD_MAX))
        for pull in expired:
            pull.deadline_ms = None
        self._serve_soon(expired)
        self._arm()

    def _arm(self) -> None:
        """The one timer stands at or before the earliest deadline."""
        due_ms = self._ask(LongPollTable.next_deadline_ms, None)
        if due_ms is None or (self._deadline.is_scheduled and self._deadline_ms <= due_ms):
            return
        self._deadline_ms = due_ms
        self._deadline.schedule_after(max(1, due_ms - self._clock.monotonic_ms()))

    # ----------------------------------------------------------------------------------------------------------- held pulls

    def _take(self, take: Callable[["LongPollTable[Pull]"], list["HeldPull[Pull]"]]) -> list[Pull]:
        """What a call takes out of the table of held pulls."""
        none: list[HeldPull[Pull]] = []
        return [held.item for held in self._ask(take, none)]

    def _ask(self, call: Callable[["LongPollTable[Pull]"], T], otherwise: T) -> T:
        """A call of the table. After an error in it its indices may be wrong: it is emptied, and each held pull answered SYSTEM_ERROR."""
        try:
            return call(self._holds)
        except Exception as error:  # one table: all that it holds are answered
            self._give_up(error)
            return otherwise

    def _give_up(self, error: Exception, but: Pull | None = None) -> None:
        log_limited(
            log, "error", "pulls.failed", error=repr(error), exc_info=error, then="each pull that was held is answered SYSTEM_ERROR"
        )
        for held in self._holds.clear():
            if held.item is not but:
                held.item.fault = error
                self._found.append(held.item)
        self._turn.schedule()

    # --------------------------------------------------------------------------------------------------------------- serving

    def _serve_soon(self, pulls: list[Pull]) -> None:
        if pulls:
            self._found += pulls
            self._turn.schedule()

    def _serve_found(self) -> None:
        """One share of them a turn: heartbeats and commits are not kept waiting by a thousand groups that catch up at once."""
        found = self._found
        found += self._take(lambda holds: holds.take_woken(TURN_HELD_MAX))
        self._turn_bytes = 0
        for _ in range(min(len(found), TURN_PULLS_MAX)):
            if self._turn_bytes >= TURN_BYTES_MAX:
                break
            pull = found.popleft()
            try:
                self._serve(pull)
            except Exception as error:
                pull.request.fail(error)
        if found or self._holds.has_woken:
            self._turn.schedule()

    def _turn_failed(self, error: Exception) -> None:
        """Nobody knows how far the turn has come: what it would have served is answered SYSTEM_ERROR, what is held stays."""
        while self._found:
            self._found.popleft().request.fail(error)
        if self._holds.has_woken:
            self._turn.retry()

    def _takes(self, endpoint: Endpoint) -> bool:
        """The connection has room for another answer."""
        return endpoint not in self._blocked and endpoint.unsent_bytes <= UNSENT_BYTES_MAX

    def _serve(self, pull: Pull) -> None:
        request = pull.request
        if request.endpoint.closed:
            return
        if pull.fault is not None:
            request.fail(pull.fault)
            return
        if not self._takes(request.endpoint):
            self._block(pull)
            return
        if not self._check(pull):
            return
        header: PullHeader = request.header
        count, size = page_of(header)
        hashes = self._hashes(header)
        try:
            result = self._store.read(header.topic, header.queue_id, pull.offset, max_count=count, max_bytes=size, tag_hashes=hashes)
        except (StoreError, OSError) as error:
            raise _unreadable(pull, error) from error
        if result is None:
            self._read_cold(pull)
        else:
            self._deliver(pull, result)

    def _check(self, pull: Pull) -> bool:
        """RocketMQ's checks in RocketMQ's order, then the fence; False where it has been answered or nobody is there to be told."""
        request = pull.request
        header: PullHeader = request.header
        check_group(header.consumer_group)
        check_topic(header.topic)
        self._topics.check_readable(header.topic, header.queue_id)
        key = (header.consumer_group, header.topic, header.queue_id)
        check = self._coordination.pulls.check(request.endpoint.id, key, header.epoch, header.generation)
        if check is None:
            return False
        if check.stale:
            what = f"generation {header.generation}" if header.epoch is None else f"epoch {header.epoch}"
            remark = f"{what} of {header.consumer_group} at {header.topic}:{header.queue_id} is over: drop the queue"
            self._send(pull, ResponseCode.STALE_EPOCH, remark=remark)
            return False
        pull.gap = check.gap or pull.gap
        if pull.fresh and check.may_commit and header.sys_flag & COMMIT_OFFSET:
            self._commit(request, header)
        return True

    def _commit(self, request: Request, header: PullHeader) -> None:
        """The commit bit of a classic pull. It is no reason to refuse the pull."""
        try:
            self._coordination.legacy.update_offset(
                request.endpoint.id, (header.consumer_group, header.topic, header.queue_id), header.commit_offset, self._clock.boot_ms()
            )
        except (BrokerError, LocalProtocolError):
            pass

    def _hashes(self, header: PullHeader) -> frozenset[int] | None:
        """The tag hashes that the request, or else its group's subscription, asks for; None: everything."""
        if header.expression_type not in (None, "", "TAG"):
            raise BrokerSystemError(f"filters of type {header.expression_type} are not read here: use TAG")
        if header.sys_flag & SUBSCRIPTION:
            return tag_hashes(header.subscription)
        group, topic = header.consumer_group, header.topic
        subscription = self._coordination.membership.subscription(group, topic)
        if subscription is None:
            raise SubscriptionNotExistError(
                f"group {group} has no subscription to {topic} here: send HEART_BEAT first, or the expression with the pull"
            )
        if subscription.sub_version < header.sub_version:
            raise SubscriptionNotLatestError(
                f"group {group} has version {subscription.sub_version} of its subscription to {topic} here: send HEART_BEAT first"
            )
        return tag_hashes(subscription.expression)

    def _deliver(self, pull: Pull, result: ReadResult) -> None:
        status = result.status
        if status is ReadStatus.LOST and pull.gap is not None:
            # One gap in one answer: this one is told by the next pull, from the same offset.
            status, result = ReadStatus.NO_MATCHED, replace(result, status=ReadStatus.NO_MATCHED, next_offset=pull.offset)
        code = CODES.get(status, ResponseCode.PULL_NOT_FOUND if pull.offset == 0 else ResponseCode.PULL_OFFSET_MOVED)
        skipped = status is ReadStatus.NO_MATCHED and not pull.fresh and result.next_offset >= result.max_offset
        pull.fresh = False
        if skipped:
            # What has come is for others: it goes on waiting behind that.
            pull.offset = result.next_offset
        if (skipped or code == ResponseCode.PULL_NOT_FOUND) and self._hold(pull):
            return
        self._send(pull, code, result)

    def _hold(self, pull: Pull) -> bool:
        header: PullHeader = pull.request.header
        endpoint = pull.request.endpoint
        if pull.deadline_ms is None or self._stopping or pull.gap is not None:
            return False
        if pull.held is None:
            place = header.consumer_group, header.topic, header.queue_id
            pull.held = HeldPull(pull, endpoint.id, *place, pull.deadline_ms, expression_bytes(header.subscription))
        if self._store.bounds(header.topic, header.queue_id)[1] > pull.offset:
            self._serve_soon([pull])
            return True
        try:
            if not self._holds.hold(pull.held):
                return False
            oldest = self._holds.take_excess(pull.held)
        except Exception as error:  # re-raised
            self._give_up(error, but=pull)
            raise
        if oldest is not None:
            self.excess_count += 1
            oldest.item.deadline_ms = None  # it is answered as at its deadline
            self._serve_soon([oldest.item])
        self._arm()
        return True

    # -------------------------------------------------------------------------------------------------------------- answering

    def _send(self, pull: Pull, code: ResponseCode, result: ReadResult | None = None, remark: str | None = None) -> None:
        request = pull.request
        if result is None:
            request.respond(request.reply(code=code, remark=remark))
            return
        answer = PullReply(result.next_offset, result.min_offset, result.max_offset)
        if pull.gap is not None:
            answer = PullReply(result.next_offset, result.min_offset, result.max_offset, 0, *pull.gap)
        command = request.reply(answer, code=code, remark=None if code == ResponseCode.SUCCESS else result.status.value)
        if result.parts:
            self._turn_bytes += sum(map(len, result.parts))
            self._count(request.header, result)
        request.respond(command, result.parts)

    def _count(self, header: PullHeader, result: ReadResult) -> None:
        key = header.topic, header.consumer_group
        count, size = self.given.get(key, (0, 0))
        if count or len(self.given) < GIVEN_MAX:
            self.given[key] = count + result.count, size + result.body_bytes

    # ---------------------------------------------------------------------------------------------------- what has to wait

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

    def _read_cold(self, pull: Pull) -> None:
        waiting = self._cold.setdefault(pull.request.endpoint, deque())
        if len(waiting) >= COLD_PER_CONNECTION_MAX:
            raise RetryLaterError(f"{len(waiting)} pulls of this connection wait for the disk", COLD_RETRY_MS)
        waiting.append(pull)
        if self._cold_count < COLD_COUNT_MAX:
            self._cold_count += 1
            self._tasks.spawn(self._read_cold_ones(), "cold reads")

    async def _read_cold_ones(self) -> None:
        """One of at most COLD_COUNT_MAX readers; ends when nobody waits."""
        try:
            while self._cold:
                endpoint, waiting = self._cold.popitem(last=False)
                pull = waiting.popleft()
                if waiting:
                    self._cold[endpoint] = waiting
                try:
                    await self._read_one_cold(pull)
                except Exception as error:
                    pull.request.fail(error)
        finally:
            self._cold_count -= 1

    async def _read_one_cold(self, pull: Pull) -> None:
        header: PullHeader = pull.request.header
        if not self._takes(pull.request.endpoint):
            self._block(pull)
            return
        count, size = page_of(header)
        hashes = self._hashes(header)
        try:
            result = await self._store.read_cold(
                header.topic, header.queue_id, pull.offset, max_count=count, max_bytes=size, tag_hashes=hashes
            )
        except (StoreError, OSError) as error:
            raise _unreadable(pull, error) from error
        # The epoch may have risen meanwhile, the connection may be closed.
        if not pull.request.endpoint.closed and self._check(pull):
            self._deliver(pull, result)


def _unreadable(pull: Pull, error: StoreError | OSError) -> BrokerSystemError:
    header: PullHeader = pull.request.header
    log_limited(log, "error", "read.failed", topic=header.topic, queue_id=header.queue_id, offset=pull.offset, error=str(error))
    return BrokerSystemError(str(error))


def page_of(header: PullHeader) -> tuple[int, int]:
    """(messages, bytes) that one answer brings at most: the client asks, the broker caps. Naming bytes is what native clients do."""
    if header.max_msg_bytes is None:
        return max(1, min(header.max_msg_nums, CLASSIC_COUNT_MAX)), CLASSIC_BYTES_MAX
    return max(1, min(header.max_msg_nums, NATIVE_COUNT_MAX)), max(1, min(header.max_msg_bytes, NATIVE_BYTES_MAX))


@lru_cache(maxsize=1024)
def tag_hashes(expression: str | None) -> frozenset[int] | None:
    """The hashes that a tag expression lets pass; None: everything. SubscriptionParseError says what is wrong with it."""
    try:
        parsed = TagFilter.parse(expression)
    except LocalProtocolError as error:
        raise SubscriptionParseError(str(error)) from None
    return None if parsed.all else parsed.hashes

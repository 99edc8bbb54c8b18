"""UPDATE_AND_CREATE_TOPIC, and topics that a first send creates if the broker allows it.

RocketMQ: AdminBrokerProcessor, TopicConfigManager.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from lockstep.broker.tables.topic_table import TopicTable, topic_missing
from lockstep.broker.tables.write_holds import WriteHolds
from lockstep.protocol.bodies import CreateTopicReply
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import MessageIllegalError, NoPermissionError, RemoteProtocolError
from lockstep.protocol.headers.routes import (
    CreateTopicHeader,
    ForgetDeletionsHeader,
    ForgetDeletionsReply,
    HoldWritesHeader,
    HoldWritesReply,
)
from lockstep.protocol.names import check_topic
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.clock import Clock
from lockstep.runtime.limits import LAYOUTS_BYTES_MAX
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import CREATE, DELETE, SUPER_USER, UPDATE, inside, on_topic
from lockstep.runtime.requests.request import AuditedChange, HandlerResult, PendingResponse, Request, RunInLane
from lockstep.runtime.security.authenticated_user import ANYBODY, RequestUser
from lockstep.runtime.security.rights import Kind, resource

log = get_logger("broker")

ROUTE_LANE = "routes"
"""The lane of responses that wait until the nameservers know a new topic."""
FIRST_SENDS_MS = 60_000
"""How long clients may send to a new topic by the route of TBW102, which names every broker: they ask for a route every 30 s."""
AUTO_CREATE_QUEUES_MAX = 8
"""Queues of a topic that a send creates at most. RocketMQ: those of TBW102, from which such a topic inherits (the client asks for 4)."""


class TopicProcessor:
    """Creates, alters and deletes topics by the rules of TopicTable."""

    def __init__(
        self,
        topics: TopicTable,
        holds: WriteHolds,
        clock: Clock,
        *,
        auto_create: bool,
        wait_until_known: Callable[[], Awaitable[None]] | None = None,
        may_begin: Callable[[str], None] | None = None,
    ) -> None:
        """`wait_until_known` returns when the nameservers know the layouts of this broker, or after a short time; None: they always do.
        `may_begin` raises ServiceNotAvailableError if the disk has no room for a new topic.
        """
        self._wait_until_known = wait_until_known
        self._topics = topics
        self._holds = holds
        self._clock = clock
        self.auto_create = auto_create
        """Whether sends create topics."""
        self._may_begin = may_begin
        self._new_topics: OrderedDict[str, int] = OrderedDict()
        """Topic → when this broker learned of it (boot time, ms), for the last FIRST_SENDS_MS at least. The oldest first."""

    @handles(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        CreateTopicHeader,
        bytes,
        needs=[inside("Create, Update or Delete topic", changes=True)],
        body_bytes_max=LAYOUTS_BYTES_MAX,
    )
    def create_topic(self, request: Request) -> HandlerResult:
        header: CreateTopicHeader = request.header
        check_topic(header.topic)
        before = self._topics.find_layout(header.topic)
        request.change = change = topic_change(header.topic, before)
        asked = self._asked(header, request.body)
        known = before is not None
        request.user.check_topic(header.topic, (DELETE if asked is not None and asked.deleted else UPDATE) if known else CREATE)
        if header.auto and not self.auto_create and self._topics.find_layout(header.topic) is None:
            raise topic_missing(header.topic)
        self.check_disk(header.topic)
        if header.hold_id is not None and not self._holds.in_force(header.topic, header.hold_id, self._clock.boot_ms()):
            raise NoPermissionError(f"the writes to topic {header.topic} are not held any more, so its layout was not changed")
        layout = self._create(header, asked)
        change.after = layout_facts(layout)
        return PendingResponse(request.reply(body=CreateTopicReply(layout)))

    @handles(RequestCode.HOLD_WRITES, HoldWritesHeader, needs=[on_topic(UPDATE)])
    def hold_writes(self, request: Request) -> HandlerResult:
        """Begin, renew or end a hold of a topic's writes. The response follows whatever the broker has appended before."""
        header: HoldWritesHeader = request.header
        if header.lease_ms <= 0:
            self._holds.release(header.topic, header.hold_id)
            return PendingResponse(request.reply(HoldWritesReply(False)))
        self._topics.require_layout(header.topic)
        begun = self._holds.hold(header.topic, header.hold_id, header.lease_ms, self._clock.boot_ms())
        if not begun:
            request.change = None  # it was renewed
        else:
            log_limited(log, "info", "writes.held", topic=header.topic, lease_ms=header.lease_ms, peer=request.endpoint.peer)
        return PendingResponse(request.reply(HoldWritesReply(begun)))

    @handles(RequestCode.FORGET_DELETIONS, ForgetDeletionsHeader, needs=SUPER_USER)
    def forget_deletions(self, request: Request) -> HandlerResult:
        header: ForgetDeletionsHeader = request.header
        forgotten = self._topics.forget_deletions(header.counter_max) if header.counter_max > 0 else 0
        remembered = self._topics.layouts.deleted_count
        request.change = AuditedChange("cluster", after={"forgotten": forgotten})
        if forgotten:
            log.warning("deletions.forgotten", count=forgotten, remembered=remembered, peer=request.endpoint.peer)
        return PendingResponse(request.reply(ForgetDeletionsReply(forgotten, remembered)))

    def respond_when_known(self, request: Request, result: Command | PendingResponse) -> HandlerResult:
        """Return the response to a request of a RocketMQ client that has created a topic: it is sent when the nameservers know the topic.

        Such a client asks for the route at once and then not for 20 to 30 s. A native client is notified, so it gets `result` now.
        """
        known = self._wait_until_known
        if request.is_native or known is None:
            return result

        async def wait() -> HandlerResult:
            await known()
            return result

        return RunInLane(ROUTE_LANE, wait)

    def topic_changed(self, topic: str) -> None:
        """Remember when this broker learned of a new topic, until an operator removes queues of it."""
        layout = self._topics.find_layout(topic)
        if layout is None or any(entry.is_marker for entry in layout.entries):
            self._new_topics.pop(topic, None)
        elif topic not in self._new_topics and _has_only_first_queues(layout):
            now_ms = self._clock.boot_ms()
            while self._new_topics and now_ms - next(iter(self._new_topics.values())) > FIRST_SENDS_MS:
                self._new_topics.popitem(last=False)
            self._new_topics[topic] = now_ms

    def find_or_create(self, topic: str, queue_count: int, queue_id: int = 0, user: RequestUser = ANYBODY) -> TopicLayout:
        """Return the topic of a classic send: the layout in force, or one with queues at this broker if that is allowed. Raise
        TopicNotExistError otherwise, and AccessDeniedError if the user may not create it.

        The topic may be new and have been created by a send to another broker. By the route of TBW102 its client sends to queues of this
        one too, so they are added, as if the first send had come here.
        """
        layout = self._topics.find_layout(topic)
        count = max(1, min(queue_count, AUTO_CREATE_QUEUES_MAX))
        if layout is not None and not (self.auto_create and self._is_first_send(layout, count, queue_id)):
            return layout
        if not self.auto_create:
            raise topic_missing(topic)
        user.check_topic(topic, CREATE)
        self.check_disk(topic)
        return self._topics.create_own(topic, count, count)

    def _is_first_send(self, layout: TopicLayout, count: int, queue_id: int) -> bool:
        """Return whether a send of one of `count` queues by the route of TBW102 is the first to a queue that this broker lacks.

        A broker that has queues since the creation has all that were asked for.
        """
        own = self._topics.own_write_count(layout)
        if not own <= queue_id < count or own != self._topics.own_read_count(layout) or self._topics.has_oldest_queue(layout):
            return False
        since_ms, now_ms = self._new_topics.get(layout.topic), self._clock.boot_ms()
        return since_ms is not None and now_ms - since_ms <= FIRST_SENDS_MS and not self._holds.holds(layout.topic, now_ms)

    def check_disk(self, topic: str) -> None:
        """Raise ServiceNotAvailableError if the topic is new and the disk has no room for it."""
        if self._may_begin is not None and self._topics.find_layout(topic) is None:
            self._may_begin(f"topic {topic}")

    def _asked(self, header: CreateTopicHeader, body: bytes | bytearray | memoryview) -> TopicLayout | None:
        """Return the layout that a request brings, or None."""
        if not body:
            return None
        try:
            asked = decode_body(TopicLayout, body)
        except RemoteProtocolError as error:
            raise MessageIllegalError(f"the layout can't be read: {error}") from None
        if asked.topic != header.topic:
            raise MessageIllegalError(f"the header names topic {header.topic}, the layout {asked.topic}")
        return asked

    def _create(self, header: CreateTopicHeader, asked: TopicLayout | None) -> TopicLayout:
        if asked is None:
            return self._topics.create_own(header.topic, header.read_queue_nums, header.write_queue_nums)
        return self._topics.create(asked)


def topic_change(topic: str, before: TopicLayout | None, after: TopicLayout | None = None) -> AuditedChange:
    """Return what the audit knows of a change of a topic."""
    return AuditedChange(resource(Kind.TOPIC, topic), layout_facts(before), layout_facts(after))


def layout_facts(layout: TopicLayout | None) -> dict[str, int | bool] | None:
    """Return what the audit knows of a layout: its counter, and how many brokers and queues it has."""
    if layout is None:
        return None
    read, write = sum(each.read_queue_count for each in layout.entries), sum(each.write_queue_count for each in layout.entries)
    return {"counter": layout.version.counter, "brokers": len(layout.brokers), "read": read, "write": write, "deleted": layout.deleted}


def _has_only_first_queues(layout: TopicLayout) -> bool:
    """Return whether one broker created the topic, as a first send does, and each change since then gave another one its first queues.

    Commands and lockstep's SDK give all brokers their queues at once.
    """
    brokers, counters = {entry.broker_name for entry in layout.entries}, {entry.counter for entry in layout.entries}
    return len(brokers) == len(counters) == len(layout.entries) > layout.version.counter - layout.began

"""One client of one cluster in one event loop. RocketMQ: MQClientInstance (one per client id).

Producers and consumers with the same Client in one event loop share an instance: one session, one connection per broker, one route cache,
one heartbeat. References to it are counted. A second consumer of one group gets another instance, because a session names each group once.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from lockstep.client.broker_link import SHORTEST_SESSION_MS, BrokerLink, LinkHooks
from lockstep.client.cluster_client import ClusterClient
from lockstep.client.config import ClientConfig
from lockstep.client.consumer.grants.broker_sessions import BrokerSessions
from lockstep.client.outages import Outages
from lockstep.client.producer.machines.request_table import ReplyVerdict
from lockstep.client.route_cache import RouteCache, RouteDifference
from lockstep.client.route_watch import RouteWatch
from lockstep.protocol.bodies import (
    ConsumerGroup,
    FreeQueue,
    HeartbeatBody,
    HeartbeatReply,
    ProducerGroup,
    QueueFreeBody,
    RunningInfo,
    SyncBody,
)
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import (
    BrokerError,
    DuplicateClientIdError,
    NoPermissionError,
    RemoteProtocolError,
    ServiceNotAvailableError,
    StateError,
    SubscriptionConflictError,
    TransportError,
    without_frames,
)
from lockstep.protocol.headers.clients import NotifyHeader, UnregisterClientHeader
from lockstep.protocol.headers.tools import PushReplyHeader, RunningInfoHeader
from lockstep.protocol.headers.transactions import CheckTransactionHeader
from lockstep.protocol.messages.message import MessageExt, decode_messages
from lockstep.protocol.messages.properties import CORRELATION_ID, PGROUP, split_properties
from lockstep.protocol.object_text import text_of
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.safe_text import printable
from lockstep.runtime.security.client_security import ClientSecurity

log = get_logger("lockstep.client")

OUTAGE_CHECK_S = 1
"""How often outages are looked at while there are some."""
NO_ADDRESS = "no nameserver knows its address: it has not registered since the nameserver started"
CONFLICT_PAUSE_MS = 400
"""Less than the 500 ms after which a consumer requests a missing member list from a broker again."""


def _ignore(*_: object) -> None:
    return None


def _reconnect_if_silent(link: BrokerLink, endpoint: Endpoint | None, future: "asyncio.Future[Command]") -> None:
    """Reconnect if the broker did not respond to an empty SYNC within the grace."""
    if not future.cancelled() and future.exception() is not None and link.endpoint is endpoint:
        link.reconnect("no response to an empty SYNC within the grace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHooks:
    """The callbacks of a consumer. They are called on the event loop, in the order of events, and must not block."""

    on_up: Callable[[BrokerLink, HeartbeatReply], None]
    """The broker was (re)connected and responded to HEART_BEAT: LOCK comes next."""
    on_down: Callable[[BrokerLink], None]
    """The connection was closed."""
    on_heartbeat_reply: Callable[[BrokerLink, HeartbeatReply], None] = _ignore
    """The broker responded to a later HEART_BEAT (every 30 s, and after a join)."""
    on_notice: Callable[[BrokerLink, NotifyHeader], None]
    """The group's member list at that broker changed."""
    on_queue_free: Callable[[BrokerLink, QueueFreeBody], None]
    """Queues of this group are free at that broker."""
    on_layout: Callable[[TopicLayout], None] = _ignore
    """A topic has a higher layout than before, or is new."""
    queue_count: Callable[[str], int] = lambda _: 0
    """Returns how many queues of a broker are assigned to this consumer."""
    on_refused: Callable[[BrokerLink, BrokerError], None] = _ignore
    """A running member was refused (SUBSCRIPTION_CONFLICT, DUPLICATE_CLIENT_ID): no further heartbeat names it."""
    on_failed: Callable[[BaseException], None] = _ignore
    """A task of the shared client died: the session is no longer kept alive."""
    running_info: Callable[[BrokerLink, RunningInfoHeader], RunningInfo | None] = lambda _, __: None
    """Returns what the consumer is doing; None if that is not known."""


@dataclass(slots=True)
class _Consumer:
    group: str
    supplier: Callable[[], ConsumerGroup]
    hooks: ConsumerHooks
    everywhere: bool = False
    """The heartbeats to every broker name it."""
    joined: dict[str, None] = field(default_factory=dict)
    """During a join: the brokers that receive it in heartbeats."""
    paused_until_ms: dict[str, int] = field(default_factory=dict)
    """Brokers whose heartbeats don't name it before this time (monotonic ms): by then members with the other contract have expired."""
    refusal: BrokerError | None = None

    def is_named(self, broker_name: str, now_ms: int) -> bool:
        """Return whether the next heartbeat to this broker names it."""
        return (self.everywhere or broker_name in self.joined) and now_ms >= self.paused_until_ms.get(broker_name, now_ms)


def _is_about(error: BrokerError, consumer: _Consumer) -> bool:
    """Return whether the error is about the consumer's group. The remark of a conflict begins with its name, and may name commands."""
    words = f"group {consumer.group} "
    return error.remark.startswith(words) if isinstance(error, SubscriptionConflictError) else words in error.remark


OnCheck: TypeAlias = Callable[[BrokerLink, CheckTransactionHeader, MessageExt], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProducerHooks:
    """The callbacks of a producer."""

    on_link: Callable[[BrokerLink], None]
    """The broker was connected or disconnected."""
    on_layout: Callable[[TopicLayout], None]
    """A topic has a higher layout than before, or is new."""
    send_count: Callable[[str], int] = lambda _: 0
    """Returns how many sends to a broker are not acknowledged."""
    knows_request: Callable[[str], bool] = lambda _: False
    """Returns whether the request of this correlation id is one of the producer."""
    on_check: OnCheck | None = None
    """Takes a broker's question how the transaction of a half message has ended; None: the producer is not asked."""
    runs_transaction: Callable[[str], bool] = lambda _: False
    """Returns whether a block of the producer with this transaction id has not ended."""
    on_reply: Callable[[PushReplyHeader, Mapping[str, str], bytes], str | None] = lambda _, __, ___: None
    """Takes a reply to one of its requests, with its properties. Returns why it is dropped; None if it is not."""


class Instance:
    """The shared client of one event loop: identity, routes, links, heartbeats. `Client.instance()` returns one; end it by `await
    close()`."""

    def __init__(self, addresses: tuple[str, ...], *, security: ClientSecurity, host: Host, config: ClientConfig) -> None:
        self.loop = asyncio.get_running_loop()
        self.host = host
        self.security = security
        self.config = config
        self.routes = RouteCache()
        self.session = host.random.token(16).hex()
        """128 random bits that identify this start of the client."""
        self.cluster = ClusterClient(
            host,
            addresses,
            security=security,
            timeout_ms=config.request_timeout_ms,
            first=host.random.below(len(addresses)),
            tries=max(2, len(addresses)),  # a single one twice: its connection may have been lost unnoticed
        )
        self.cluster.keep(redial_ms=0)
        self.watch = RouteWatch(self.routes, self.cluster, config, host.clock, learned=self._layout_learned)
        self.closing = False
        self._pid = os.getpid()
        self._identity = host.random.token(8).hex()
        self._references = 0
        self._reserved: dict[str, None] = {}
        self._begun = False
        self._links: dict[str, BrokerLink] = {}
        self._consumers: dict[str, _Consumer] = {}
        self._producers: dict[ProducerHooks, str] = {}
        self._outages = Outages()
        self._reports_outages = False
        self.sessions = BrokerSessions(host, lambda: self.closing)
        self.tasks = Tasks(on_failure=self._failed)

    def reserve(self, group: str | None) -> bool:
        """Take a reference, and reserve the consumer group if one is named. Return False if the group is reserved already."""
        if group in self._reserved:
            return False
        self._references += 1
        if group is not None:
            self._reserved[group] = None
        return True

    # -------------------------------------------------------------------------------------------------------------- identity

    @property
    def client_id(self) -> str:
        """`ip@pid#16 hex digits`. The address is the local end of the nameserver connection, so it is known after `start`."""
        return f"{self.cluster.local_ip or '127.0.0.1'}@{self.host.pid}#{self._identity}"

    async def start(self) -> None:
        """Connect to one nameserver. Raise TransportError if none responds; `start` may be called again."""
        self.begin()
        await self.cluster.connect()

    def begin(self) -> None:
        """Start heartbeats and route requests, once for all that share the instance. The first request connects to a nameserver."""
        if self.closing:
            raise StateError("this client is closed: make a new producer or consumer")
        if not self._begun:
            self._begun = True
            self.tasks.spawn(self._heartbeat_loop(), "client.heartbeat")
            self.tasks.spawn(self._keepalive_loop(), "client.keepalive")
            self.tasks.spawn(self.watch.run(), "client.routes")

    async def close(self, *, group: str | None = None) -> None:
        """Release one reference (and the reserved group). The last release closes the connections; so does any if the loop is closed."""
        if self.loop.is_closed():
            self.abandon()
            return
        if group is not None:
            self._reserved.pop(group, None)
        self._references -= 1
        if self._references > 0 or self.closing:
            return
        self.closing = True
        await self.tasks.cancel_all()
        for link in self.links():
            await link.close()
        await self.cluster.close()

    def abandon(self) -> None:
        """Close the connections of an instance whose event loop is closed. In a forked child, those of the parent are left alone."""
        if self._pid != os.getpid():
            return
        self.closing = True
        for link in self.links():
            link.abandon()
        self.cluster.abandon()

    # ----------------------------------------------------------------------------------------------------------------- links

    def links(self) -> list[BrokerLink]:
        """Return every linked broker, up or not, in the order of their names."""
        return [self._links[name] for name in sorted(self._links)]

    def link(self, broker_name: str) -> BrokerLink | None:
        """Return the link to one broker; None if no watched topic has named it and `link_all` has not linked it."""
        return self._links.get(broker_name)

    def _layout_learned(self, layout: TopicLayout, change: RouteDifference) -> None:
        if not self.closing:
            self._link(self.watch.unlinked(layout.topic, change.moved, self._links), change.moved)
            for name in self.routes.brokers_of(layout.topic):
                link = self._links.get(name)
                if link is None or not link.up:
                    self._outage_began(name)
        if not change.layout:
            return
        log.info("layout.adopted", topic=layout.topic, counter=layout.version.counter, queues=layout.write_total)
        for consumer in list(self._consumers.values()):
            consumer.hooks.on_layout(layout)
        for hooks in list(self._producers):
            hooks.on_layout(layout)

    def _link(self, unlinked: Iterable[str], moved: Iterable[str]) -> None:
        """Link brokers, and connect at once to those that have another address or a higher term now."""
        for name in unlinked:
            self._links[name] = self._make_link(name)
        for name in moved:
            if name in self._links:
                self._links[name].follow(self.routes.term(name))

    async def link_all(self) -> None:
        """Link every registered broker, whether or not a watched topic names it. Without a response of a nameserver do nothing.

        A topic that does not exist yet may get queues at any of them, and each must know before which groups subscribe to it
        (ordering.md 7.8).
        """
        try:
            brokers = await self.cluster.brokers()
        except (TransportError, BrokerError, RemoteProtocolError) as error:
            log.debug("brokers.unknown", error=str(error))
            return
        moved = self.routes.merge_brokers(brokers)
        if not self.closing:
            self._link([broker.name for broker in brokers if broker.registered and broker.name not in self._links], moved)

    def _make_link(self, name: str) -> BrokerLink:
        hooks = LinkHooks(
            describe=self._describe,
            refused=self._heartbeat_refused,
            up=self._link_up,
            down=self._link_down,
            heartbeat_reply=self._link_heartbeat_reply,
            notice=self._notice,
            queue_free=self._queue_free,
            layouts_changed=self._layouts_changed,
            running_info=self._running_info,
            reply=self._reply,
            check=self._check,
            unreachable=lambda _: self.watch.refresh_soon(),
            heard=lambda link, term: self.routes.hear(link.name, term),
        )
        timeout_ms = self.config.request_timeout_ms
        known = partial(self.routes.addresses, name)
        return BrokerLink(self.host, name, known, hooks, security=self.security, request_timeout_ms=timeout_ms)

    def _link_up(self, link: BrokerLink, reply: HeartbeatReply) -> None:
        self.routes.found(link.name, link.address, reply.term)
        down_ms = self._outages.end(link.name, self.host.clock.monotonic_ms())
        reported = {} if down_ms is None else {"down_ms": down_ms}
        log.info("broker.connected", broker=link.name, connection=link.connection, term=reply.term, **reported)
        for consumer in list(self._consumers.values()):
            consumer.hooks.on_up(link, reply)
        if self._consumers:
            self.watch.refresh_soon()  # layouts that changed while the connection was closed were not announced to this client
        self._notify_producers(link)

    def _link_down(self, link: BrokerLink) -> None:
        log.info("broker.disconnected", broker=link.name, connection=link.connection, reason=link.why_down)
        self._outage_began(link.name)
        for consumer in list(self._consumers.values()):
            consumer.hooks.on_down(link)
        self._notify_producers(link)

    def _link_heartbeat_reply(self, link: BrokerLink, reply: HeartbeatReply) -> None:
        for consumer in list(self._consumers.values()):
            consumer.hooks.on_heartbeat_reply(link, reply)

    def _notice(self, link: BrokerLink, notice: NotifyHeader) -> None:
        consumer = self._consumers.get(notice.consumer_group)
        if consumer is not None:
            consumer.hooks.on_notice(link, notice)

    def _queue_free(self, link: BrokerLink, free: QueueFreeBody) -> None:
        by_group: dict[str, list[FreeQueue]] = {}
        for queue in free.queues:
            by_group.setdefault(queue.group, []).append(queue)
        for group, queues in by_group.items():
            if group in self._consumers:
                self._consumers[group].hooks.on_queue_free(link, QueueFreeBody(tuple(queues)))

    def _running_info(self, link: BrokerLink, header: RunningInfoHeader) -> RunningInfo | None:
        consumer = self._consumers.get(header.consumer_group)
        return None if consumer is None else consumer.hooks.running_info(link, header)

    def _reply(self, link: BrokerLink, header: PushReplyHeader, body: bytes) -> str | None:
        properties = split_properties(header.properties)
        correlation_id = properties.get(CORRELATION_ID, "")
        for hooks in list(self._producers):
            if hooks.knows_request(correlation_id):
                return hooks.on_reply(header, properties, body)
        log.info("reply.dropped", broker=link.name, replier=printable(header.born_host), reason=ReplyVerdict.UNKNOWN.value)
        return ReplyVerdict.UNKNOWN.value

    def _check(self, link: BrokerLink, header: CheckTransactionHeader, body: bytes) -> None:
        if any(hooks.runs_transaction(header.transaction_id) for hooks in self._producers):
            return  # the broker asks again later
        for message in decode_messages(body, link.name):
            group = message.all_properties.get(PGROUP, "")
            asked = [hooks.on_check for hooks, named in self._producers.items() if named == group and hooks.on_check is not None]
            for on_check in asked[:1]:
                on_check(link, header, message)

    def _layouts_changed(self, layouts: Sequence[TopicLayout]) -> None:
        for layout in layouts:
            self.watch.expect(layout.topic, layout.version)

    def _notify_producers(self, link: BrokerLink) -> None:
        for hooks in list(self._producers):
            hooks.on_link(link)

    # ------------------------------------------------------------------------------------------------------------ membership

    def register_producer(self, group: str, hooks: ProducerHooks) -> None:
        """Name the producer group in heartbeats, and call the hooks for links and layouts, until `unregister_producer(hooks)`."""
        self._producers[hooks] = group

    def unregister_producer(self, hooks: ProducerHooks) -> None:
        self._producers.pop(hooks, None)

    def register_consumer(self, group: str, supplier: Callable[[], ConsumerGroup], hooks: ConsumerHooks) -> None:
        """Call the hooks for this group from now on. No heartbeat names it before `join`. `supplier` returns how HEART_BEAT describes
        it."""
        if group in self._consumers:
            raise StateError(f'group "{group}" is in this client already: ask Client.instance(group) for one of its own')
        self._consumers[group] = _Consumer(group, supplier, hooks)

    def unregister_consumer(self, group: str) -> None:
        """Stop calling the group's hooks and naming it in heartbeats. Call `leave` before."""
        self._consumers.pop(group, None)

    async def join(self, group: str) -> None:
        """Send HEART_BEAT with the group to one broker after another, in the order of their names.

        A broker that can't be reached gets the group when it is connected. If a broker refuses it (SubscriptionConflictError,
        DuplicateClientIdError, another BrokerError), leave the brokers that it has joined, and raise the refusal.
        """
        consumer = self._consumers[group]
        consumer.refusal = None
        while missing := [link for link in self.links() if link.name not in consumer.joined]:
            for link in missing:
                # Before the first HEART_BEAT: from that on, queues wait for this member until it has joined the last broker.
                await link.wait_first_attempt()
            for link in missing:
                await self._join_one(consumer, link)
        consumer.everywhere = True
        self.watch.refresh_soon()  # layouts that changed since the routes were requested were not announced to this client

    async def _join_one(self, consumer: _Consumer, link: BrokerLink) -> None:
        consumer.joined[link.name] = None
        if not link.up:
            return
        try:
            await link.heartbeat()
        except (TransportError, RemoteProtocolError) as error:
            log.info("group.join_deferred", group=consumer.group, broker=link.name, error=str(error))
        except BrokerError as error:
            if self._is_of_another(error, consumer, link) and await self._heartbeat_refused(link, error):
                await self._join_one(consumer, link)
                return
            consumer.refusal = without_frames(error)
        if consumer.refusal is not None:
            await self.leave(consumer.group)
            refusal, consumer.refusal = consumer.refusal, None
            try:
                raise refusal
            finally:
                del refusal  # its traceback holds this frame

    def _is_of_another(self, error: BrokerError, consumer: _Consumer, link: BrokerLink) -> bool:
        """Return whether the heartbeat of this group's join was refused because of another group that it names too."""
        others = [other for other in self._named(link) if other is not consumer]
        return isinstance(error, SubscriptionConflictError) and any(_is_about(error, other) for other in others)

    async def leave(self, group: str) -> None:
        """Send UNREGISTER_CLIENT to every broker at once: it leaves the member lists now; session and locks remain, hooks are called until
        unregistered."""
        consumer = self._consumers[group]
        consumer.everywhere = False
        consumer.joined.clear()
        header = UnregisterClientHeader(self.client_id, consumer_group=group)
        links = [link for link in self.links() if link.up]
        requests = [link.request(RequestCode.UNREGISTER_CLIENT, header) for link in links]
        # All at once: a leave that is cancelled must not leave a response that nothing awaits.
        for link, response in zip(links, await asyncio.gather(*requests, return_exceptions=True), strict=True):
            if isinstance(response, BaseException):
                log.info("group.leave_failed", group=group, broker=link.name, error=str(response))

    async def heartbeat_now(self) -> None:
        """Send HEART_BEAT to every connected broker, one after another. Refusals go to the consumers' `on_refused`."""
        for link in self.links():
            if not link.up:
                continue
            try:
                await link.heartbeat()
            except BrokerError as error:
                await self._heartbeat_refused(link, error)
            except (TransportError, RemoteProtocolError) as error:
                log.warning("heartbeat.failed", broker=link.name, error=str(error))

    def _named(self, link: BrokerLink) -> list[_Consumer]:
        now_ms = self.host.clock.monotonic_ms()
        return [consumer for consumer in self._consumers.values() if consumer.is_named(link.name, now_ms)]

    def _describe(self, link: BrokerLink, connection: int) -> HeartbeatBody:
        named = self._named(link)
        groups = dict.fromkeys(self._producers.values())
        checks = {group for hooks, group in self._producers.items() if hooks.on_check is not None}
        return HeartbeatBody(
            self.client_id,
            tuple(consumer.supplier() for consumer in named),
            tuple(ProducerGroup(group, True if group in checks else None) for group in groups),
            self.session,
            connection,
        )

    async def _heartbeat_refused(self, link: BrokerLink, error: BrokerError) -> bool:
        """Handle the refusal of a heartbeat that is not part of a join: stop naming the consumers that caused it, and notify them.

        If the refusal may be temporary they are named again after a while: a broker that was down keeps the contract of earlier members
        until the session timeout, and one that has no room for a new group may get some. Until then the link is up for the producers and
        the other groups of this client.
        """
        log.error("heartbeat.refused", broker=link.name, error=str(error))
        named = self._named(link)
        if isinstance(error, SubscriptionConflictError | NoPermissionError | ServiceNotAvailableError):
            concerned = [consumer for consumer in named if _is_about(error, consumer)] or named
            if not isinstance(error, SubscriptionConflictError) or error.temporary:
                for consumer in concerned:
                    pause_ms = CONFLICT_PAUSE_MS if error.retry_after_ms is None else error.retry_after_ms
                    consumer.paused_until_ms[link.name] = self.host.clock.monotonic_ms() + pause_ms
                return bool(concerned)
        elif isinstance(error, DuplicateClientIdError):
            concerned = named
        else:
            return False
        for consumer in concerned:
            consumer.everywhere = False
            consumer.joined.clear()
            consumer.refusal = without_frames(error)
            consumer.hooks.on_refused(link, error)
        return bool(concerned)

    # ----------------------------------------------------------------------------------------------------------------- loops

    async def _heartbeat_loop(self) -> None:
        while True:
            await asyncio.sleep(self.config.heartbeat_interval_ms / 1000)
            await self.heartbeat_now()

    async def _keepalive_loop(self) -> None:
        """Send an empty SYNC every 5 s, which keeps the session and detects a dead connection, until a consumer has joined: its SYNCs do
        the same.

        It is sent four times per session timeout if that is shorter, or is not known yet.
        """
        while True:
            timeout_ms = min((link.session_timeout_ms for link in self.links()), default=SHORTEST_SESSION_MS)
            await asyncio.sleep(min(self.config.keepalive_interval_ms, timeout_ms // 4) / 1000)
            proven = any(consumer.everywhere for consumer in self._consumers.values())
            for link in () if proven else self.links():
                if link.up:
                    future = link.request(RequestCode.SYNC, body=SyncBody(), timeout_ms=link.grace_ms)
                    future.add_done_callback(partial(_reconnect_if_silent, link, link.endpoint))

    # --------------------------------------------------------------------------------------------------------------- outages

    def _outage_began(self, broker: str) -> None:
        self._outages.begin(broker, self.host.clock.monotonic_ms())
        if not self._reports_outages and not self.closing:
            self._reports_outages = True
            self.tasks.spawn(self._report_outages(), "client.outages")

    async def _report_outages(self) -> None:
        """Report the brokers that are not connected, while there are some. Those that no layout names any more are forgotten."""
        try:
            while self._outages:
                await asyncio.sleep(OUTAGE_CHECK_S)
                now_ms = self.host.clock.monotonic_ms()
                due = self._outages.due(now_ms)
                named = self.watch.broker_names() if due else []
                for broker, down_ms in due:
                    if broker in named:
                        self._report_outage(broker, down_ms)
                    else:
                        self._outages.end(broker, now_ms)
        finally:
            self._reports_outages = False

    def _report_outage(self, broker: str, down_ms: int) -> None:
        link = self._links.get(broker)
        log.warning(
            "broker.down",
            broker=broker,
            address=self.routes.address(broker),
            reason=NO_ADDRESS if link is None else link.why_down,
            down_ms=down_ms,
            queues_waiting=sum(consumer.hooks.queue_count(broker) for consumer in self._consumers.values()),
            sends_waiting=sum(hooks.send_count(broker) for hooks in self._producers),
        )

    def _failed(self, error: BaseException) -> None:
        log.error("client.failed", error=text_of(error))
        for consumer in list(self._consumers.values()):
            consumer.hooks.on_failed(error)

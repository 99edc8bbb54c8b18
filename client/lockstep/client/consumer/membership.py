"""One consumer's membership of its group: member lists, rebalance rounds, its queues. RocketMQ: RebalanceImpl, RebalanceService.

A round is one call of `plan` (rebalance.py) and changes which queues are wanted; ownership.py and broker_session.py acquire and release
them. Rounds run every 20 s and after each change of a list or a layout; members that join together share one round (rebalance_delay.py).
A list is requested whenever a response or notice names a higher version than the known one.
"""

import asyncio
from collections.abc import Iterable, Mapping

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.calls.consume_model import ConsumeModel
from lockstep.client.consumer.calls.queue_worker import QueueWorker
from lockstep.client.consumer.context import ConsumerContext
from lockstep.client.consumer.grants.broadcast import LocalSession
from lockstep.client.consumer.grants.broker_session import BrokerSession
from lockstep.client.consumer.grants.broker_sessions import BrokerSessions
from lockstep.client.consumer.grants.ownership import GrantPolicy
from lockstep.client.consumer.health import BrokerHealth, QueueHealth
from lockstep.client.consumer.interfaces import ReportedQueueWorker
from lockstep.client.consumer.rebalance import ListChange, MemberLists, QueueSet, RebalancePlan, by_hand, by_one_list, everything, plan
from lockstep.client.consumer.rebalance_delay import RebalanceDelay
from lockstep.client.instance import Instance
from lockstep.protocol.bodies import HeartbeatReply, ListVersion, MemberList, QueueFreeBody, StartPolicy
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import BrokerError, LocalProtocolError, RemoteProtocolError, TransportError
from lockstep.protocol.headers.clients import GroupHeader, NotifyHeader, UnregisterClientHeader
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

ROUND_MS = 20_000
"""RocketMQ: RebalanceService's wait interval."""
MISSING_TOPIC_MS = 1_000
"""How often the route of a subscribed topic that does not exist is requested."""
REQUEST_AGAIN_MS = 500
"""Pause before a list that is out of date, or does not name this member, is requested again."""


class Membership:
    """Connects the instance's hooks and the queues' workers. Call `begin` after the join, and `drain` to leave."""

    def __init__(self, instance: Instance, sessions: BrokerSessions, ctx: ConsumerContext, model: ConsumeModel) -> None:
        self._instance = instance
        self._sessions = sessions
        self._ctx = ctx
        self._model = model
        self._lists = MemberLists(instance.client_id)
        self._delay = RebalanceDelay()
        self._rebalance_scheduled = False
        self._workers: dict[MessageQueue, QueueWorker] = {}
        self._wanted: QueueSet = {}
        self._start_counters: dict[str, int] = {}
        """By topic: the lowest layout counter at which a broker resolved the start policy (`since`, ordering.md 7.2). For a broadcasting
        member: the one at which it subscribed, 0 if the topic did not exist (7.8)."""
        self.sub_versions: dict[str, int] = {}
        """By topic, as HEART_BEAT sends them; 0 if the group's subscriptions have no versions."""
        self._last_decides = False
        """The group has the classic policy: the subscription with the highest version is in force."""
        self._requesting: dict[str, None] = {}
        self._linking: asyncio.Task[None] | None = None
        """Links all registered brokers."""
        self._joined = False
        self._leaving = False
        self._heartbeat_scheduled = False
        self._empty = asyncio.Event()

    @property
    def workers(self) -> list[QueueWorker]:
        return list(self._workers.values())

    @property
    def wanted(self) -> QueueSet:
        """Return the queues that lists and layouts, or the user, assign to this member."""
        return self._wanted

    def worker(self, queue: MessageQueue) -> QueueWorker | None:
        """Return the queue's worker; None if nothing is known of the queue yet."""
        return self._workers.get(queue)

    # ------------------------------------------------------------------------------------------------------------ lifetime

    def begin(self) -> None:
        """Begin to consume. Every broker that could be reached has accepted the group."""
        self._joined = True
        self._delay.member_joined(self._now_ms())
        for link in self._instance.links():
            if link.up and link.last_reply is not None:
                self.link_up(link, link.last_reply)
        self.rebalance()
        self._ctx.tasks.spawn(self._rounds(), f"{self._ctx.group} rounds")

    async def drain(self, drain_ms: int) -> None:
        """Release all queues. Return when every queue is released and no call runs."""
        self._leaving = True
        self._wanted = {}
        self._empty.clear()
        for worker in self.workers:
            worker.unwant(drain_ms)
        if self._workers:
            await self._empty.wait()

    def forget(self, worker: ReportedQueueWorker) -> None:
        """Remove a queue after its machine is done."""
        queue = worker.ownership.queue
        if self._workers.get(queue) is worker:
            del self._workers[queue]
        if not self._workers:
            self._empty.set()

    def abandon(self) -> None:
        """End without waiting: calls that still run are left alone, and their results no longer count."""
        for worker in self.workers:
            worker.abandon()

    def drop(self) -> None:
        """End because the event loop is closed: results of calls that still run in threads no longer count."""
        for worker in self.workers:
            if worker.grant is not None:
                worker.grant.alive = False

    def resume(self) -> None:
        for worker in self.workers:
            worker.resume()

    async def _rounds(self) -> None:
        while True:
            layouts = [self._instance.routes.layout(topic) for topic in self._ctx.filters]
            missing = any(layout is None or layout.deleted for layout in layouts)
            await asyncio.sleep((MISSING_TOPIC_MS if missing else ROUND_MS) / 1000)
            if missing:
                self._instance.watch.refresh_soon()
                self._link_all()
            for link in self._instance.links():
                self._request_if_outdated(link)
            self.rebalance()

    # --------------------------------------------------------------------------------------------------------------- rounds

    def layout_learned(self, layout: TopicLayout) -> None:
        """Handle a layout that is new or higher. A deleted topic may be created again at any broker."""
        if layout.deleted and self._joined and not self._leaving and layout.topic in self._ctx.filters:
            self._link_all()
        self.rebalance()

    def _link_all(self) -> None:
        """Link all registered brokers, unless that is going on. Nothing waits for it: a nameserver may be slow to respond."""
        if self._linking is None or self._linking.done():
            self._linking = self._ctx.tasks.spawn(self._instance.link_all(), f"{self._ctx.group} links")

    def rebalance(self) -> None:
        """Run one round. Before the join and after the leave it changes nothing."""
        if not self._joined or self._leaving:
            return
        self._delay.rebalanced()
        instance, ctx = self._instance, self._ctx
        layouts = {topic: instance.routes.layout(topic) for topic in ctx.filters}
        try:
            round_ = self._plan(layouts)
        except LocalProtocolError as error:
            log.error("rebalance.failed", group=ctx.group, error=str(error), then="held queues remain; the next round tries again")
            return
        wanted = dict(round_.wanted)
        for queue in round_.lost:
            self._workers[queue].unwant(ctx.config.drain_timeout_ms)
        for queue in round_.gained:
            link = instance.link(queue.broker_name)
            if link is None:
                del wanted[queue]  # gained in the round that follows its broker's first connect
                continue
            self._make_worker(queue, link).want()
        self._wanted = wanted
        for queue in round_.lost:
            self._model.unassigned(queue)
        if round_.gained and self._last_decides:
            self._raise_subscription_versions([queue.topic for queue in round_.gained])
        if round_.gained or round_.lost:
            gained, lost = _names(round_.gained), _names(round_.lost)
            log.info("queues.rebalanced", group=ctx.group, wanted=len(wanted), gained=gained, lost=lost)

    def _raise_subscription_versions(self, topics: Iterable[str]) -> None:
        """Raise the versions of these topics' subscriptions, because this member got queues of them. RocketMQ: messageQueueChanged,
        subVersion.

        RocketMQ does it at every change of a member's queues. Here a loss does not count, so that the member that gains a queue decides.
        """
        now_ms = self._instance.host.clock.wall_ms()
        self.sub_versions |= {topic: max(now_ms, self.sub_versions.get(topic, 0) + 1) for topic in topics}
        self._ctx.tasks.spawn(self._instance.heartbeat_now(), f"{self._ctx.group} subscriptions")

    def _plan(self, layouts: Mapping[str, TopicLayout | None]) -> RebalancePlan:
        if self._ctx.local is not None:
            return everything(layouts, previous=self._wanted)
        if self._ctx.assigned is not None:
            return by_hand(self._ctx.assigned, layouts, previous=self._wanted)
        me, strategy = self._instance.client_id, self._ctx.config.allocate
        return plan(me, strategy, layouts, self._lists, previous=self._wanted, reachable=self._reachable)

    def _reachable(self, broker_name: str) -> bool:
        link = self._instance.link(broker_name)
        return link is not None and link.up

    def _make_worker(self, queue: MessageQueue, link: BrokerLink) -> QueueWorker:
        worker = self._workers.get(queue)
        if worker is None:
            session, local = self._session(link), self._ctx.local
            worker = self._workers[queue] = QueueWorker(
                queue, session if local is None else LocalSession(link, local, self._start_counters), self._ctx, self._model, self
            )
        return worker

    def _session(self, link: BrokerLink) -> BrokerSession:
        session = self._sessions.of(link)
        session.connected()
        return session

    # ---------------------------------------------------------------------------------------------------------------- hooks

    def link_up(self, link: BrokerLink, reply: HeartbeatReply) -> None:
        """Handle that the link is up. LOCK is sent at the end of this loop turn, so that it names the queues of the fresh list."""
        if self._joined:
            self._session(link)
            for worker in self.workers if self._ctx.local is not None else ():
                worker.wake_waiters()
        if self._leaving and self._ctx.group in reply.groups:
            self._leave_again(link)
        self.heartbeat_reply(link, reply)
        if by_one_list(self._ctx.config.allocate, self._lists) and not self._rebalance_scheduled:
            self.rebalance()  # the list in force may now be another broker's, although no list has changed

    def link_down(self, link: BrokerLink) -> None:
        self._sessions.of(link).disconnected()

    def heartbeat_reply(self, link: BrokerLink, reply: HeartbeatReply) -> None:
        group = reply.groups.get(self._ctx.group)
        if group is None:
            self.request_list(link)  # this member is not named there for now, until its old contract has expired
            return
        self._last_decides = group.last_decides
        for topic, since in group.since.items():
            if self._ctx.local is None:
                self.start_resolved(topic, since)
            else:
                self._subscribed(topic, since)
        self._adopt(link, group.list)
        self._request_if_outdated(link)

    def notice(self, link: BrokerLink, header: NotifyHeader) -> None:
        if header.list_term is not None and header.list_counter is not None:
            self._lists.record_version(link.name, ListVersion(header.list_term, header.list_counter))
            self._request_if_outdated(link)
        else:
            self.request_list(link)

    def queue_free(self, link: BrokerLink, body: QueueFreeBody) -> None:
        log.debug("queue.freed", group=self._ctx.group, broker=link.name, queues=len(body.queues))
        self._session(link).trigger()

    def list_version_received(self, link: BrokerLink, version: ListVersion) -> None:
        """Handle the list version in a response to LOCK or SYNC, which makes up for a lost notice."""
        if self._lists.record_version(link.name, version):
            self._request_if_outdated(link)

    def start_policy(self, topic: str) -> StartPolicy:
        """Return where the group begins, and the lowest layout counter at which any broker resolved that for the topic, if known."""
        config = self._ctx.config
        return StartPolicy(self._ctx.group, topic, config.consume_from_where, config.consume_timestamp_ms, self._start_counters.get(topic))

    def start_resolved(self, topic: str, since: int) -> None:
        if since > 0:
            self._start_counters[topic] = min(since, self._start_counters.get(topic, since))

    def _subscribed(self, topic: str, counter: int) -> None:
        """Record the topic's layout counter at a broker. The member has subscribed when it begins: the highest one before that counts."""
        known = self._start_counters.get(topic)
        if known is None or (counter > known and not self._joined):
            self._start_counters[topic] = counter

    # ---------------------------------------------------------------------------------------------------------------- lists

    def _adopt(self, link: BrokerLink, members: MemberList) -> None:
        change = self._lists.adopt(link.name, members)
        if change is ListChange.NEW_MEMBER and self._joined and self._ctx.policy is GrantPolicy.LOCKED:
            self._delay.member_joined(self._now_ms())
        if change is ListChange.NONE:
            return
        if change is ListChange.OTHER or self._delay.due_ms is None:
            self.rebalance()
        elif not self._rebalance_scheduled:
            self._rebalance_scheduled = True
            self._ctx.tasks.spawn(self._rebalance_later(), f"{self._ctx.group} delayed rebalance")

    async def _rebalance_later(self) -> None:
        try:
            while not self._leaving and (due_ms := self._delay.due_ms) is not None:
                wait_ms = due_ms - self._now_ms()
                if wait_ms <= 0:
                    self.rebalance()
                else:
                    await asyncio.sleep(wait_ms / 1000)
        finally:
            self._rebalance_scheduled = False

    def _now_ms(self) -> int:
        return self._instance.host.clock.boot_ms()

    def _request_if_outdated(self, link: BrokerLink) -> None:
        if self._lists.is_outdated(link.name):
            self.request_list(link)

    def request_list(self, link: BrokerLink) -> None:
        if self._joined and not self._leaving and link.up and link.name not in self._requesting:
            self._requesting[link.name] = None
            self._ctx.tasks.spawn(self._update_list(link), f"{self._ctx.group} list of {link.name}")

    async def _update_list(self, link: BrokerLink) -> None:
        """Send GET_CONSUMER_LIST_BY_GROUP until the list is as new as the known version. If it does not name this member: send a
        heartbeat and request it again; no queue is dropped."""
        try:
            while link.up and not self._leaving:
                known = self._lists.latest_version(link.name)
                members = await self._fetch(link)
                if members is not None:
                    self._adopt(link, members)
                if members is None or self._instance.client_id not in members.members:
                    await self._heartbeat_if_not_listed()
                if not self._lists.is_outdated(link.name):
                    return
                if self._lists.latest_version(link.name) == known:  # otherwise it has changed since it was requested
                    await asyncio.sleep(REQUEST_AGAIN_MS / 1000)
        except TransportError:
            return  # the next connection's HEART_BEAT brings the list
        finally:
            self._requesting.pop(link.name, None)

    async def _fetch(self, link: BrokerLink) -> MemberList | None:
        try:
            response: Command = await link.call(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(self._ctx.group))
            return decode_body(MemberList, response.body)
        except (BrokerError, RemoteProtocolError) as error:
            log.warning("member_list.refused", group=self._ctx.group, broker=link.name, error=str(error))
            return None

    async def _heartbeat_if_not_listed(self) -> None:
        log.info("member_list.not_listed", group=self._ctx.group, then="heartbeat")
        await self._instance.heartbeat_now()

    def heartbeat_soon(self) -> None:
        """Send a heartbeat, because a broker does not know this group's subscription."""
        if not self._heartbeat_scheduled:
            self._heartbeat_scheduled = True
            self._ctx.tasks.spawn(self._send_heartbeat_soon(), f"{self._ctx.group} heartbeat")

    async def _send_heartbeat_soon(self) -> None:
        try:
            await self._instance.heartbeat_now()
            await asyncio.sleep(REQUEST_AGAIN_MS / 1000)
        finally:
            self._heartbeat_scheduled = False

    def _leave_again(self, link: BrokerLink) -> None:
        """Leave a broker that received a HEART_BEAT with the group after the consumer left: otherwise the consumer would be a member there
        for the grace."""
        future = link.request(
            RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader(self._instance.client_id, consumer_group=self._ctx.group)
        )
        future.add_done_callback(lambda done: None if done.cancelled() else done.exception() and None)

    # --------------------------------------------------------------------------------------------------------------- health

    def broker_health(self, now_ms: int) -> tuple[BrokerHealth, ...]:
        names = {name: None for topic in self._ctx.filters for name in self._instance.routes.brokers_of(topic)}
        found = []
        for name in sorted(names):
            link = self._instance.link(name)
            proof = self._sessions.proof_of(name)
            proven_ms = None if proof is None else proof.proven_ms
            if self._ctx.local is not None and link is not None and link.up:
                proven_ms = now_ms  # no proof of life is needed
            ago_ms = None if proven_ms is None else now_ms - proven_ms
            found.append(BrokerHealth(name, link is not None and link.up, ago_ms, 0 if proof is None else proof.grace_ms))
        return tuple(found)

    def queue_count(self, broker: str) -> int:
        """Return how many of the wanted queues are at this broker."""
        return sum(queue.broker_name == broker for queue in self._wanted)

    def queue_health(self, now_ms: int) -> tuple[QueueHealth, ...]:
        return tuple(self._workers[queue].health(now_ms) for queue in sorted(self._workers))


def _names(queues: Iterable[MessageQueue]) -> list[str]:
    return [str(queue) for queue in queues]

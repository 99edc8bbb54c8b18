"""The session of one instance with one broker: LOCK, SYNC and proof of life for all its groups.

RocketMQ: RebalanceImpl.lockAll, RemoteBrokerOffsetStore. At any time at most one LOCK and one SYNC with items are in flight; an empty SYNC
proves life at each interval. `_pump` is the only place that sends: it asks the timers (lease_timers.py) and the queues' machines
(ownership.py) for due requests, sends them and sets one timer for what is due next. Responses, triggers and changes of the link call it.
Nothing here awaits.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

from lockstep.client.broker_link import BrokerLink
from lockstep.client.consumer.grants.lease_timers import LockSchedule, ProofOfLife, ProofRequest, SyncSchedule
from lockstep.client.consumer.grants.ownership import OwnershipEvent, OwnershipState, QueueOwnership, SentItem
from lockstep.client.consumer.grants.progress_query import query_header, read_query
from lockstep.client.consumer.interfaces import AbstractMembership, ReportedQueueWorker
from lockstep.protocol.bodies import (
    ListVersion,
    LockItem,
    LockResult,
    LockVerdict,
    SessionLockBody,
    SessionLockReply,
    StartPolicy,
    SyncBody,
    SyncItem,
    SyncReply,
)
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError, TransportError
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

RESPONSE_TIMEOUT_MS = 30_000
"""LOCK and SYNC with items wait for the broker's disk. Without a response for this long the connection is closed; the next LOCK
returns the state."""
RETIRING_CHECK_MS = 500
"""How often a session without a group checks whether its link is up again."""
QUERY_AGAIN_MS = 1_000
"""Pause before a queue of a concurrent group that was refused is requested again."""
SILENCE_CHECK_MS = 100
"""A connection counts as silent when it was silent in two checks this far apart: after this process was stopped, responses may be unread in
the socket."""


class BrokerSession:
    """One session per (instance, broker). `deadline_ms` is checked before each call of a listener: no call may start at that boot time or
    later."""

    def __init__(self, link: BrokerLink, host: Host, groups: Mapping[str, AbstractMembership]) -> None:
        self.link = link
        self.proof = ProofOfLife()
        self.proof_awaited = False
        """Whether a runner waits for a new proof of life."""
        self._groups = groups
        self._clock = host.clock
        self._loop = asyncio.get_running_loop()
        self._workers: dict[QueueOwnership, ReportedQueueWorker] = {}
        self._changed: dict[QueueOwnership, None] = {}
        """Queues for which SYNC may have something to send."""
        self._draining: dict[QueueOwnership, None] = {}
        """Queues with a drain limit to check; some may not be draining any more."""
        self._lock = LockSchedule()
        self._sync = SyncSchedule()
        self._connection = 0
        """The number of the connection that LOCK and SYNC use; 0 if there is none."""
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.Handle | None = None
        self._silence_seen_ms: int | None = None
        self._lapse_reported = False
        self._instance_closed: Callable[[], bool] | None = None
        """Set while no group is left and the broker does not know yet that nothing is held. Returns whether the instance is closed too."""
        self._closed = False

    def __repr__(self) -> str:
        return f"<BrokerSession {self.link.name} connection {self._connection} queues {len(self._workers)}>"

    # -------------------------------------------------------------------------------------------------------------- queues

    def add(self, worker: ReportedQueueWorker) -> None:
        """Name the queue in LOCK and SYNC from now on, as its machine requires. Adding it again has no effect."""
        self._workers[worker.ownership] = worker

    def queue_truncated(self, worker: ReportedQueueWorker, first: int, end: int) -> None:
        """Handle that a queue ends before this member's offset. The broker ends the grants of the messages that it has lost: STALE
        follows."""
        log.error("queue.truncated", queue=str(worker.ownership.queue), offset=worker.ownership.offset, end=end)
        worker.report_gap(end, worker.ownership.offset)

    def remove(self, worker: ReportedQueueWorker) -> None:
        """Remove a queue after its machine is done."""
        assert worker.ownership.done, worker.ownership
        self._workers.pop(worker.ownership, None)
        self._changed.pop(worker.ownership, None)
        self._draining.pop(worker.ownership, None)

    def remove_group(self, group: str) -> bool:
        """Remove a group's queues as they are: the next LOCK names none of them, and the broker frees them. Return whether some were
        held."""
        gone = [ownership for ownership in self._workers if ownership.group == group]
        for ownership in gone:
            del self._workers[ownership]
            self._changed.pop(ownership, None)
            self._draining.pop(ownership, None)
        self.trigger()
        return any(ownership.holds or ownership.in_lock for ownership in gone)

    def trigger(self) -> None:
        """Request a LOCK: it is sent at once, or after the one in flight."""
        self._lock.trigger()
        self.pump_soon()

    def changed(self, ownership: QueueOwnership, *, urgent: bool = False) -> None:
        """Send the queue's change by SYNC: within 100 ms, or (a release, an awaited commit) at once."""
        if ownership in self._changed and ownership.state is OwnershipState.HELD and not urgent:
            return  # the next SYNC is set already
        urgent = urgent or ownership.state is OwnershipState.RELEASING
        timed = bool(self._changed)
        self._changed[ownership] = None
        self._watch(ownership)
        if urgent:
            self._sync.send_soon()
        if urgent or not timed:  # otherwise the timer is set to the next SYNC
            self.pump_soon()

    @property
    def retiring(self) -> bool:
        return self._instance_closed is not None and not self._closed

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def holding(self) -> bool:
        return any(worker.ownership.holds for worker in self._workers.values())

    # ---------------------------------------------------------------------------------------------------------- connection

    def connected(self) -> None:
        """Handle that the link is up and HEART_BEAT was accepted. A LOCK of all queues is sent at the end of this loop turn, once per
        connection."""
        if self._closed or not self.link.up or self.link.connection == self._connection:
            return
        self.disconnected()
        now_ms = self._clock.boot_ms()
        self._connection = self.link.connection
        self.proof.connected(self._connection, now_ms, self.link.grace_ms, self.link.session_timeout_ms)
        self._lock.connected(now_ms)
        self.pump_soon()

    def disconnected(self) -> None:
        """Handle that the link is down. Requests without a response are repeated by the next connection's LOCK."""
        if not self._connection:
            return
        self._connection = 0
        self.proof.disconnected()
        self._sync.disconnected()
        self._silence_seen_ms = None
        for ownership in self._workers:
            ownership.disconnected()
            self._changed[ownership] = None
        self.pump_soon()

    def retire(self, instance_closed: Callable[[], bool]) -> None:
        """Check regularly whether the link is up, because no group is left to report it, until a LOCK has freed the removed queues or
        `instance_closed` returns True."""
        self._instance_closed = instance_closed
        self.pump_soon()

    def stop_retiring(self) -> None:
        """Stop retiring, because a group has been added."""
        self._instance_closed = None

    def close(self) -> None:
        """End the session. No group is left, and nothing is held."""
        self._closed = True
        self._connection = 0
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()

    # ---------------------------------------------------------------------------------------------------------------- pump

    def pump_soon(self) -> None:
        if self._soon is None and not self._closed:
            self._soon = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._closed:
            return
        if self._instance_closed is not None:
            self._check_retirement()
            if self._closed:
                return
        now_ms = self._clock.boot_ms()
        next_ms = self._watch_calls(now_ms) if self._instance_closed is None else now_ms + RETIRING_CHECK_MS
        if self._connection and self.link.up:
            next_ms = min(next_ms, self._send_due(now_ms))
        self._arm(next_ms, now_ms)

    def _check_retirement(self) -> None:
        if self._instance_closed is not None and self._instance_closed():
            self.close()
        elif self.link.up:
            self.connected()
        else:
            self.disconnected()

    def _arm(self, due_ms: int, now_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(due_ms - now_ms, 1) / 1000, self._pump)

    def _watch(self, ownership: QueueOwnership) -> None:
        """Check the queue's drain limit from now on if its state has one."""
        if ownership.state is OwnershipState.DRAINING and ownership in self._workers:
            self._draining[ownership] = None

    def _watch_calls(self, now_ms: int) -> int:
        """Apply drain limits, and cancel running calls when the proof of life has lapsed. Return when to check again."""
        next_ms = now_ms + 60_000
        deadline_ms = self.proof.deadline_ms
        lapsed = now_ms >= deadline_ms
        if not lapsed and self.holding:
            next_ms = min(next_ms, deadline_ms)
        if lapsed and not self._lapse_reported:
            for worker in list(self._workers.values()):
                if worker.ownership.exclusive:
                    worker.cancel_calls()
        for ownership in list(self._draining):
            worker = self._workers[ownership]
            if ownership.state is not OwnershipState.DRAINING or ownership.drain_at_ms is None:
                del self._draining[ownership]
                continue
            if ownership.tick(now_ms):
                worker.drain_limit_passed()
                self._changed[ownership] = None
                self._sync.send_soon()
                continue
            if ownership.cancel_at_ms is not None and now_ms >= ownership.cancel_at_ms:
                ownership.cancel_at_ms = None
                worker.cancel_calls()
            next_ms = min(next_ms, ownership.drain_at_ms, ownership.cancel_at_ms or ownership.drain_at_ms)
        self._lapse_reported = lapsed
        return next_ms

    def _send_due(self, now_ms: int) -> int:
        """Send the due requests. Return when to check again."""
        lock_ms = self._lock.due_ms()
        if lock_ms is not None and lock_ms <= now_ms:
            self._send_lock(now_ms)
            lock_ms = None
        sync_ms = self._sync.due_ms() if self._changed and self.proof.is_locked else None
        if sync_ms is not None and sync_ms <= now_ms:
            self._send_sync(now_ms)
            sync_ms = None
        silent_ms = self._watch_silence(now_ms)
        holding = self.holding
        if self.proof.due_ms(holding) <= now_ms:
            self._send_proof(now_ms)
        known = [at for at in (lock_ms, sync_ms, silent_ms) if at is not None]
        return min([self.proof.due_ms(holding), *known])

    def _watch_silence(self, now_ms: int) -> int | None:
        """Close the connection if an empty SYNC had no response within the grace. Return when to check again."""
        silent_ms = self.proof.silent_at_ms()
        if silent_ms is None or silent_ms > now_ms:
            self._silence_seen_ms = None
            return silent_ms
        if self._silence_seen_ms is None:
            self._silence_seen_ms = now_ms
        elif now_ms >= self._silence_seen_ms + SILENCE_CHECK_MS:
            self._silence_seen_ms = None
            self.link.reconnect(f"no response to an empty SYNC within {self.proof.grace_ms} ms")
            return None
        return self._silence_seen_ms + SILENCE_CHECK_MS

    def _request(
        self,
        code: RequestCode,
        body: object,
        timeout_ms: int,
        on_response: Callable[["asyncio.Future[Command]"], None],
        header: object | None = None,
    ) -> None:
        try:
            future = self.link.request(code, header, body, timeout_ms=timeout_ms)
        except TransportError:
            return  # the link has just gone down: `disconnected` follows
        future.add_done_callback(on_response)

    def _read(self, future: "asyncio.Future[Command]", connection: int, what: str) -> Command | None:
        """Return the response if it counts: it is of this connection, and SUCCESS. Without a response, close the connection."""
        error = None if future.cancelled() else future.exception()
        if connection != self._connection or future.cancelled():
            return None
        if error is not None:
            self.link.reconnect(f"{what}: {error}")
            return None
        response = future.result()
        if response.code != ResponseCode.SUCCESS:
            log.warning("session.refused", broker=self.link.name, request=what, code=response.code, remark=response.remark)
            return None
        return response

    def _proven(self, stamp: ProofRequest) -> None:
        self.proof.responded(stamp)
        if self._clock.boot_ms() < self.proof.deadline_ms:
            self._lapse_reported = False
            if self.proof_awaited:
                self.proof_awaited = False
                for worker in list(self._workers.values()):
                    worker.wake_waiters()

    def _pass_list_versions(self, versions: Mapping[str, ListVersion]) -> None:
        for group, version in versions.items():
            membership = self._groups.get(group)
            if membership is not None:
                membership.list_version_received(self.link, version)

    # ---------------------------------------------------------------------------------------------------------------- LOCK

    def _send_lock(self, now_ms: int) -> None:
        items: list[LockItem] = []
        sent: list[SentItem] = []
        starts: dict[tuple[str, str], StartPolicy] = {}
        for worker in self._workers.values():
            item = worker.ownership.lock_item()
            if item is None:
                continue
            items.append(item)
            sent.append(worker.ownership.lock_sent(item))
            if item.epoch is None and (item.group, item.topic) not in starts:
                starts[item.group, item.topic] = worker.start_policy(item.topic)
        stamp = self.proof.sent(now_ms, lock=True)
        self._lock.sent(now_ms)
        body = SessionLockBody(tuple(items), tuple(starts.values()))
        log.debug("lock.sent", broker=self.link.name, items=len(items))
        self._request(RequestCode.LOCK_BATCH_MQ, body, RESPONSE_TIMEOUT_MS, lambda future: self._handle_lock_response(future, stamp, sent))
        self._send_queries()

    def _handle_lock_response(self, future: "asyncio.Future[Command]", stamp: ProofRequest, sent: list[SentItem]) -> None:
        response = self._read(future, stamp.connection, "LOCK")
        if stamp.connection != self._connection:
            return
        if response is None:
            self._lock.failed(self._clock.boot_ms())
            for one in sent:
                one.ownership.lock_failed()
            self.pump_soon()
            return
        try:
            reply = decode_body(SessionLockReply, response.body)
            if len(reply.items) != len(sent):
                raise RemoteProtocolError(f"the response to LOCK has {len(reply.items)} queues, expected {len(sent)}")
        except RemoteProtocolError as error:
            self.link.reconnect(str(error))
            return
        self._lock.responded()
        self.proof.set_grace(reply.disconnect_grace_ms)
        self._proven(stamp)
        for one, result in zip(sent, reply.items, strict=True):
            self._handle_lock_result(one, result)
        for worker in list(self._workers.values()):
            if not worker.ownership.exclusive:
                worker.wake_waiters()  # no request was sent for it: it continues at the position of the connection
        self._pass_list_versions(reply.versions)
        if self._instance_closed is not None and not self._workers:
            self.close()
        self.pump_soon()

    def _handle_lock_result(self, sent: SentItem, result: LockResult) -> None:
        ownership = sent.ownership
        worker = self._workers.get(ownership)
        event = ownership.handle_lock_response(sent, result)
        if worker is None:
            return  # removed: the next LOCK does not name it, which frees it
        self._watch(ownership)
        if event is OwnershipEvent.GRANTED and ownership.state is OwnershipState.HELD:
            worker.granted(result)
        elif event is OwnershipEvent.GRANTED or (event is OwnershipEvent.RENEWED and ownership.state is OwnershipState.RELEASING):
            self.changed(ownership, urgent=True)
        elif event is OwnershipEvent.RENEWED:
            self._changed[ownership] = None
            worker.report_gap(result.gap_first, result.gap_end)
            worker.replay(result.replays or ())
        elif event is OwnershipEvent.STALE:
            log.warning(
                "queue.fenced", group=ownership.group, queue=str(ownership.queue), **ownership.names, by="LOCK", verdict=result.verdict.name
            )
            worker.grant_ended(fenced=True)
            self.trigger()
        elif result.verdict in (LockVerdict.NOT_YOURS, LockVerdict.REFUSED):
            log.info("lock.refused", group=ownership.group, queue=str(ownership.queue), verdict=result.verdict.name, remark=result.remark)
            if result.verdict is LockVerdict.NOT_YOURS and ownership.group in self._groups:
                self._groups[ownership.group].request_list(self.link)
        worker.wake_waiters()

    # --------------------------------------------------------------------------------------------------------------- QUERY

    def _send_queries(self) -> None:
        """Send one query for each queue of a concurrent group that is wanted and not held."""
        for worker in list(self._workers.values()):
            if worker.ownership.may_query:
                sent, connection, header = worker.ownership.grant_requested(), self._connection, query_header(worker)
                on_response = partial(self._handle_query_response, worker, sent, connection)
                self._request(RequestCode.QUERY_CONSUMER_OFFSET, None, RESPONSE_TIMEOUT_MS, on_response, header)

    def _handle_query_response(
        self, worker: ReportedQueueWorker, sent: SentItem, connection: int, future: "asyncio.Future[Command]"
    ) -> None:
        ownership = worker.ownership
        response = self._read(future, connection, "QUERY_CONSUMER_OFFSET")
        if connection != self._connection:
            return
        result = None if response is None else read_query(ownership, response)
        event = None if result is None else ownership.handle_lock_response(sent, result)
        ownership.in_lock = False
        if ownership not in self._workers:
            return
        self._watch(ownership)
        if result is None:
            if ownership.group in self._groups:
                self._groups[ownership.group].request_list(self.link)
            self._loop.call_later(QUERY_AGAIN_MS / 1000, self.trigger)
        elif event is OwnershipEvent.GRANTED and ownership.state is OwnershipState.HELD:
            worker.granted(result)
        elif event is OwnershipEvent.GRANTED:
            self.changed(ownership, urgent=True)
        worker.wake_waiters()

    # ---------------------------------------------------------------------------------------------------------------- SYNC

    def _send_sync(self, now_ms: int) -> None:
        items: list[SyncItem] = []
        sent: list[SentItem] = []
        for ownership in self._changed:
            item = ownership.sync_item()
            if item is not None:
                items.append(item)
                sent.append(ownership.sync_sent(item))
        self._changed.clear()
        if not items:
            self._sync.cancel_send()
            return
        stamp = self.proof.sent(now_ms)
        self._sync.sent(now_ms)
        self._request(
            RequestCode.SYNC, SyncBody(tuple(items)), RESPONSE_TIMEOUT_MS, lambda future: self._handle_sync_response(future, stamp, sent)
        )

    def _handle_sync_response(self, future: "asyncio.Future[Command]", stamp: ProofRequest, sent: list[SentItem]) -> None:
        response = self._read(future, stamp.connection, "SYNC")
        if stamp.connection != self._connection:
            return
        try:
            if response is None:
                raise RemoteProtocolError("SYNC was refused")  # the next LOCK sends everything again
            reply = decode_body(SyncReply, response.body)
            if len(reply.items) != len(sent):
                raise RemoteProtocolError(f"the response to SYNC has {len(reply.items)} queues, expected {len(sent)}")
        except RemoteProtocolError as error:
            self.link.reconnect(str(error))
            return
        self._sync.responded()
        self._proven(stamp)
        for one, result in zip(sent, reply.items, strict=True):
            ownership = one.ownership
            worker = self._workers.get(ownership)
            event = ownership.handle_sync_response(one, result)
            if worker is None:
                continue
            self._watch(ownership)
            if event is OwnershipEvent.STALE:
                facts = {"verdict": result.verdict.name, "remark": result.remark, "offset": one.offset}
                log.warning("queue.fenced", group=ownership.group, queue=str(ownership.queue), **ownership.names, by="SYNC", **facts)
                worker.grant_ended(fenced=True)
                self.trigger()
            elif event is OwnershipEvent.CONFIRMED and one.release:
                worker.grant_ended(fenced=False)
                self.trigger()
            worker.wake_waiters()
        self._pass_list_versions(reply.versions)
        self.pump_soon()

    def _send_proof(self, now_ms: int) -> None:
        stamp = self.proof.sent(now_ms, empty=True)
        self._request(RequestCode.SYNC, SyncBody(), RESPONSE_TIMEOUT_MS, lambda future: self._handle_proof_response(future, stamp))

    def _handle_proof_response(self, future: "asyncio.Future[Command]", stamp: ProofRequest) -> None:
        response = self._read(future, stamp.connection, "empty SYNC")
        if response is None:
            return
        try:
            reply = decode_body(SyncReply, response.body)
        except RemoteProtocolError as error:
            self.link.reconnect(str(error))
            return
        self._proven(stamp)
        self._pass_list_versions(reply.versions)
        self.pump_soon()

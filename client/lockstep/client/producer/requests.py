"""The requests of one producer: each is a send, and a wait for the reply that a broker passes on. RocketMQ: RequestResponseFuture.

A request ends with the first of these, and then its entry in the table too:

- its reply, even before its send is acknowledged;
- the failure of its send;
- its deadline, if the message is stored by then. Otherwise its send, which has the same deadline, ends it.
"""

import asyncio
from collections.abc import Mapping

from lockstep.client.errors import ReplyTimeoutError, TooManyRequestsError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.request_table import RequestTable
from lockstep.client.producer.machines.routing import Selector
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.reply import Reply
from lockstep.client.producer.result import SendResult
from lockstep.client.producer.sends import Sends, not_running
from lockstep.client.producer.shell import ProducerShell
from lockstep.protocol.errors import RemoteProtocolError, without_frames
from lockstep.protocol.headers.tools import PushReplyHeader
from lockstep.protocol.messages.compression import decompress_body
from lockstep.protocol.messages.message import Message, with_reserved
from lockstep.protocol.messages.properties import CORRELATION_ID, UNIQ_KEY
from lockstep.protocol.messages.record import SYS_COMPRESSED
from lockstep.protocol.messages.request_reply import request_properties, user_properties
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.safe_text import printable

log = get_logger("lockstep.client.producer")

CORRELATION_ID_BYTES = 16


class WaitingRequest:
    """A request that waits for its reply."""

    __slots__ = ("_has_expired", "_pending", "_table", "_timeout_ms", "_topic", "correlation_id", "reply", "sent")

    def __init__(self, table: "RequestTable[WaitingRequest]", correlation_id: str, timeout_ms: int) -> None:
        self.correlation_id = correlation_id
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.sent: asyncio.Future[SendResult] | None = None
        """The future of its send, from the time when it is in its queue."""
        self._table = table
        self._timeout_ms = timeout_ms
        self._has_expired = False
        self._topic: TopicMachine | None = None
        self._pending: PendingSend | None = None

    def enqueued(self, topic: TopicMachine, pending: PendingSend, sent: "asyncio.Future[SendResult]") -> None:
        """Handle that its message is in its queue."""
        self._topic, self._pending, self.sent = topic, pending, sent
        sent.add_done_callback(self._send_ended)

    def _send_ended(self, sent: "asyncio.Future[SendResult]") -> None:
        if sent.cancelled():
            return
        error = sent.exception()
        if error is not None:
            self.fail(error)
        elif self._has_expired:
            self._time_out(sent)

    def _time_out(self, sent: "asyncio.Future[SendResult]") -> None:
        self.fail(ReplyTimeoutError(sent.result(), self._timeout_ms))

    def fail(self, error: BaseException) -> None:
        """End the wait, unless it has ended."""
        self._table.abandon(self.correlation_id)
        if not self.reply.done():
            self.reply.set_exception(error)

    def expired(self) -> None:
        """Handle that the deadline has come."""
        self._has_expired = True
        if self.sent is not None and self.sent.done():
            self._time_out(self.sent)

    def abandon(self, sends: Sends) -> None:
        """End the request because its caller was cancelled. Its message is withdrawn, unless it is written."""
        self._table.abandon(self.correlation_id)
        self.reply.cancel()
        if self._topic is not None and self._pending is not None and self.sent is not None:
            sends.withdraw(self._topic, self._pending, self.sent)


class _Deadline:
    """Ends a request at its deadline (an Expiring). It does not hold the request, whose message and reply may be large, until then."""

    __slots__ = ("_correlation_id", "_table")

    def __init__(self, table: RequestTable[WaitingRequest], correlation_id: str) -> None:
        self._table = table
        self._correlation_id = correlation_id

    def done(self) -> bool:
        return not self._table.waits(self._correlation_id)

    def expire(self) -> None:
        waiting = self._table.expire(self._correlation_id)
        if waiting is not None:
            waiting.expired()


class ProducerRequests:
    """Sends requests, and gives each the first reply that comes in time. Producer.request documents the arguments and errors."""

    def __init__(self, group: str, config: ProducerConfig, shell: ProducerShell) -> None:
        self._group = group
        self._config = config
        self._shell = shell
        self._instance = shell.instance
        self._random = shell.instance.host.random
        self._table: RequestTable[WaitingRequest] = RequestTable(config.request_count_max)
        self._links_all = False
        self._idle: asyncio.Future[None] | None = None

    @property
    def count(self) -> int:
        """Return the number of requests that wait."""
        return len(self._table)

    @property
    def dropped_reply_count(self) -> int:
        """Return the number of replies that were dropped."""
        return self._table.dropped_count

    # --------------------------------------------------------------------------------------------------------------- requests

    async def send(
        self, sends: Sends, message: Message, selector: Selector | None, queue: MessageQueue | None, timeout_ms: int | None
    ) -> WaitingRequest:
        """Add a request to its queue."""
        if self._table.is_full:
            raise TooManyRequestsError(message.topic, len(self._table))
        timeout_ms = timeout_ms or self._config.send_timeout_ms
        deadline_ms = self._shell.now_ms() + timeout_ms
        waiting = WaitingRequest(self._table, self._random.token(CORRELATION_ID_BYTES).hex(), timeout_ms)
        self._table.add(waiting.correlation_id, deadline_ms, waiting)
        try:
            self._shell.expiry.add(deadline_ms, _Deadline(self._table, waiting.correlation_id))
            await sends.open_topic(message, deadline_ms)
            self._link_all_once()
            request = with_reserved(message, self._properties(message.topic, waiting.correlation_id, timeout_ms))
            left_ms = max(1, deadline_ms - self._shell.now_ms())
            pending, sent = sends.pending_send(request, selector, queue, left_ms, None)
            waiting.enqueued(sends.enqueue(pending) or await sends.enqueue_later(pending), pending, sent)
        except BaseException:  # re-raised
            self._table.abandon(waiting.correlation_id)
            self._notify_idle()
            raise
        waiting.reply.add_done_callback(self._ended)
        return waiting

    async def wait(self, sends: Sends, waiting: WaitingRequest) -> Reply:
        """Return the reply to a request that is in its queue."""
        try:
            return await waiting.reply
        except asyncio.CancelledError:
            waiting.abandon(sends)
            raise
        finally:
            del waiting  # a future that fails holds the error, whose traceback holds this frame

    def _properties(self, topic: str, correlation_id: str, timeout_ms: int) -> dict[str, str]:
        cluster = self._instance.routes.cluster_of(topic)
        return request_properties(correlation_id, self._instance.client_id, timeout_ms, cluster)

    def _link_all_once(self) -> None:
        """Link every broker with the first request: a replier of RocketMQ sends its reply to any of them. RocketMQ: prepareSendRequest."""
        if not self._links_all:
            self._links_all = True
            self._instance.tasks.spawn(self._instance.link_all(), f"producer {self._group} links")

    # ---------------------------------------------------------------------------------------------------------------- replies

    def knows(self, correlation_id: str) -> bool:
        """Return whether a request of this producer has this id."""
        return self._table.knows(correlation_id)

    def take(self, header: PushReplyHeader, properties: Mapping[str, str], body: bytes) -> str | None:
        """Take a reply to a request of this producer. Return why it is dropped; None if it is not."""
        correlation_id, reply_id = properties[CORRELATION_ID], properties.get(UNIQ_KEY, "")
        verdict, waiting = self._table.take(correlation_id, reply_id, self._shell.now_ms())
        if waiting is not None and not waiting.reply.done():
            try:
                plain = decompress_body(body, header.sys_flag) if header.sys_flag & SYS_COMPRESSED else body
            except RemoteProtocolError as error:
                waiting.reply.set_exception(without_frames(error))
                return str(error)
            waiting.reply.set_result(Reply(plain, user_properties(properties)))
        if verdict.is_accepted:
            return None
        log.debug("reply.dropped", group=self._group, replier=printable(header.born_host), reason=verdict.value)
        return verdict.value

    # -------------------------------------------------------------------------------------------------------------------- end

    async def idle(self) -> None:
        """Wait until no request waits."""
        while len(self._table):
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def close(self) -> None:
        """Fail the requests that wait, because the producer disconnects."""
        for waiting in self._table:
            waiting.fail(not_running(self._group, closed=True))

    def _ended(self, _: "asyncio.Future[Reply]") -> None:
        self._notify_idle()

    def _notify_idle(self) -> None:
        if not len(self._table) and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

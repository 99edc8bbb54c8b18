"""Sends a message with a delay level, as RocketMQ's single send with the property DELAY.

It has no sequence: a send without a response is repeated, and may then be stored twice. The broker keeps the message in the queue of its
level, and gives it an offset in its own queue when the delay has passed.
"""

import asyncio
from datetime import datetime, timedelta

from lockstep.client.errors import Outcome, QueueUnavailableError, SendTimeoutError
from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.routing import UNKEYED, Route
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.result import STATUS_OF_CODE, FrameResult, SendResult
from lockstep.client.producer.shell import ProducerShell
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.delays import check_delay_level
from lockstep.protocol.errors import BrokerError, BrokerSystemError, LocalProtocolError, TransportError, broker_error
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.send import SendMessageHeader, SendReply
from lockstep.protocol.messages.message import Message, encode_message
from lockstep.protocol.messages.properties import DELAY
from lockstep.protocol.messages.record import RecordView

AGAIN_MS = 100
"""Pause between two attempts."""
TRY_MS = 3_000
"""Timeout of one attempt, unless the deadline is earlier."""


def check_delay(delay_level: int, delay: timedelta | None, deliver_at: datetime | None) -> None:
    """Raise LocalProtocolError if the level is not one of RocketMQ's table, or another delay is given as well."""
    if delay is not None or deliver_at is not None:
        raise LocalProtocolError(f"delay_level and {'delay' if deliver_at is None else 'deliver_at'} are both given: give one of them")
    check_delay_level(delay_level)


class DelayedSend:
    """The send of one delayed message."""

    def __init__(
        self, shell: ProducerShell, group: str, topic: TopicMachine, route: Route, message: Message, message_id: str, delay_level: int
    ) -> None:
        self._clock = shell.instance.host.clock
        self._shell = shell
        self._group = group
        self._topic = topic
        self._route = route
        self._message = message
        self._message_id = message_id
        self._delay_level = delay_level
        self._outcome = Outcome.NOT_STORED
        self._durable: bool | None = None

    async def run(self, deadline_ms: int, *, durable: bool | None) -> SendResult:
        """Send the message and return where it is stored.

        Raises:
            SendTimeoutError: An unkeyed send was not stored before the deadline, or was refused permanently after an earlier attempt that
                may have been stored.
            QueueUnavailableError: The same for a send that belongs to one queue.
            BrokerError: The broker refused the message permanently, and no earlier attempt may have been stored.
        """
        self._durable = durable
        born_ms = self._clock.wall_ms()
        over = self._shell.config.compress_over_bytes
        level = {DELAY: str(self._delay_level)}
        record = RecordView(encode_message(self._message, 0, self._message_id, born_ms, level, over))
        machine = None
        while True:
            if (deletion := self._topic.deletion) is not None:
                try:
                    if machine is None or self._outcome is Outcome.NOT_STORED:
                        raise deletion
                    raise self._failure(machine, str(deletion)) from deletion
                finally:
                    del deletion  # its traceback holds this frame
            machine = self._topic.machine_for(self._route, self._clock.monotonic_ms())
            left_ms = deadline_ms - self._clock.monotonic_ms()
            try:
                response = await self._try(machine, record, max(1, min(left_ms, TRY_MS)))
                return self._result(machine, response)
            except (TransportError, BrokerError) as error:
                if isinstance(error, BrokerSystemError):
                    self._outcome = Outcome.UNKNOWN  # a handler that failed may have stored the message before
                final = isinstance(error, BrokerError) and not error.retriable
                if final and self._outcome is Outcome.NOT_STORED:
                    raise
                if final or self._clock.monotonic_ms() + AGAIN_MS >= deadline_ms:
                    raise self._failure(machine, str(error)) from error
            await asyncio.sleep(AGAIN_MS / 1000)

    async def _try(self, machine: QueueMachine, record: RecordView, timeout_ms: int) -> Command:
        link = self._shell.instance.link(machine.queue.broker_name)
        if link is None or not link.up:
            raise TransportError(f"broker {machine.queue.broker_name} is not connected")
        facts = (record.sys_flag, record.born_ms, record.flag, str(record.properties, "utf-8"))
        header = SendMessageHeader(self._group, self._message.topic, machine.queue.queue_id, *facts, durable=self._durable)
        if self._outcome is Outcome.UNKNOWN:
            self._shell.possible_duplicates += 1
        try:
            return await link.request(RequestCode.SEND_MESSAGE, header, record.body, timeout_ms=timeout_ms)
        except TransportError:
            self._outcome = Outcome.UNKNOWN
            raise

    def _result(self, machine: QueueMachine, response: Command) -> SendResult:
        status = STATUS_OF_CODE.get(response.code)
        if status is None:
            raise broker_error(response.code, response.remark)
        from_plain(SendReply, response.fields)
        return SendResult(FrameResult(status, machine.queue, -1, -1, "", (), (self._message_id,)), 0)

    def _failure(self, machine: QueueMachine, why: str) -> Exception:
        if self._route is UNKEYED:
            return SendTimeoutError(self._message.topic, self._outcome, why)
        return QueueUnavailableError(machine.queue, self._outcome, why)

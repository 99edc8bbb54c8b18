"""CONSUMER_SEND_MSG_BACK and DEAD_LETTER: messages that a group could not process. RocketMQ: SendMessageProcessor.consumerSendMsgBack.

| request                        | the copy goes to                                              |
|--------------------------------|---------------------------------------------------------------|
| SEND_MSG_BACK, level < 0       | `%DLQ%group`                                                  |
| SEND_MSG_BACK, retries used up | `%DLQ%group`                                                  |
| SEND_MSG_BACK                  | `%RETRY%group`, after the given level's delay, else n + 3's   |
| DEAD_LETTER                    | `%DLQ%group`, and the group's progress moves past it          |

Both read the message from the log, so that the request carries no body. Responses wait until the log is confirmed: the copy is as durable
as any message before the group's progress passes the original. Both count the group (failed_messages.py): neither requires membership, and
a group that has no topic for its copies gets one.
"""

from lockstep.broker.delivery.failed_messages import FailedMessages
from lockstep.broker.delivery.message_copy import MessageCopy, failed_copy
from lockstep.broker.groups.coordination import Coordination
from lockstep.broker.store import ReadStatus, Store
from lockstep.broker.tables.send_gate import SendGate
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.delays import FIRST_RETRY_LEVEL, RETRIES_MAX, exhausted_reason
from lockstep.protocol.errors import BrokerSystemError, LocalProtocolError, QueryNotFoundError, RemoteProtocolError
from lockstep.protocol.headers.send import DeadLetterHeader, SendBackHeader
from lockstep.protocol.messages.properties import UNIQ_KEY, decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.names import check_group, dlq_topic, is_sendable_topic, retry_topic
from lockstep.runtime.host import Host
from lockstep.runtime.requests.dispatch import handles
from lockstep.runtime.requests.needs import SUB, inside, on_group, on_topic
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, PendingResponse, Request

SEND_BACK_LANE = "send-back"
"""The lane of requests that may have to read a message from the disk."""


class SendBackProcessor:
    def __init__(self, host: Host, store: Store, coordination: Coordination, failed: FailedMessages, gate: SendGate) -> None:
        self._clock = host.clock
        self._store = store
        self._coordination = coordination
        self._failed = failed
        self._gate = gate

    @handles(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        SendBackHeader,
        needs=[on_group(SUB, name="group"), inside("Sub the topic of the message")],
        lane=SEND_BACK_LANE,
        classic=True,
    )
    async def send_back(self, request: Request) -> HandlerResult:
        header: SendBackHeader = request.header
        check_group(header.group)
        data = await self._store.record_at(header.offset, hidden=True)  # the member has it in hand, also after a purge
        if data is None:
            raise QueryNotFoundError(
                f"no message begins at log offset {header.offset}: the message was removed, or the offset is another broker's"
            )
        self._gate.check()
        record = _user_record(data)
        request.user.check_message(record.topic.decode(), SUB)
        _check_same(record, header)
        times_max = RETRIES_MAX if header.max_reconsume_times is None else header.max_reconsume_times
        if header.delay_level < 0 or record.reconsume_times >= times_max:
            default = "given up" if header.delay_level < 0 else exhausted_reason(record.reconsume_times + 1)
            self._dead_letter(header.group, record, header.reason or default)
            return PendingResponse(request.reply())
        topic = retry_topic(header.group)
        replayed = record.topic == dlq_topic(header.group).encode()  # no call has failed since it became a dead letter
        copy = failed_copy(record, topic, 0, header.reason or "", failures=0 if replayed else 1)
        self._failed.store(header.group, copy, header.delay_level or record.reconsume_times + FIRST_RETRY_LEVEL)
        return PendingResponse(request.reply())

    @handles(RequestCode.DEAD_LETTER, DeadLetterHeader, needs=[on_group(SUB), on_topic(SUB)], lane=SEND_BACK_LANE)
    async def dead_letter(self, request: Request) -> HandlerResult:
        header: DeadLetterHeader = request.header
        check_group(header.consumer_group)
        result = await self._store.read_or_wait(header.topic, header.queue_id, header.offset, 1, 1)
        if request.endpoint.closed:
            return NO_RESPONSE
        key = (header.consumer_group, header.topic, header.queue_id)
        done = self._coordination.lock_sync.is_dead_lettered(request.endpoint.id, key, header.epoch, header.offset)
        if done is None:
            remark = f"epoch {header.epoch} of {key[0]} at {key[1]}:{key[2]} is stale: drop the queue"
            return PendingResponse(request.reply(code=ResponseCode.STALE_EPOCH, remark=remark))
        if done:
            return PendingResponse(request.reply())
        if result.status is not ReadStatus.FOUND:
            raise BrokerSystemError(f"{header.topic} queue {header.queue_id} has no message at {header.offset}: {result.status.value}")
        self._gate.check()
        self._dead_letter(header.consumer_group, _user_record(result.parts[0]), header.reason, max(header.attempts, 1))
        if header.advance or header.finish:
            self._coordination.lock_sync.commit_dead_letter(key, header.offset, self._clock.boot_ms(), advance=header.advance)
        return PendingResponse(request.reply())

    def _dead_letter(self, group: str, record: RecordView, reason: str, failures: int = 1) -> None:
        topic = dlq_topic(group)
        again = record.topic == topic.encode()  # a copy that no replay could send: the reason why it is dead has not changed
        letter = MessageCopy.of(record) if again else failed_copy(record, topic, 0, reason, failures)
        self._failed.store(group, letter)


def _check_same(record: RecordView, header: SendBackHeader) -> None:
    """Check that the log offset still holds the client's message: after a power cut that took a suffix of the log it may hold another one.
    RocketMQ does not check.
    """
    found = decode_properties(record.properties).get(UNIQ_KEY)
    if header.origin_msg_id and found and found != header.origin_msg_id:
        raise QueryNotFoundError(
            f"log offset {header.offset} holds message {found}, not {header.origin_msg_id}: that message was lost, drop the queue"
        )


def _user_record(data: bytes) -> RecordView:
    try:
        record = RecordView(data)
        if is_sendable_topic(record.topic.decode("ascii")):
            return record
    except (RemoteProtocolError, UnicodeDecodeError) as error:
        raise BrokerSystemError(f"the stored message can't be read: {error}") from None
    raise LocalProtocolError("the message is the broker's own")

"""SEND_MESSAGE and SEND_RECORDS."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SendMessageHeader:
    """SEND_MESSAGE (10). The frame's body is the message body. RocketMQ: SendMessageRequestHeader."""

    producer_group: str
    topic: str
    queue_id: int
    """Negative: the broker chooses a writable queue."""
    sys_flag: int = 0
    born_timestamp: int = 0
    flag: int = 0
    properties: str = ""
    reconsume_times: int = 0
    default_topic: str = "TBW102"
    default_topic_queue_nums: int = 4
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False
    durable: bool | None = None
    """As in SendRecordsHeader."""


@dataclass(frozen=True, slots=True)
class SendMessageV2Header:
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the same with names of one letter. RocketMQ: SendMessageRequestHeaderV2."""

    producer_group: str = field(metadata={"wire": "a"})
    topic: str = field(metadata={"wire": "b"})
    default_topic: str = field(metadata={"wire": "c"})
    default_topic_queue_nums: int = field(metadata={"wire": "d"})
    queue_id: int = field(metadata={"wire": "e"})
    sys_flag: int = field(metadata={"wire": "f"})
    born_timestamp: int = field(metadata={"wire": "g"})
    flag: int = field(metadata={"wire": "h"})
    properties: str = field(default="", metadata={"wire": "i"})
    reconsume_times: int | None = field(default=None, metadata={"wire": "j"})
    unit_mode: bool | None = field(default=None, metadata={"wire": "k"})
    max_reconsume_times: int | None = field(default=None, metadata={"wire": "l"})
    batch: bool | None = field(default=None, metadata={"wire": "m"})

    def long_form(self, *, batch: bool = False) -> SendMessageHeader:
        """Return the header of SEND_MESSAGE with these values."""
        return SendMessageHeader(
            self.producer_group,
            self.topic,
            self.queue_id,
            self.sys_flag,
            self.born_timestamp,
            self.flag,
            self.properties,
            self.reconsume_times or 0,
            self.default_topic,
            self.default_topic_queue_nums,
            bool(self.unit_mode),
            self.max_reconsume_times,
            batch or bool(self.batch),
        )


@dataclass(frozen=True, slots=True)
class SendReply:
    """The response to SEND_MESSAGE. RocketMQ: SendMessageResponseHeader."""

    msg_id: str
    """offsetMsgId: hex of store host and physical offset. Of a batch: those of all messages, joined by commas."""
    queue_id: int
    queue_offset: int
    """That of the first message."""
    region: str | None = field(default=None, metadata={"wire": "MSG_REGION"})
    trace_on: bool | None = field(default=None, metadata={"wire": "TRACE_ON"})
    """RocketMQ's clients: whether the broker has a trace topic."""
    transaction_id: str | None = None
    """RocketMQ's clients: the message's UNIQ_KEY."""
    recall_handle: str | None = None
    """RocketMQ's clients: by which RECALL_MESSAGE takes back a message that waits (recall.py)."""


@dataclass(frozen=True, slots=True)
class RecallMessageHeader:
    """RECALL_MESSAGE (370). RocketMQ: RecallMessageRequestHeader."""

    topic: str
    recall_handle: str
    """As in recall.py. Its topic and broker must be those of the request."""
    producer_group: str | None = None


@dataclass(frozen=True, slots=True)
class RecallMessageReply:
    """The response to RECALL_MESSAGE: the message will never be delivered. RocketMQ: RecallMessageResponseHeader."""

    msg_id: str
    """Its UNIQ_KEY."""


@dataclass(frozen=True, slots=True)
class SendBackHeader:
    """CONSUMER_SEND_MSG_BACK (36). RocketMQ: ConsumerSendMsgBackRequestHeader."""

    offset: int
    """The physical offset of the message in the broker's log."""
    group: str
    delay_level: int = 0
    """0: by the number of its retries; > 0: this level; < 0: dead-letter the message."""
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    reason: str | None = None
    """Why the message failed: its copy, for a retry or as a dead letter, keeps it (properties.REASON)."""


@dataclass(frozen=True, slots=True)
class DeadLetterHeader:
    """DEAD_LETTER (30006): one append copies the stored message to the group's %DLQ% topic and moves the progress past it."""

    consumer_group: str
    topic: str
    queue_id: int
    epoch: int
    offset: int
    """The offset of the message. If the progress is past it, an earlier request has dead-lettered it already."""
    attempts: int = 0
    """The number of failed calls of the listener with this message."""
    reason: str = ""
    advance: bool = True
    """False leaves the progress unchanged, because earlier messages of the queue are not committed yet."""
    finish: bool = False
    """With `advance` False: the message becomes a done range above the progress (done_ranges.py)."""


@dataclass(frozen=True, slots=True)
class SendRecordsHeader:
    """SEND_RECORDS (30003). The frame's body is `count` records (record.py) of one queue, with the broker's fields zero."""

    topic: str
    queue_id: int
    count: int
    layout_counter: int | None = None
    layout_writer: int | None = None
    """A keyed send has the layout version from which it computed the queue; None for an unkeyed send."""
    producer_id: str | None = None
    """32 hex digits (128 bits). None if the frame is not idempotent and has no __LS_SEQ."""
    partition: int = 0
    producer_epoch: int = 0
    first_sequence: int = 0
    first: bool = False
    """The producer knows of no earlier frame in this scope: the broker accepts the frame even without such a scope and with
    first_sequence > 0."""
    crc: int = 0
    """The running CRC-32 of all frames of the scope since sequence 0, including this frame (sequence.py)."""
    given: bool | None = None
    """Whether the user provided the producer id (a query, a job) instead of the producer generating it at its start. The broker
    remembers the scopes of a provided id longer."""
    durable: bool | None = None
    """True: respond when the data is on disk, even if the broker flushes asynchronously. False: respond when the operating system has
    it, even if the broker flushes synchronously. None: as the broker is configured."""
    room: str | None = None
    """The waiting room into which the records go (rooms.py): their topic and queue 0, while `topic` and `queue_id` are their home."""
    began: int | None = None
    """With `room`: `TopicLayout.began` of the topic, as the records have it."""
    producer_group: str | None = None
    """With the room of half messages: the producer group that is asked how the transaction has ended, as the records have it."""


@dataclass(frozen=True, slots=True)
class SendRecordsReply:
    """The response to SEND_RECORDS. The records are contiguous, so the position of the first one gives those of all."""

    queue_offset: int
    """The queue offset of the first record; the i-th has queue_offset + i. −1 with DUPLICATE, if it is no longer known."""
    physical_offset: int
    """The log offset of the first record; the next record begins after its size. With the store host it gives every offsetMsgId."""
    store_timestamp: int
    store_host: str = ""
    """The store host (host:port) that the records carry."""
    next_sequence: int | None = None
    """With OUT_OF_SEQUENCE: the sequence that the broker expects."""
    layout_counter: int | None = None
    layout_writer: int | None = None
    """With LAYOUT_STALE: the broker's layout version."""

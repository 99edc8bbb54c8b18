"""SEND_MESSAGE and SEND_RECORDS."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SendMessageHeader:
    """SEND_MESSAGE (10). The frame's body is the message body. RocketMQ: SendMessageRequestHeader."""

    producer_group: str
    topic: str
    queue_id: int
    """Negative: the broker picks a writable queue."""
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
    """As of SendRecordsHeader."""
    delay_ms: int | None = None
    """In place of a level, which each broker's table may mean otherwise: it waits exactly so long, or is MESSAGE_ILLEGAL."""


@dataclass(frozen=True, slots=True)
class SendReply:
    """The answer to SEND_MESSAGE. RocketMQ: SendMessageResponseHeader."""

    msg_id: str
    """offsetMsgId: hex of store host and physical offset."""
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class SendBackHeader:
    """CONSUMER_SEND_MSG_BACK (36). RocketMQ: ConsumerSendMsgBackRequestHeader."""

    offset: int
    """Where the message stands in the broker's log."""
    group: str
    delay_level: int = 0
    """0: by the number of its retries; > 0: this level; < 0: dead-letter it."""
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterHeader:
    """DEAD_LETTER (30006): one append copies the stored message to the group's %DLQ% topic and moves progress behind it."""

    consumer_group: str
    topic: str
    queue_id: int
    epoch: int
    offset: int
    """Of the message. Where progress is behind it already it was done before."""
    attempts: int = 0
    reason: str = ""
    advance: bool = True
    """False: progress stays, earlier messages of the queue are not committed yet."""


@dataclass(frozen=True, slots=True)
class SendRecordsHeader:
    """SEND_RECORDS (30003). The frame's body is `count` records (record.py) of one queue, the broker's fields zero."""

    topic: str
    queue_id: int
    count: int
    layout_counter: int | None = None
    layout_writer: int | None = None
    """A keyed send carries the layout version that it hashed over; None for an unkeyed one."""
    producer_id: str | None = None
    """32 hex digits (128 bits). None: the frame is not idempotent and carries no __LS_SEQ."""
    partition: int = 0
    producer_epoch: int = 0
    first_sequence: int = 0
    first: bool = False
    """The producer knows of no earlier frame in this scope: taken even where the broker has no such scope and first_sequence > 0."""
    crc: int = 0
    """Running CRC-32 of everything in the scope since sequence 0, up to and including this frame (sequence.py)."""
    given: bool | None = None
    """The producer id was given (a query, a job), not drawn at the producer's start: the broker remembers its scopes for longer."""
    durable: bool | None = None
    """True: answered once the disk has it, also by a broker whose flush is async. False: once the operating system has it, also where the
    flush is sync. None: as the broker is set to."""


@dataclass(frozen=True, slots=True)
class SendRecordsReply:
    """The answer to SEND_RECORDS: records are contiguous, so the first one's place gives them all."""

    queue_offset: int
    """Queue offset of the first record; the i-th has queue_offset + i. −1 with DUPLICATE (no longer known)."""
    physical_offset: int
    """Log offset of the first record; the next begins at + its size. With the store host this gives every offsetMsgId."""
    store_timestamp: int
    store_host: str = ""
    """host:port that the records carry as store host."""
    next_sequence: int | None = None
    """With OUT_OF_SEQUENCE: what the broker expects."""
    layout_counter: int | None = None
    layout_writer: int | None = None
    """With LAYOUT_STALE: the broker's version."""

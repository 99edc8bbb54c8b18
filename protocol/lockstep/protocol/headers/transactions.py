"""END_TRANSACTION and CHECK_TRANSACTION_STATE."""

from dataclasses import dataclass

UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
"""How a transaction has ended. RocketMQ: MessageSysFlag.TRANSACTION_NOT_TYPE, TRANSACTION_COMMIT_TYPE, TRANSACTION_ROLLBACK_TYPE."""


@dataclass(frozen=True, slots=True)
class EndTransactionHeader:
    """END_TRANSACTION (37). RocketMQ: EndTransactionRequestHeader.

    lockstep's clients name the half messages in the body (EndTransactionBody), RocketMQ's name the one in the header.
    """

    producer_group: str
    commit_or_rollback: int
    """UNKNOWN, COMMIT or ROLLBACK."""
    tran_state_table_offset: int = -1
    """The offset of the half message in HALF_TOPIC, as the response to its send had it."""
    commit_log_offset: int = -1
    msg_id: str = ""
    """Its UNIQ_KEY."""
    from_transaction_check: bool | None = None
    """It answers CHECK_TRANSACTION_STATE."""
    transaction_id: str | None = None
    reason: str | None = None
    """lockstep's tools: why an operator decides, for the audit."""


@dataclass(frozen=True, slots=True)
class CheckTransactionHeader:
    """CHECK_TRANSACTION_STATE (39), one-way: asks the sender of a half message how its transaction has ended. The body is its record, with
    its own topic and queue. RocketMQ: CheckTransactionStateRequestHeader."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str
    transaction_id: str
    offset_msg_id: str


@dataclass(frozen=True, slots=True)
class ListHalvesHeader:
    """LIST_HALVES (30027). The response's body is a HalfPage."""

    topic: str | None = None
    """None: of all topics."""
    producer_group: str | None = None
    transaction_id: str | None = None
    """Only the messages of this transaction, or the one with this UNIQ_KEY."""
    key: str | None = None
    """Only messages that have this key."""
    expired: bool = False
    """Only those that are too old to be asked about."""
    cursor: int = 0
    """`HalfPage.cursor` of the response before."""
    limit: int = 100
    """The largest number of rows: 1 to 1,000."""

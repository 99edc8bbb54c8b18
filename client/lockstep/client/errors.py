"""Errors that only a client raises. They are subclasses of those in lockstep.protocol.errors."""

from collections.abc import Sequence
from enum import Enum

from lockstep.client.producer.result import SendResult
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.topics.queue import MessageQueue


class Outcome(Enum):
    """Whether a failed send may have stored its message."""

    NOT_STORED = "not stored"
    """No broker has the message, and none will have it."""
    UNKNOWN = "unknown"
    """It was written and got no response: it may be stored, once."""


class SendError(LockstepError):
    """A send ended without an acknowledgement. `outcome` is whether its message may be stored nevertheless."""

    outcome: Outcome = Outcome.NOT_STORED


class QueueUnavailableError(SendError):
    """The queue of a keyed, selected or named send did not store it before the deadline. Such a send goes to no other queue."""

    def __init__(self, queue: MessageQueue, outcome: Outcome, why: str) -> None:
        self.queue = queue
        self.outcome = outcome
        super().__init__(f"{queue}: {why}; the message is {_words(outcome)}")


class SendTimeoutError(SendError, TimeoutError):
    """No broker stored an unkeyed send before the deadline, or the route of a send's topic was not known by then."""

    def __init__(self, topic: str, outcome: Outcome, why: str) -> None:
        self.topic = topic
        self.outcome = outcome
        super().__init__(f"topic {topic}: {why}; the message is {_words(outcome)}")


class TooManySendsError(SendError):
    """So many sends wait that this one could not be sent before its deadline: it is refused at once, and not stored."""

    def __init__(self, topic: str, why: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic}: {why}; the message is {_words(Outcome.NOT_STORED)}")


class PrecedingSendError(SendError):
    """An earlier send of the same key failed while this one waited for it. It was not sent, because that would break the order of the key.

    Send the failed message again (or give it up), then this one.
    """

    def __init__(self, queue: MessageQueue, key: str | None) -> None:
        self.queue = queue
        self.key = key
        what = f'sharding key "{key}"' if key is not None else "a selected or named queue"
        super().__init__(f"{queue}: an earlier send of {what} failed; this one was not sent")


class BatchSendError(SendError):
    """Some messages of a `send_batch` were not acknowledged. `results` has a SendResult or an error for each message, in order."""

    outcome = Outcome.UNKNOWN

    def __init__(self, results: Sequence[SendResult | Exception]) -> None:
        self.results = tuple(results)
        errors = [result for result in results if isinstance(result, Exception)]
        super().__init__(f"{len(errors)} of {len(results)} messages failed; the first one: {errors[0]}")


class NotDurableError(SendError):
    """With `require="durable"`: the broker stored the message but did not confirm that it is on disk. It can be read, and may be lost in a
    crash.

    `results` has the one result of a `send`, or all of a `send_batch` in order; `status` of each is how durable it is. A message that is
    sent again is stored twice.
    """

    outcome = Outcome.UNKNOWN

    def __init__(self, results: Sequence[SendResult], short: SendResult) -> None:
        self.results = tuple(results)
        super().__init__(f"{short.queue} offset {short.queue_offset}: stored with {short.status.value}, not as durably as required")


class TooManyRequestsError(SendError):
    """As many requests as may be wait for their replies (`request_count_max`): this one is refused at once, and not stored."""

    def __init__(self, topic: str, count: int) -> None:
        self.topic = topic
        why = f"refused at once: {count} requests wait for their replies (request fewer at a time, or raise request_count_max)"
        super().__init__(f"topic {topic}: {why}; the message is {_words(Outcome.NOT_STORED)}")


class ReplyTimeoutError(LockstepError, TimeoutError):
    """No reply to a request came before its deadline. Its message is stored (`result`): a consumer may handle it nevertheless."""

    def __init__(self, result: SendResult, timeout_ms: int) -> None:
        self.result = result
        super().__init__(f"{result.queue} offset {result.queue_offset}: no consumer replied to the request within {timeout_ms} ms")


class ReplyUndeliveredError(LockstepError):
    """A reply did not reach its requester: it is gone, or waits no more, because its time has passed or another reply has come before.

    If the connection was lost meanwhile, the reply may have reached it.
    """

    def __init__(self, broker_name: str, message_id: str, why: str) -> None:
        self.message_id = message_id
        """That of the request."""
        super().__init__(f"{broker_name}: the reply to request {message_id} was not delivered: {why}")


class FencedError(LockstepError):
    """A later owner of the queue has written to the database, so this call may not. `Inbox` raises it; the call fails, and does not count.

    If no other member runs, the database knows a higher epoch than the broker has given: it is used with another cluster as well.
    """

    def __init__(self, group: str, lane: str, epoch: int) -> None:
        super().__init__(f"{group}: {lane} has been written under a later epoch than {epoch}: another member owns its queue now")


class TransactionDecidedError(LockstepError):
    """The outcome of a transaction was decided before `Marks.set` marked it as committed: roll the local transaction back."""

    def __init__(self, transaction_id: str, *, rolled_back: bool) -> None:
        self.transaction_id = transaction_id
        how = "the broker has asked for its outcome, and was told that it was rolled back" if rolled_back else "it was marked before"
        super().__init__(f"transaction {transaction_id} was decided already: {how}; roll back, and begin again with another id")


def _words(outcome: Outcome) -> str:
    return "not stored" if outcome is Outcome.NOT_STORED else "in an unknown state: it may be stored, once"

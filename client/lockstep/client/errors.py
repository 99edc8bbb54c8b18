"""Errors that only a client can raise; the tree they hang in is lockstep.protocol.errors."""

from collections.abc import Sequence
from enum import Enum

from lockstep.client.producer.result import SendResult
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.queue import MessageQueue


class Outcome(Enum):
    """What a failed send left behind."""

    NOT_STORED = "not stored"
    """No broker has the message, and none will."""
    UNKNOWN = "unknown"
    """It was written and never answered: it may be there, once."""


class SendError(LockstepError):
    """A send ended without its message being acknowledged. `outcome` says whether the message may be stored all the same."""

    outcome: Outcome = Outcome.NOT_STORED


class QueueUnavailableError(SendError):
    """The queue that a keyed, selected or named send belongs to did not take it before the deadline; no other queue may."""

    def __init__(self, queue: MessageQueue, outcome: Outcome, why: str) -> None:
        self.queue = queue
        self.outcome = outcome
        super().__init__(f"{queue}: {why}; the message is {_words(outcome)}")


class SendTimeoutError(SendError, TimeoutError):
    """An unkeyed send found no broker that took it before the deadline, or the route of a send's topic was not known by then."""

    def __init__(self, topic: str, outcome: Outcome, why: str) -> None:
        self.topic = topic
        self.outcome = outcome
        super().__init__(f"topic {topic}: {why}; the message is {_words(outcome)}")


class PrecedingSendError(SendError):
    """An earlier send of the same key failed while this one waited behind it: it was not sent, so that the key's order holds.

    Send the failed message again (or give it up), then this one.
    """

    def __init__(self, queue: MessageQueue, key: str | None) -> None:
        self.queue = queue
        self.key = key
        what = f'sharding key "{key}"' if key is not None else "a selected or named queue"
        super().__init__(f"{queue}: an earlier send of {what} failed; this one was not sent")


class BatchSendError(SendError):
    """Some messages of a `send_batch` were not acknowledged. `results` holds a SendResult or an error for each, in order."""

    outcome = Outcome.UNKNOWN

    def __init__(self, results: Sequence[SendResult | Exception]) -> None:
        self.results = tuple(results)
        errors = [result for result in results if isinstance(result, Exception)]
        super().__init__(f"{len(errors)} of {len(results)} messages failed; the first one: {errors[0]}")


class NotDurableError(SendError):
    """`require="durable"`: the broker stored the message and did not confirm it as durable. It may be read, and may be lost in a crash.

    `results`: of a `send` its one result, of a `send_batch` all, in order; `status` tells which fell short. Sent again, it stands twice.
    """

    outcome = Outcome.UNKNOWN

    def __init__(self, results: Sequence[SendResult], short: SendResult) -> None:
        self.results = tuple(results)
        super().__init__(f"{short.queue} offset {short.queue_offset}: stored with {short.status.value}, not as durably as required")


def _words(outcome: Outcome) -> str:
    return "not stored" if outcome is Outcome.NOT_STORED else "in an unknown state: it may be stored, once"

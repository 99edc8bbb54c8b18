"""The arguments and results of a listener, and the effect of a result on the queue. RocketMQ: MessageListenerOrderly,
ConsumeOrderlyContext."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import CoroutineType
from typing import Literal

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.messages.message import MessageExt
from lockstep.protocol.object_text import name_of, text_of
from lockstep.protocol.topics.queue import MessageQueue


class ConsumeOrderlyStatus(Enum):
    """The results of an ordered listener. None counts as SUCCESS; an exception or any other value as SUSPEND_CURRENT_QUEUE_A_MOMENT.

    SystemExit and KeyboardInterrupt also end the consumer: `wait_closed()` raises them. In RocketMQ null means SUSPEND.
    """

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    COMMIT = "COMMIT"
    """With `context.auto_commit = False`: all messages that were taken and not committed yet are done."""
    ROLLBACK = "ROLLBACK"
    """With `context.auto_commit = False`: all messages that were taken and not committed yet come again."""


class ConsumeConcurrentlyStatus(Enum):
    """The results of a concurrent listener. None counts as CONSUME_SUCCESS; an exception or any other value as RECONSUME_LATER.

    SystemExit and KeyboardInterrupt also end the consumer: `wait_closed()` raises them. In RocketMQ null means RECONSUME_LATER.
    """

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    """The batch is done up to `context.ack_index`; later messages come again."""
    RECONSUME_LATER = "RECONSUME_LATER"
    """The whole batch comes again, each message after its delay."""


class QueueAction(Enum):
    """The effect of a call's status on the process queue."""

    COMMIT = "commit all that is taken"
    KEEP = "count only: it stays taken until a COMMIT"
    ROLL_BACK = "all that is taken waits again"
    PUT_BACK = "this batch waits again, attempts + 1"


_S = ConsumeOrderlyStatus
STEPS: dict[tuple[bool, ConsumeOrderlyStatus], QueueAction] = {
    (True, _S.SUCCESS): QueueAction.COMMIT,
    (True, _S.COMMIT): QueueAction.COMMIT,
    (True, _S.ROLLBACK): QueueAction.COMMIT,
    (True, _S.SUSPEND_CURRENT_QUEUE_A_MOMENT): QueueAction.PUT_BACK,
    (False, _S.SUCCESS): QueueAction.KEEP,
    (False, _S.COMMIT): QueueAction.COMMIT,
    (False, _S.ROLLBACK): QueueAction.ROLL_BACK,
    (False, _S.SUSPEND_CURRENT_QUEUE_A_MOMENT): QueueAction.PUT_BACK,
}
"""By (auto_commit, status). With auto commit, COMMIT and ROLLBACK log a warning and count as SUCCESS (RocketMQ's table, C.13)."""


@dataclass(frozen=True, slots=True)
class Fence:
    """The fencing token of a call, for conditional writes to the user's own store: reject a write with a lower epoch than was seen.

    Epochs and generations are comparable only within one (group, topic, broker, queue). Both have up to 63 bits.
    """

    group: str
    topic: str
    broker: str
    queue: int
    epoch: int
    """Rises with each owner of the queue, and when a grant is ended."""
    generation: int
    """Rises when the group's progress in the queue begins again: a reset, a topic that was created again, or offsets that may name other
    messages than before, because the broker lost the end of its log. A change of the owner does not raise it. Within a generation an offset
    names one message. 0 in broadcasting, where members have no common progress."""
    order_by: Literal["queue", "sharding_key"] = "queue"
    """In what the offsets of the calls rise: in the queue, or only within each sharding key (order_by="sharding_key", on_exhausted="park").
    In the second case what is stored under the fence must be per (queue, key)."""
    unkeyed: Literal["together", "alone"] = "together"
    """Whether messages without a sharding key are in order with each other, as if they had one key, or each is alone."""

    def to_json(self) -> str:
        """Return the token as JSON. Epoch and generation are strings: they have more digits than a JSON reader's double may hold."""
        numbers = {"queue": self.queue, "epoch": str(self.epoch), "generation": str(self.generation)}
        return json.dumps({"group": self.group, "topic": self.topic, "broker": self.broker, **numbers})

    def __str__(self) -> str:
        return self.to_json()


class Cancelled:
    """`context.cancelled`: set when the result of the call may no longer be accepted, so that a long listener can end early.

    `is_set()` may be called from any thread, even while the event loop is blocked; `await wait()` only on the loop.
    """

    __slots__ = ("_lapsed", "_set", "_waiters")

    def __init__(self, lapsed: Callable[[], bool]) -> None:
        self._lapsed = lapsed
        self._set = False
        self._waiters: list[asyncio.Future[None]] = []

    def is_set(self) -> bool:
        """Return whether the result of the call may no longer be accepted. Once true, it remains true."""
        if not self._set and self._lapsed():
            self._set = True
        return self._set

    def __bool__(self) -> bool:
        return self.is_set()

    async def wait(self) -> bool:
        """Wait until it is set, on the event loop only.

        Returns:
            True.
        """
        if not self.is_set():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return True

    def set(self) -> None:
        """Set it and wake all `wait()` calls. The consumer calls this, on the event loop only."""
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _CallContext:
    """The common part of the contexts of a call. They set its attributes themselves: one is created for each call."""

    __slots__ = ("_cancelled", "_lapsed", "queue")

    queue: MessageQueue
    _lapsed: Callable[[], bool]
    _cancelled: Cancelled | None

    @property
    def cancelled(self) -> Cancelled:
        if self._cancelled is None:
            self._cancelled = Cancelled(self._lapsed)
        return self._cancelled

    def cancel(self) -> None:
        """Called by the consumer: the result of this call may no longer be accepted."""
        self.cancelled.set()


class OrderlyContext(_CallContext):
    """The context of a call of an ordered listener. RocketMQ: ConsumeOrderlyContext.

    Attributes:
        queue: The MessageQueue.
        fence: The fencing token of this call (Fence).
        attempt: The number of times that this batch has failed before; 0 in the first call. A move or a restart does not reset it, except
            for a key that is not the oldest unfinished one of its queue (order_by="sharding_key").
        cancelled: See Cancelled.
        auto_commit: True unless the listener sets it to False: then only COMMIT moves the progress.
        suspend_current_queue_time_ms: Set it with SUSPEND: the pause before the next call in milliseconds, clamped to 10 … 30,000. None:
            the consumer's setting.
    """

    __slots__ = ("attempt", "auto_commit", "fence", "suspend_current_queue_time_ms")

    def __init__(self, queue: MessageQueue, fence: Fence, attempt: int, lapsed: Callable[[], bool]) -> None:
        self.queue = queue
        self._lapsed = lapsed
        self._cancelled = None
        self.fence = fence
        self.attempt = attempt
        self.auto_commit = True
        self.suspend_current_queue_time_ms: int | None = None


class ConcurrentlyContext(_CallContext):
    """The context of a call of a concurrent listener. RocketMQ: ConsumeConcurrentlyContext.

    Attributes:
        queue: The MessageQueue.
        ack_index: With CONSUME_SUCCESS: the index of the last message of the batch that is done; −1: none. Default: the last one.
        delay_level_when_next_consume: The delay of the failed messages: 0 by the number of their retries, 1 … 18 this level, −1 dead-letter
            them now.
        cancelled: See Cancelled. It is set if the queue has gone to another member, or if the call has run too long and its messages come
            again.
    """

    __slots__ = ("ack_index", "delay_level_when_next_consume")

    def __init__(self, queue: MessageQueue, count: int, lapsed: Callable[[], bool]) -> None:
        self.queue = queue
        self._lapsed = lapsed
        self._cancelled = None
        self.ack_index = count - 1
        self.delay_level_when_next_consume = 0


OrderlyResult = ConsumeOrderlyStatus | None
ConcurrentlyResult = ConsumeConcurrentlyStatus | None
AsyncListener = Callable[[Sequence[MessageExt], OrderlyContext], Awaitable[OrderlyResult]]
PlainListener = Callable[[Sequence[MessageExt], OrderlyContext], OrderlyResult]
OrderlyListener = AsyncListener | PlainListener
ConcurrentlyListener = (
    Callable[[Sequence[MessageExt], ConcurrentlyContext], Awaitable[ConcurrentlyResult]]
    | Callable[[Sequence[MessageExt], ConcurrentlyContext], ConcurrentlyResult]
)
Listener = OrderlyListener | ConcurrentlyListener


def is_async(listener: Listener) -> bool:
    """Return whether the listener is awaited on the loop (an object with an async `__call__` too) or run in a daemon thread."""
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(getattr(listener, "__call__", None))  # noqa: B004


def check_listener(listener: object) -> None:
    """Raise ConfigError if the listener can't be called with (messages, context): every call would fail."""
    if not callable(listener):
        raise ConfigError(f"listener {text_of(listener):.100}: expected a function of (messages, context)")
    try:
        inspect.signature(listener).bind(None, None)
    except TypeError as error:
        raise ConfigError(f"listener {listener_name(listener)}: expected a function of (messages, context): {text_of(error)}") from None
    except ValueError:
        pass  # built-in callables have no signature


def listener_name(listener: Callable[..., object]) -> str:
    """Return its name in logs: module and qualified name."""
    return name_of(listener if hasattr(listener, "__qualname__") else type(listener))


def read_call(
    context: OrderlyContext, result: object, error: BaseException | None
) -> tuple[ConsumeOrderlyStatus, BaseException | str | None]:
    """Return the status of a call that ended with this result or error, and why it counts as SUSPEND: the error, or what is invalid.

    The result is any object. So its type is compared: `isinstance` and `==` ask the object itself.
    """
    if error is not None:
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, error
    if type(context.auto_commit) is not bool:
        wrong = f"the listener set auto_commit to {text_of(context.auto_commit):.100}, expected True or False"
    elif result is None:
        return ConsumeOrderlyStatus.SUCCESS, None
    elif type(result) is ConsumeOrderlyStatus:
        return result, None
    else:
        wrong = _describe_wrong_result(result, ConsumeOrderlyStatus)
    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, wrong


def read_concurrent_call(
    context: ConcurrentlyContext, result: object, error: BaseException | None
) -> tuple[ConsumeConcurrentlyStatus, BaseException | str | None]:
    """Return the status of a call that ended with this result or error, and why it counts as RECONSUME_LATER, as `read_call` does."""
    if error is not None:
        return ConsumeConcurrentlyStatus.RECONSUME_LATER, error
    if type(context.ack_index) is not int:
        wrong = f"the listener set ack_index to {text_of(context.ack_index):.100}, expected an int"
    elif result is None:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS, None
    elif type(result) is ConsumeConcurrentlyStatus:
        return result, None
    else:
        wrong = _describe_wrong_result(result, ConsumeConcurrentlyStatus)
    return ConsumeConcurrentlyStatus.RECONSUME_LATER, wrong


def reason_of(wrong: BaseException | str) -> str:
    """Return why a call failed, in words."""
    return wrong if isinstance(wrong, str) else text_of(wrong)


def _describe_wrong_result(result: object, expected: type[Enum]) -> str:
    if type(result) is CoroutineType:
        if inspect.getcoroutinestate(result) == inspect.CORO_CREATED:
            result.close()  # it was never awaited, which Python would report; closing one that has begun would run it
        return "the listener returned a coroutine: declare the listener itself `async def`"
    return f"the listener returned {text_of(result):.100}, expected None or a {expected.__name__}"

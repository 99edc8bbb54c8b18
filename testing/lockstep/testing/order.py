"""The order checker: is notified of sends and of the work of the user's handler, and checks that the order was kept."""

import asyncio
from collections.abc import Callable, Sequence
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar

from lockstep.client import (
    BatchSendError,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    OrderlyContext,
    Outcome,
    Producer,
    SendError,
    SendResult,
)
from lockstep.client.consumer.calls.listener import OrderlyListener, is_async
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.tags import TagFilter
from lockstep.testing.cluster import TestCluster
from lockstep.testing.errors import OrderViolationError
from lockstep.testing.order_laws import Broken, Fate, Handling, ReportedSend, judge, key_group, show

ListenerT = TypeVar("ListenerT", bound=OrderlyListener)

DONE = (None, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
NEARBY_COUNT = 6
"""The number of handlings shown before and after a violation, and of faults of the member that caused it."""
NEARBY_S = 5.0
"""How long before these handlings events of the cluster are shown."""


class OrderChecker:
    """Checks the work of one consumer group on one topic.

    It is notified of sends by `producer(…)`, and of work by `watch` (a call that ends with SUCCESS has handled its messages) or by
    `handled`, which is called where the effect happens: in the transaction, after the write that could have been refused. `verify` checks.

    Args:
        topic, expression: the group's subscription; other messages need not be handled.
    """

    def __init__(self, cluster: TestCluster, *, topic: str | None = None, expression: str = "*") -> None:
        self._cluster = cluster
        self._topic = topic
        self._filter = TagFilter.parse(expression)
        self._sends: list[ReportedSend] = []
        self._handlings: list[Handling] = []
        self._count = 0

    # ----------------------------------------------------------------------------------------------------------- notified of

    def producer(self, producer: Producer) -> "CheckedProducer":
        """Return a wrapper of the producer that reports its sends, and their results, to this checker."""
        return CheckedProducer(producer, self)

    def watch(self, listener: ListenerT) -> ListenerT:
        """Decorator, below `@consumer.orderly`: the messages of a call are handled when it returns None, SUCCESS or COMMIT."""
        if is_async(listener):

            @wraps(listener)
            async def watched(messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
                return self._ended(await listener(messages, context), messages, context)  # type: ignore[misc]

            return watched  # type: ignore[return-value]

        @wraps(listener)
        def plainly_watched(messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
            return self._ended(listener(messages, context), messages, context)

        return plainly_watched  # type: ignore[return-value]

    def _ended(self, result: Any, messages: Sequence[MessageExt], context: OrderlyContext) -> Any:
        if result in DONE:
            for message in messages:
                self.handled(message, context)
        return result

    def handled(self, message: MessageExt, context: OrderlyContext | None = None) -> None:
        """Report that the work for this message is done now."""
        self._handlings.append(
            Handling(
                number=self._next(),
                t=self._cluster.now,
                by=self._cluster.running(),
                epoch=None if context is None else context.fence.epoch,
                message_id=message.message_id,
                topic=message.topic,
                key=message.sharding_key,
                queue=f"{message.broker_name}:{message.queue_id}",
                offset=message.queue_offset,
                body=message.body,
            )
        )

    def began(self, message: Message, *, by_queue: bool = False) -> ReportedSend:
        """Report that a send begins. `by_queue`: a selector or the caller chooses its queue. `producer(…)` calls this."""
        group = None if message.sharding_key is None else key_group(message.sharding_key)
        expected = self._topic in (None, message.topic) and self._filter.matches_tag(message.tags)
        send = ReportedSend(message.topic, bytes(message.body), group, self._next(), self._cluster.now, expected=expected)
        if by_queue:
            send.group = ""
        self._sends.append(send)
        return send

    def ended(self, send: ReportedSend, result: SendResult | BaseException) -> None:
        """Report that a send was acknowledged, or failed."""
        send.ended, send.ended_s = self._next(), self._cluster.now
        if isinstance(result, SendResult):
            send.fate, send.message_id = Fate.ACKED, result.message_id
            if send.group == "":
                send.group = f"queue {result.queue.broker_name}:{result.queue.queue_id}"
        elif isinstance(result, SendError):
            send.fate = Fate.NOT_STORED if result.outcome is Outcome.NOT_STORED else Fate.UNKNOWN
        elif isinstance(result, LockstepError):
            send.fate = Fate.NOT_STORED
        if send.group == "":
            send.group = None

    def _next(self) -> int:
        self._count += 1
        return self._count

    # -------------------------------------------------------------------------------------------------------------- verdict

    @property
    def handled_count(self) -> int:
        """Return the number of handlings so far, repeats included."""
        return len(self._handlings)

    @property
    def repeat_count(self) -> int:
        """Return the number of repeats among them."""
        return len(self._handlings) - len({each.message_id for each in self._handlings})

    def verify(self, *, max_repeats: int = 10) -> None:
        """Check all laws. Call it when the group has settled.

        Args:
            max_repeats: how often a message may be repeated; 0 if there were no faults.

        Raises:
            OrderViolationError: a law is broken; the message has the events around it, and the seed.
        """
        acked = sum(send.fate is Fate.ACKED for send in self._sends)
        if not acked:
            raise OrderViolationError("no send was acknowledged, so no order can be checked: send through checker.producer(…)")
        broken = judge(self._sends, self._handlings, max_repeats=max_repeats)
        if broken:
            raise OrderViolationError(self._text(broken))

    def _text(self, broken: Sequence[Broken]) -> str:
        seed = self._cluster.seed
        lines = [f"{len(broken)} faults" if len(broken) > 1 else "1 fault", *(f"  {each.law}: {each.text}" for each in broken)]
        lines += ["around the first one:", *self._nearby(broken[0])]
        if seed is not None:
            lines.append(f"seed {seed}: pytest --lockstep-seed {seed}, or simulate(main, seed={seed}), does exactly this again")
        return "\n".join(lines)

    def _nearby(self, broken: Broken) -> list[str]:
        """Return the handlings of the same key or queue, and the events of the cluster, in order of time."""
        groups = {id_: f"{send.topic} {send.group}" for send in self._sends if (id_ := send.message_id)}
        mine = [each for each in self._handlings if broken.group is None or groups.get(each.message_id) == broken.group]
        at = sum(each.t < broken.t for each in mine)
        shown = mine[max(0, at - NEARBY_COUNT) : at + NEARBY_COUNT]
        lines = [(each.t, _line(each)) for each in shown]
        first, last = min([t for t, _ in lines], default=0.0), max([broken.t, *(t for t, _ in lines)])
        before = [each for each in self._cluster.happenings if each.t <= last]
        theirs = [each for each in before if broken.by and broken.by in each.text and each.t < broken.t][-NEARBY_COUNT:]
        before = [each for each in before if each.t >= first - NEARBY_S or each in theirs]
        lines += [(each.t, f"  {each.t:9.3f} s  --- {each.text}") for each in before]
        return [text for _, text in sorted(lines, key=lambda line: line[0])]


def _line(handling: Handling) -> str:
    fence = "" if handling.epoch is None else f", fence {handling.epoch}"
    return f"  {handling.t:9.3f} s  {show(handling.body)} handled by {handling.by}, offset {handling.offset} of {handling.queue}{fence}"


class CheckedProducer:
    """Wraps a producer, and reports its sends to an OrderChecker."""

    def __init__(self, producer: Producer, checker: OrderChecker) -> None:
        self._producer = producer
        self._checker = checker

    def __getattr__(self, name: str) -> Any:
        if name == "send_oneway":
            raise AttributeError("send_oneway has no response, so the checker could not know which messages must be handled: use send")
        return getattr(self._producer, name)

    async def __aenter__(self) -> "CheckedProducer":
        await self._producer.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._producer.close()

    async def send(self, message: Message, **options: Any) -> SendResult:
        """Producer.send."""
        send = self._began(message, options)
        return (await self._report([send], lambda: self._one(message, options)))[0]

    async def _one(self, message: Message, options: dict[str, Any]) -> list[SendResult]:
        return [await self._producer.send(message, **options)]

    async def send_batch(self, messages: Sequence[Message], **options: Any) -> list[SendResult]:
        """Producer.send_batch."""
        sends = [self._began(message, options) for message in messages]
        return await self._report(sends, lambda: self._producer.send_batch(messages, **options))

    def _began(self, message: Message, options: dict[str, Any]) -> ReportedSend:
        by_queue = options.get("queue") is not None or options.get("selector") is not None
        return self._checker.began(message, by_queue=by_queue)

    async def _report(self, sends: Sequence[ReportedSend], send: Callable[[], Any]) -> list[SendResult]:
        try:
            results: list[SendResult] = await send()
        except BatchSendError as error:
            self._end(sends, error.results)
            raise
        except (LockstepError, asyncio.CancelledError) as error:
            self._end(sends, [error] * len(sends))
            raise
        self._end(sends, results)
        return results

    def _end(self, sends: Sequence[ReportedSend], results: Sequence[SendResult | BaseException]) -> None:
        for one, result in zip(sends, results, strict=True):
            self._checker.ended(one, result)

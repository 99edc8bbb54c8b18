"""Hooks observe every listener call in its own context and can't change its result."""

import contextvars
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Consuming,
    Message,
    MessageExt,
    OrderlyContext,
    Producer,
    PushConsumer,
    StateError,
)
from lockstep.testing import TestCluster, simulate

span: contextvars.ContextVar[str] = contextvars.ContextVar("span", default="none")


class Trace:
    """A hook that records its calls under a name."""

    def __init__(self, name: str, seen: list[Any]) -> None:
        self.name = name
        self.seen = seen

    def before_consume(self, consuming: Consuming) -> None:
        span.set(f"{self.name}-span")
        consuming.memory[self] = len(self.seen)
        self.seen.append((self.name, "before", consuming.group, [message.body for message in consuming.messages]))

    def after_consume(self, consuming: Consuming) -> None:
        assert consuming.memory[self] < len(self.seen)
        self.seen.append((self.name, "after", consuming.succeeded, consuming.result, type(consuming.error).__name__))


class Broken:
    """A hook that raises in every method."""

    def before_consume(self, consuming: Consuming) -> None:
        raise RuntimeError("before")

    def after_consume(self, consuming: Consuming) -> None:
        raise RuntimeError("after")


def consumed(listener: Any, hooks: Sequence[Any], bodies: Sequence[bytes], *, concurrent: bool = False) -> None:
    async def main() -> None:
        async with TestCluster(brokers=1) as cluster:
            await cluster.create_topic("orders", queues=1)
            consumer = PushConsumer("billing", nameserver=cluster.nameserver)
            consumer.subscribe("orders")
            for hook in hooks:
                consumer.add_hook(hook)
            (consumer.concurrently if concurrent else consumer.orderly)(listener)
            async with consumer, Producer("shop", nameserver=cluster.nameserver) as producer:
                for body in bodies:
                    await producer.send(Message("orders", body))
                await cluster.advance(seconds=20)
                with pytest.raises(StateError, match="add_hook"):
                    consumer.add_hook(Broken())

    simulate(main)


def test_consume_hooks_wrap_each_call_in_its_context_whatever_its_result() -> None:
    seen: list[Any] = []
    spans: list[str] = []
    results: list[Any] = [ConsumeOrderlyStatus.SUCCESS, ValueError("no"), ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, None]

    async def listen(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
        spans.append(span.get())
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[no-any-return]

    consumed(listen, [Trace("one", seen), Trace("two", seen)], [b"1", b"2"])
    assert [reported for reported in seen if reported[0] == "one"] == [
        ("one", "before", "billing", [b"1"]),
        ("one", "after", True, ConsumeOrderlyStatus.SUCCESS, "NoneType"),
        ("one", "before", "billing", [b"2"]),
        ("one", "after", False, None, "ValueError"),
        ("one", "before", "billing", [b"2"]),
        ("one", "after", False, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, "NoneType"),
        ("one", "before", "billing", [b"2"]),
        ("one", "after", True, None, "NoneType"),
    ]
    assert [reported[0] for reported in seen[:4]] == ["one", "two", "two", "one"]
    assert spans == ["two-span"] * 4


def test_consume_hooks_wrap_calls_of_synchronous_concurrent_listeners() -> None:
    seen: list[Any] = []
    spans: list[str] = []

    def plainly(messages: Sequence[MessageExt], _: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        spans.append(span.get())
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumed(plainly, [Trace("one", seen)], [b"1"], concurrent=True)
    assert seen[1] == ("one", "after", True, ConsumeConcurrentlyStatus.CONSUME_SUCCESS, "NoneType")
    assert spans == ["one-span"]


def test_exception_in_a_consume_hook_does_not_fail_the_call() -> None:
    seen: list[bytes] = []

    async def listen(messages: Sequence[MessageExt], _: OrderlyContext) -> ConsumeOrderlyStatus:
        seen.extend(message.body for message in messages)
        return ConsumeOrderlyStatus.SUCCESS

    consumed(listen, [Broken()], [b"1", b"2"])
    assert seen == [b"1", b"2"]

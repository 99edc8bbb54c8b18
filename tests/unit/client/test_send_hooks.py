"""Hooks observe every send in order and can't make one fail."""

import asyncio
from typing import Any

import pytest

from lockstep.client import LocalProtocolError, Message, Producer, TopicNotExistError
from lockstep.client.producer.hooks import Sending
from support.fake_broker import fake_cluster, ignore
from support.loops import until
from support.send_trace import Trace


class Broken:
    """A hook that raises in every method."""

    def before_send(self, sending: Sending) -> None:
        sending.properties["bad\x01name"] = "x"
        raise RuntimeError("before")

    def after_send(self, sending: Sending) -> None:
        raise RuntimeError("after")


@pytest.mark.simulated
async def test_send_hooks_wrap_every_send_method_and_their_properties_are_sent() -> None:
    seen: list[Any] = []
    async with fake_cluster("a", topics={"t": 1}) as cluster, Producer("shop", nameserver=cluster.nameserver) as producer:
        for name in ("one", "two"):
            producer.add_hook(Trace(name, seen))
        await producer.send(Message("t", b"1", tags="paid", keys=["k"], properties={"tenant": "x"}, flag=3, sharding_key="s"))
        results = await producer.send_batch([Message("t", b"2"), Message("t", b"3")])
        await producer.send_oneway(Message("t", b"4"))
        await producer.send(Message("t", b"5"))
        messages = [message for one in cluster.brokers["a"].sends for message in one.messages]
    assert [result.queue_offset for result in results] == [1, 2]
    ways = [("send", [b"1"], [0]), ("batch", [b"2", b"3"], [1, 2]), ("oneway", [b"4"], []), ("send", [b"5"], [3])]
    assert seen == [
        reported
        for way, bodies, offsets in ways
        for reported in (
            ("one", "before", way, bodies),
            ("two", "before", way, bodies),
            ("two", "after", offsets, "NoneType"),
            ("one", "after", offsets, "NoneType"),
        )
    ]
    assert {message.properties["trace-one"] for message in messages} == {"one-span"}
    first = messages[0]
    assert (first.tags, first.keys, first.sharding_key, first.flag, first.properties["tenant"]) == ("paid", ("k",), "s", 3, "x")


@pytest.mark.simulated
async def test_send_hooks_get_the_error_that_a_send_raises() -> None:
    seen: list[Any] = []
    async with (
        fake_cluster("a", topics={"u": 1}) as cluster,
        Producer("shop", nameserver=cluster.nameserver, auto_create_topics=False) as producer,
    ):
        producer.add_hook(Trace("one", seen))
        with pytest.raises(TopicNotExistError):
            await producer.send(Message("t", b"1"))
        with pytest.raises(LocalProtocolError):
            await producer.send(Message("u", b"1", sharding_key="k"), selector=lambda queues, _: queues[0])
        cluster.brokers["a"].script.append(ignore)
        sending = asyncio.ensure_future(producer.send(Message("u", b"1")))
        await until(lambda: bool(cluster.brokers["a"].sends))
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    assert [reported[-1] for reported in seen if reported[1] == "after"] == ["TopicNotExistError", "LocalProtocolError", "CancelledError"]


@pytest.mark.simulated
async def test_exception_in_a_send_hook_is_logged_and_does_not_affect_the_send(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    async with fake_cluster("a", topics={"t": 1}) as cluster, Producer("shop", nameserver=cluster.nameserver) as producer:
        producer.add_hook(Broken())
        producer.add_hook(Trace("one", seen))
        result = await producer.send(Message("t", b"1", properties={"tenant": "x"}))
        (stored,) = cluster.brokers["a"].sends[0].messages
    assert result.queue_offset == 0
    assert [reported[1] for reported in seen] == ["before", "after"]
    assert stored.properties.keys() & {"tenant", "trace-one"} == {"tenant"}, "what can't be stored is left out, all of it"
    reported = capsys.readouterr()
    text = caplog.text + reported.err + reported.out
    assert text.count("hook.failed") >= 3
    assert all(step in text for step in ("before_send", "after_send", "properties")), text

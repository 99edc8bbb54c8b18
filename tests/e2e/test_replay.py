"""lockstep dlq replay with an obstacle: it replays the messages that it can, keeps the others, and reports both."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import (
    ConsumeOrderlyStatus,
    ConsumerEvent,
    Message,
    MessageDeadLettered,
    MessageExt,
    MessageQueue,
    OrderedRetry,
    OrderlyContext,
    Producer,
    PushConsumer,
)
from lockstep.client.producer.machines.routing import Selector
from support.cluster import WAIT_S, Cluster

pytestmark = pytest.mark.e2e


async def fails(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
    raise ValueError("not now")


def second(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    return queues[1]


def keyed(topic: str, body: str) -> Message:
    """Return a message whose body is the sharding key."""
    return Message(topic, body.encode(), sharding_key=body)


async def dead_letter_messages(cluster: Cluster, *messages: Message, selector: Selector | None = None) -> None:
    """Let the ordered group `billing` give up these messages one after the other, and stop it."""
    dead: list[ConsumerEvent] = []
    reported = asyncio.Event()

    def tell(event: ConsumerEvent) -> None:
        if isinstance(event, MessageDeadLettered):
            dead.append(event)
            reported.set()

    consumer = PushConsumer("billing", nameserver=cluster.nameservers, retry=OrderedRetry(max_attempts=1, on_exhausted="dlq"))
    consumer.on_event(tell)
    consumer.orderly(fails)
    for topic in dict.fromkeys(message.topic for message in messages):
        consumer.subscribe(topic)
    async with Producer("shop", nameserver=cluster.nameservers) as producer, consumer, asyncio.timeout(WAIT_S):
        for count, message in enumerate(messages, 1):
            await producer.send(message, selector=selector)
            while len(dead) < count:
                reported.clear()
                await reported.wait()


async def create_two_topics(cluster: Cluster, brokers: Sequence[str] = ("broker-a",)) -> None:
    """Create dead letters of `gone`, which is deleted, among those of `orders`."""
    await cluster.servers(queues=1, brokers=brokers)
    await cluster.command("topic", "create", "gone", "--queues", "1")
    names = ("orders", "gone", "orders", "gone", "orders")
    await dead_letter_messages(cluster, *(keyed(topic, f"{topic}-{number}") for number, topic in enumerate(names)))
    await cluster.command("topic", "delete", "gone")


async def stored_bodies(cluster: Cluster, topic: str) -> list[str]:
    """Return the bodies of all stored messages."""
    queues = json.loads(await cluster.command("topic", "show", topic, "--json"))["queues"]
    count = sum(queue["max_offset"] - queue["min_offset"] for queue in queues)
    lines = (await cluster.command("tail", topic, "--from-start", "--count", str(count), "--json")).splitlines()
    return [json.loads(line)["body"] for line in lines]


async def waiting_dead_letters(cluster: Cluster) -> list[dict[str, Any]]:
    letters = json.loads(await cluster.command("dlq", "ls", "billing", "--json"))["dead_letters"]
    return [letter for letter in letters if not letter["replayed"]]


async def test_dead_letters_of_a_deleted_topic_delay_no_others_and_wait_for_its_recreation(cluster: Cluster) -> None:
    await create_two_topics(cluster)
    gone = [letter["offset_message_id"] for letter in await waiting_dead_letters(cluster) if letter["origin_topic"] == "gone"]
    error = await cluster.command("dlq", "replay", "billing", "--to", "topic", code=1)
    assert "2 dead letters of billing were not sent and remain for the next replay" in error
    assert f"2 of gone ({', '.join(gone)}): " in error
    assert "lockstep topic create gone" in error
    assert await stored_bodies(cluster, "orders") == ["orders-0", "orders-2", "orders-4"] * 2
    left = await waiting_dead_letters(cluster)
    assert [(letter["body"], letter["origin_topic"]) for letter in left] == [("gone-1", "gone"), ("gone-3", "gone")]
    said = json.loads(await cluster.run_command("dlq", "replay", "billing", "--to", "topic", "--json", code=1))
    assert (said["count"], [each["origin_topic"] for each in said["left"]]) == (0, ["gone", "gone"])
    assert await waiting_dead_letters(cluster) == left, "where nothing went out nothing was moved"
    await cluster.command("topic", "create", "gone", "--queues", "1")
    assert "2 dead letters of billing were sent" in await cluster.command("dlq", "replay", "billing", "--to", "topic")
    assert await stored_bodies(cluster, "gone") == ["gone-1", "gone-3"]
    assert await stored_bodies(cluster, "orders") == ["orders-0", "orders-2", "orders-4"] * 2
    assert await waiting_dead_letters(cluster) == []


async def test_replay_does_not_recreate_a_deleted_topic(cluster: Cluster) -> None:
    await cluster.nameserver()
    await cluster.broker("broker-a", "--auto-create-topics")
    await cluster.command("topic", "create", "gone", "--queues", "1")
    await dead_letter_messages(cluster, keyed("gone", "one"))
    await cluster.command("topic", "delete", "gone")
    assert "no topic 'gone': create it with" in await cluster.command("dlq", "replay", "billing", "--to", "topic", code=1)
    assert "gone" not in (await cluster.command("topic", "list")).replace("%DLQ%", "").split()


async def test_stopped_ordered_group_gets_no_replay_by_its_retry_topic(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=("broker-a",))
    await dead_letter_messages(cluster, keyed("orders", "one"))
    error = await cluster.command("dlq", "replay", "billing", "--to", "retry", code=1)
    assert "was ordered" in error
    assert "Use --to topic" in error
    assert len(await waiting_dead_letters(cluster)) == 1


async def test_one_of_two_concurrent_replays_detects_the_other_and_stops(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=("broker-a",))
    await dead_letter_messages(cluster, *(keyed("orders", str(number)) for number in range(60)))
    lines = [cluster.started_command("dlq", "replay", "billing", "--to", "topic", "--rate", "20") for _ in range(2)]
    ends = await asyncio.gather(*lines)
    assert sorted(str(code) for code, _, _ in ends) == ["0", "1"]
    (error,) = [error for code, _, error in ends if code]
    assert "another replay of billing is running: this one has stopped" in error
    assert await waiting_dead_letters(cluster) == []


async def test_dead_letters_of_a_broker_that_is_down_are_named_and_stay_stored(cluster: Cluster) -> None:
    await cluster.servers(queues=1)
    await dead_letter_messages(cluster, *(keyed("orders", str(number)) for number in range(12)))
    letters = await waiting_dead_letters(cluster)
    at_b = [letter for letter in letters if letter["broker"] == "broker-b"]
    assert 0 < len(at_b) < 12
    await cluster.kill("broker-b")
    error = await cluster.command("dlq", "replay", "billing", "--to", "topic", code=1)
    assert "some brokers could not be read (broker broker-b: " in error
    there, away = letters[0]["offset_message_id"], at_b[0]["offset_message_id"]
    assert "orders" in await cluster.command("dlq", "show", "billing", there)
    assert "broker-b" in await cluster.command("dlq", "show", "billing", away, code=1)
    await cluster.restart("broker-b")
    said = json.loads(await cluster.command("dlq", "replay", "billing", "--to", "topic", "--json"))
    assert (said["count"], said["left"], said["failed"]) == (len(at_b), [], {})


async def test_replay_keeps_the_queue_and_order_of_a_selector(cluster: Cluster) -> None:
    """This is RocketMQ's way to order by key."""
    await cluster.servers(queues=2)
    await dead_letter_messages(cluster, *(Message("orders", b"%d" % number) for number in range(4)), selector=second)
    assert "4 dead letters of billing were sent" in await cluster.command("dlq", "replay", "billing", "--to", "topic")
    (queue,) = [each for each in json.loads(await cluster.command("topic", "show", "orders", "--json"))["queues"] if each["max_offset"]]
    assert queue["max_offset"] == 8
    assert await stored_bodies(cluster, "orders") == ["0", "1", "2", "3"] * 2

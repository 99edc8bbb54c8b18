"""Messages for unit tests are those that a consumer receives."""

import pytest

from lockstep.client import Fence, LocalProtocolError, Message, MessageExt, MessageQueue, Producer, PullConsumer
from lockstep.testing import TestCluster, concurrently_context, message, orderly_context

FIELDS = (
    *("topic", "stored_topic", "body", "tags", "keys", "sharding_key", "flag", "properties", "message_id"),
    *("broker_name", "queue_id", "queue_offset", "reconsume_times", "born_ms", "stored_ms"),
)


def fields(found: MessageExt) -> dict[str, object]:
    return {name: getattr(found, name) for name in FIELDS}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"tags": "paid", "keys": ("a", "b"), "properties": {"tenant": "x"}, "sharding_key": "k", "flag": 7},
        {"keys": "one two"},
    ],
)
@pytest.mark.lockstep(brokers=1)
async def test_message_equals_the_one_that_a_consumer_receives(lockstep_cluster: TestCluster, how: dict[str, object]) -> None:
    await lockstep_cluster.create_topic("orders", queues=1)
    async with Producer("shop", nameserver=lockstep_cluster.nameserver) as producer:
        for _ in range(2):
            sent = await producer.send(Message("orders", b"body", **how))  # type: ignore[arg-type]
    consumer = PullConsumer("reader", nameserver=lockstep_cluster.nameserver)
    await consumer.assign([sent.queue])
    async with consumer:
        await consumer.seek(sent.queue, 1)
        (received,) = await consumer.poll(5_000)
    position = {"broker_name": sent.queue.broker_name, "queue_id": 0, "queue_offset": 1}
    times = {"born_ms": received.born_ms, "stored_ms": received.stored_ms}
    made = message("orders", b"body", message_id=received.message_id, **position, **times, **how)  # type: ignore[arg-type]
    assert fields(made) == fields(received)


def test_message_has_defaults_for_what_a_test_does_not_care_about() -> None:
    made = message("orders", b"body")
    assert (made.broker_name, made.queue_id, made.queue_offset, made.reconsume_times) == ("broker-a", 0, 0, 0)
    assert made.born_ms == made.stored_ms > 0
    assert len({message("orders", b"body", queue_id=queue, queue_offset=at).message_id for queue in (0, 1) for at in (0, 1)}) == 4
    assert message("orders", b"body", reconsume_times=3).reconsume_times == 3


@pytest.mark.parametrize(
    "wrong", [{"queue_offset": -1}, {"queue_offset": 2**63}, {"queue_id": 2**31}, {"tags": "a || b"}, {"born_ms": 2**63}]
)
def test_message_that_could_not_be_stored_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(LocalProtocolError):
        message("orders", b"body", **wrong)  # type: ignore[arg-type]


def test_contexts_belong_to_the_queue_of_their_messages() -> None:
    batch = [message("orders", b"body", queue_id=3, queue_offset=at) for at in (5, 6)]
    orderly = orderly_context(batch, group="billing", attempt=2, epoch=9, generation=7, order_by="sharding_key", unkeyed="alone")
    assert orderly.queue == MessageQueue("orders", "broker-a", 3)
    assert (orderly.attempt, orderly.auto_commit, orderly.cancelled.is_set()) == (2, True, False)
    assert orderly.fence == Fence("billing", "orders", "broker-a", 3, 9, 7, "sharding_key", "alone")
    assert orderly_context(batch).fence.generation < orderly_context(batch).fence.epoch, "progress begins before the first grant"
    concurrently = concurrently_context(batch, cancelled=True)
    assert (concurrently.queue, concurrently.ack_index, concurrently.cancelled.is_set()) == (orderly.queue, 1, True)
    for wrong in ([], [batch[0], message("orders", b"body", queue_id=4)]):
        with pytest.raises(LocalProtocolError, match="messages of one queue"):
            orderly_context(wrong)

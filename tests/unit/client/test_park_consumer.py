"""on_exhausted="park": a poisoned key is set aside, every other key goes on, and a replay brings the key back in order."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lockstep.client import (
    ConfigError,
    ConsumerEvent,
    KeyParked,
    KeyResumed,
    Message,
    MessageExt,
    MessageModel,
    OrderlyContext,
    Producer,
    PushConsumer,
    QueueBlocked,
    sql,
)
from lockstep.client.broker_link import BrokerLink
from lockstep.protocol.bodies import ParkState
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.testing import TestCluster
from support.park_kit import GROUP, PARK, TOPIC, Poison, Send, Worker, around_requests, both_orders, dead_letters, drop, poisoned, send


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_poisoned_key_is_set_aside_and_comes_back_in_order(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k3"})
    worker = Worker(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await send(cluster, 100, 10)
    await cluster.until(lambda: len(worker.got) == 90, "every other key")
    await cluster.settled(GROUP)
    (row,) = await cluster.parked(GROUP)
    assert (row.key, row.state, row.attempts, row.error) == ("k3", ParkState.PARKED, 3, "RuntimeError: poisoned")
    assert worker.parked == [("k3", 3)]

    poison.keys.clear()
    await send(cluster, 20, 10, start=100)
    await cluster.until(lambda: len(worker.got) == 108, "new messages of every other key")
    assert not worker.of_key("k3"), "new messages of a parked key wait as well"
    await cluster.replay(GROUP, "k3")
    await cluster.until(lambda: len(worker.got) == 120, "the replay")
    await send(cluster, 20, 10, start=120)
    await cluster.until(lambda: len(worker.got) == 140, "the key in the main flow")
    for key in range(10):
        assert worker.of_key(f"k{key}") == list(range(key, 140, 10))
    assert [each.key for each in worker.events if isinstance(each, KeyResumed)] == ["k3"]
    assert not await cluster.parked(GROUP)


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_dropped_key_goes_to_the_dead_letter_topic_and_continues_after_it(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k3"})
    worker = Worker(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await send(cluster, 100, 10)
    await cluster.until(lambda: len(worker.got) == 90 and worker.parked, "every other key")
    poison.keys.clear()
    await drop(cluster, "k3")
    await cluster.until(lambda: any(isinstance(each, KeyResumed) for each in worker.events), "the end of the drop")
    await send(cluster, 20, 10, start=100)
    await cluster.until(lambda: len(worker.got) == 110, "the key in the main flow")
    assert worker.of_key("k3") == [103, 113]
    letters: list[int] = []
    reader = PushConsumer("letters", nameserver=cluster.nameserver).subscribe(f"%DLQ%{GROUP}")

    @reader.orderly
    async def read(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        letters.extend(int(message.body) for message in messages)

    async with reader:
        await cluster.until(lambda: len(letters) >= 10, "the dead letters")
    assert letters == list(range(3, 100, 10))


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_key_that_fails_again_is_parked_again_where_it_fails(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k0"})
    worker = Worker(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await send(cluster, 40, 4)
    await cluster.until(lambda: len(worker.got) == 30 and worker.parked, "every other key")
    poison.keys.clear()
    worker.work_s = 1.0
    await cluster.replay(GROUP, "k0")
    await cluster.until(lambda: len(worker.of_key("k0")) == 3, "a part of the replay")
    poison.keys.add("k0")
    await cluster.until(lambda: len(worker.parked) == 2, "the second time")
    (row,) = await cluster.parked(GROUP)
    assert (row.state, row.next) == (ParkState.PARKED, 12)
    poison.keys.clear()
    await cluster.replay(GROUP, "k0")
    await cluster.until(lambda: len(worker.of_key("k0")) == 10, "the rest")
    assert worker.of_key("k0") == list(range(0, 40, 4))


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_next_owner_goes_on_with_a_replay(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k0"})
    one, other = (Worker(cluster, poison, order_by, work_s=0.2) for _ in range(2))
    await cluster.start("one", one.run)
    await send(cluster, 80, 4)
    await cluster.until(lambda: len(one.got) == 60 and one.parked, "every other key")
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(one.of_key("k0")) == 5, "a part of the replay")
    await cluster.kill("one")
    await cluster.start("other", other.run)
    await cluster.until(lambda: 76 in other.of_key("k0"), "the rest of the replay")
    await send(cluster, 8, 4, start=80)
    await cluster.until(lambda: 84 in other.of_key("k0"), "the key in the main flow")
    accepted = other.of_key("k0")
    assert accepted == list(range(accepted[0], 88, 4))
    assert one.of_key("k0") == list(range(0, 20, 4)), "the killed member did nothing more"
    assert accepted[0] <= 20, "nothing is left out"


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_broker_that_is_killed_in_a_replay_knows_how_far_it_was(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    poison = Poison({"k0"})
    worker = Worker(cluster, poison, order_by, work_s=0.2)
    await cluster.start("a", worker.run)
    await send(cluster, 80, 4)
    await cluster.until(lambda: len(worker.got) == 60 and worker.parked, "every other key")
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(worker.of_key("k0")) == 5, "a part of the replay")
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    await send(cluster, 8, 4, start=80)
    await cluster.until(lambda: 84 in worker.of_key("k0"), "the key in the main flow")
    accepted = worker.of_key("k0")
    assert [n for at, n in enumerate(accepted) if n not in accepted[:at]] == list(range(0, 88, 4))


@pytest.mark.lockstep(brokers=1)
async def test_message_without_a_key_blocks(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    failing = True
    events: list[ConsumerEvent] = []
    consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, retry=PARK).subscribe(TOPIC)
    consumer.on_event(events.append)
    got: list[bytes] = []

    @consumer.orderly
    async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if failing:
            raise RuntimeError("poisoned")
        got.extend(message.body for message in messages)

    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send(Message(TOPIC, b"0"))
        await producer.send(Message(TOPIC, b"1"))
    async with consumer:
        await cluster.until(lambda: any(isinstance(each, QueueBlocked) for each in events), "the block")
        (blocked,) = (each for each in events if isinstance(each, QueueBlocked))
        assert blocked.error.startswith("RuntimeError: poisoned; its key is not parked: the message at offset 0 of orders queue 0 has no")
        assert not any(isinstance(each, KeyParked) for each in events)
        await cluster.advance(seconds=60)
        assert not got
        failing = False
        consumer.resume()
        await cluster.until(lambda: got == [b"0", b"1"], "both")


@pytest.mark.lockstep(brokers=1)
async def test_failed_batch_is_repeated_message_by_message_so_that_the_right_key_is_parked(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await send(cluster, 100, 10)
    worker = Worker(cluster, Poison({"k7"}), "queue", settings={"batch_count": 32})
    await cluster.start("a", worker.run)
    await cluster.until(lambda: len(worker.got) == 90, "every other key")
    assert worker.parked == [("k7", 7)]
    for key in range(10):
        assert worker.of_key(f"k{key}") == ([] if key == 7 else list(range(key, 100, 10)))


def test_settings_that_contradict_park_are_refused() -> None:
    for settings in ({"message_model": MessageModel.BROADCASTING}, {"commit": "each"}):
        with pytest.raises(ConfigError, match='on_exhausted "park"'):
            PushConsumer(GROUP, nameserver="127.0.0.1:1", retry=PARK, **settings)


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_paused_consumer_calls_nothing_in_a_replay_and_goes_on_with_it(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster, poison = lockstep_cluster, Poison({"k3"})
    worker = await poisoned(cluster, order_by, poison=poison, work_s=0.1)
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(worker.of_key("k3")) == 3, "a part of the replay")
    assert worker.consumer is not None
    worker.consumer.pause()
    await cluster.advance(seconds=5)
    assert worker.of_key("k3") == [3, 13, 23, 33], "the call that ran has ended, and no other one has begun"
    assert [(row.key, row.next) for row in await cluster.parked(GROUP)] == [("k3", 34)]
    worker.consumer.resume()
    await cluster.until(lambda: worker.resumed, "the end of the replay")
    assert worker.of_key("k3") == list(range(3, 100, 10))


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_replay_that_begins_while_the_consumer_is_paused_waits(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster, poison = lockstep_cluster, Poison({"k3"})
    worker = await poisoned(cluster, order_by, poison=poison)
    poison.keys.clear()
    assert worker.consumer is not None
    worker.consumer.pause()
    await cluster.replay(GROUP)
    await cluster.advance(seconds=30)
    assert not worker.of_key("k3")
    worker.consumer.resume()
    await cluster.until(lambda: worker.resumed, "the end of the replay")
    assert worker.of_key("k3") == list(range(3, 100, 10))


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_drop_ends_while_the_consumer_is_paused(lockstep_cluster: TestCluster, order_by: str) -> None:
    """Else every later message of the key would go to the dead-letter topic until it is resumed."""
    cluster, poison = lockstep_cluster, Poison({"k3"})
    worker = await poisoned(cluster, order_by, poison=poison)
    poison.keys.clear()
    assert worker.consumer is not None
    worker.consumer.pause()
    await drop(cluster, "k3")
    await cluster.until(lambda: worker.resumed, "the end of the drop", timeout=20)
    await send(cluster, 20, 10, start=100)
    worker.consumer.resume()
    await cluster.until(lambda: len(worker.got) == 110, "new messages of each key")
    assert worker.of_key("k3") == [103, 113]


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_forty_keys_are_replayed_sixteen_at_a_time(lockstep_cluster: TestCluster, order_by: str) -> None:
    """Those that fail again make room for the others at once, as those do that have ended."""
    cluster = lockstep_cluster
    poison = Poison({f"k{n}" for n in range(40)})
    worker = await poisoned(cluster, order_by, poison=poison, count=200, keys=50)
    poison.keys = {f"k{n}" for n in range(20)}
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(worker.resumed) == 20 and len(worker.parked) == 60, "the end of all replays", timeout=10)
    for key in range(50):
        assert worker.of_key(f"k{key}") == ([] if key < 20 else list(range(key, 200, 50)))
    rows = await cluster.parked(GROUP)
    assert sorted((row.key, row.next, row.state) for row in rows) == sorted((f"k{n}", n, ParkState.PARKED) for n in range(20))


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_replays_hold_up_other_keys_by_one_call_at_most(lockstep_cluster: TestCluster, order_by: str) -> None:
    """In the order of queues, one call works on a queue at a time: sixteen replays and the main flow take turns."""
    cluster, poison = lockstep_cluster, Poison({f"k{n}" for n in range(16)})
    worker = await poisoned(cluster, order_by, poison=poison, count=640, keys=32)
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: any(worker.of_key(key) for key in ("k0", "k1")), "the first replayed messages")
    before = len(worker.got)
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await producer.send_batch([Message(TOPIC, b"%d" % n, sharding_key="other") for n in range(50)])
    await cluster.until(lambda: len(worker.of_key("other")) == 50, "the messages of another key")
    if order_by == "queue":
        assert len(worker.got) - before <= 2 * 50 + 20, "every second call"
    await cluster.until(lambda: len(worker.resumed) == 16, "the end of all replays")
    for key in range(32):
        assert worker.of_key(f"k{key}") == list(range(key, 640, 32))


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_end_that_a_constant_stream_refuses_three_times_is_accepted_then(
    lockstep_cluster: TestCluster, order_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time the replay has come as far as the main flow, a pull has passed another message of the key."""
    cluster, poison = lockstep_cluster, Poison({"k3"})
    refused: list[str] = []
    sent = [103]

    async with Producer("shop", nameserver=cluster.nameserver) as producer:

        async def send_before_each_end(link: BrokerLink, header: Any, request: Send) -> Command:
            if header.pulled is not None:
                for key in ("k3", "k4"):  # the second one ends a pull that was held
                    await producer.send(Message(TOPIC, b"%d" % sent[0], sharding_key=key))
                    sent[0] += 10
                await asyncio.sleep(0.1)
            response = await request()
            if "until" in response.fields:
                refused.append(response.fields["until"])
            return response

        around_requests(monkeypatch, RequestCode.PARK_END, send_before_each_end)
        worker = await poisoned(cluster, order_by, poison=poison)
        poison.keys.clear()
        await cluster.replay(GROUP)
        await cluster.until(lambda: worker.resumed, "the end of the replay")
        assert len(refused) >= 3, "a pull is under way when the third end is refused, and may pass one more message"
        await producer.send(Message(TOPIC, b"9999", sharding_key="k3"))
        await cluster.until(lambda: worker.of_key("k3")[-1:] == [9999], "the key in the main flow")
    of_key = [*range(3, 103, 10), *range(103, sent[0], 20), 9999]
    assert worker.of_key("k3") == of_key
    assert worker.of_key("k4") == [*range(4, 104, 10), *range(113, sent[0], 20)]


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_key_that_is_dropped_in_its_replay_is_called_no_more(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster, poison = lockstep_cluster, Poison({"k3"})
    worker = await poisoned(cluster, order_by, poison=poison, work_s=1.0)
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(worker.of_key("k3")) == 3, "a part of the replay")
    await drop(cluster, "k3")
    await cluster.until(lambda: worker.resumed, "the end of the drop")
    letters = await dead_letters(cluster, 7)
    accepted = worker.of_key("k3")
    assert accepted + [each for each in letters if each not in accepted] == list(range(3, 100, 10))
    assert len(accepted) <= 4, "the call that ran when the key was dropped was the last one"
    await send(cluster, 20, 10, start=100)
    await cluster.until(lambda: len(worker.of_key("k4")) == 12, "new messages")
    await cluster.settled(GROUP)
    assert worker.of_key("k3") == [*accepted, 103, 113]


@pytest.mark.lockstep(brokers=1)
@both_orders
async def test_replay_brings_only_what_the_sql_expression_matches(lockstep_cluster: TestCluster, order_by: str) -> None:
    cluster, poison = lockstep_cluster, Poison({"k1"})
    await cluster.create_topic(TOPIC, queues=1)
    worker = Worker(cluster, poison, order_by, expression=sql("size > 5"))
    await cluster.start("a", worker.run)

    async def send_sized(start: int) -> None:
        async with Producer("shop", nameserver=cluster.nameserver) as producer:
            for n in range(start, start + 40):
                await producer.send(Message(TOPIC, b"%d" % n, sharding_key=f"k{n % 2}", properties={"size": str(n % 10)}))

    await send_sized(0)
    await cluster.until(lambda: worker.parked and len(worker.got) == 8, "every other key")
    assert worker.parked == [("k1", 7)]
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(lambda: worker.resumed, "the end of the replay")
    await send_sized(40)
    matching = [n for n in range(80) if n % 10 > 5]
    await cluster.until(lambda: len(worker.got) == len(matching), "all that matches")
    for key in range(2):
        assert worker.of_key(f"k{key}") == [n for n in matching if n % 2 == key]

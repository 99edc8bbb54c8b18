"""A group changes its contract while its members run: new members join first, and the old ones leave one after another."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from lockstep.client import (
    Client,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumerState,
    Message,
    MessageExt,
    OrderlyContext,
    Producer,
    PushConsumer,
    SubscriptionConflictError,
)
from lockstep.testing import TestCluster
from support.effort import seed_count

GROUP = "billing"


@dataclass
class Member:
    """A worker, with what its listener got."""

    cluster: TestCluster
    version: int
    subscriptions: Mapping[str, str]
    failing: str = ""
    """A tag whose messages fail at the first try."""
    got: list[MessageExt] = field(default_factory=list)
    owned: dict[str, None] = field(default_factory=dict)

    def consumer(self) -> PushConsumer:
        consumer = PushConsumer(
            GROUP, nameserver=self.cluster.nameserver, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, contract_version=self.version
        )
        for topic, expression in self.subscriptions.items():
            consumer.subscribe(topic, expression)
        return consumer

    async def run_ordered(self) -> None:
        consumer = self.consumer()

        async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
            await asyncio.sleep(0.005)
            self.got += messages

        consumer.orderly(handle)
        async with consumer:
            await consumer.wait_closed()

    async def run_concurrent(self) -> None:
        consumer = self.consumer()

        async def handle(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> ConsumeConcurrentlyStatus:
            self.got += messages
            if messages[0].tags == self.failing and not messages[0].reconsume_times:
                context.delay_level_when_next_consume = 1
                return ConsumeConcurrentlyStatus.RECONSUME_LATER
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        consumer.concurrently(handle)
        async with consumer:
            await consumer.wait_closed()

    def tags(self) -> set[str]:
        return {message.tags for message in self.got}


class Traffic:
    """Keyed messages with two tags in turn."""

    def __init__(self, cluster: TestCluster, topics: Sequence[str] = ("orders",)) -> None:
        self.cluster = cluster
        self.topics = topics
        self.running = True
        self.sent: list[tuple[str, str, bytes]] = []

    async def run(self) -> None:
        async with Producer("shop", nameserver=self.cluster.nameserver) as producer:
            number = 0
            while self.running:
                key, tags = f"key-{number % 7}", ("paid", "created")[number % 2]
                for topic in self.topics:
                    await producer.send(Message(topic, b"%d" % number, tags=tags, sharding_key=key))
                    self.sent.append((topic, tags, b"%d" % number))
                number += 1
                await asyncio.sleep(0.01)

    def bodies(self, tags: str, topic: str = "orders", start: int = 0) -> set[bytes]:
        return {body for sent, with_tags, body in self.sent[start:] if (sent, with_tags) == (topic, tags)}


async def roll(cluster: TestCluster, old: Mapping[str, Member], new: Mapping[str, Member], *, ordered: bool = True) -> None:
    """Start each new member before an old one is stopped, as a rolling update with surge does."""
    for (before, _), (name, member) in zip(old.items(), new.items(), strict=True):
        await cluster.start(name, member.run_ordered if ordered else member.run_concurrent)
        await asyncio.sleep(2)
        await cluster.stop(before)
        await asyncio.sleep(1)


@pytest.mark.lockstep(brokers=2, seeds=seed_count(1, 4))
@pytest.mark.parametrize(("before", "after"), [("paid", "paid || created"), ("*", "paid"), ("paid", "*")])
async def test_rolling_change_of_tags_skips_nothing_and_keeps_the_order(lockstep_cluster: TestCluster, before: str, after: str) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=3)
    old = {f"old-{number}": Member(cluster, 0, {"orders": before}) for number in range(3)}
    new = {f"new-{number}": Member(cluster, 1, {"orders": after}) for number in range(3)}
    traffic = Traffic(cluster)
    for name, member in old.items():
        await cluster.start(name, member.run_ordered)
    sending = asyncio.create_task(traffic.run())
    await asyncio.sleep(2)
    await roll(cluster, old, new)
    finished = len(traffic.sent)
    await asyncio.sleep(2)
    traffic.running = False
    await sending
    await cluster.settled(GROUP)

    handled = [message for member in (*old.values(), *new.values()) for message in member.got]
    bodies = [message.body for message in handled]
    assert len(bodies) == len(set(bodies)), "members that leave cleanly repeat nothing"
    assert {message.body for message in handled if message.tags == "paid"} == traffic.bodies("paid"), "both contracts match these"
    for member in (*old.values(), *new.values()):
        allowed = {"paid"} if member.subscriptions["orders"] == "paid" else {"paid", "created"}
        assert member.tags() <= allowed
        per_key: dict[str, int] = {}
        for message in member.got:
            key = message.sharding_key or ""
            assert int(message.body) > per_key.get(key, -1)
            per_key[key] = int(message.body)
    created = {message.body for message in handled if message.tags == "created"}
    if after == "paid":
        assert not traffic.bodies("created", start=finished) & created
    else:
        assert traffic.bodies("created", start=finished) <= created, "all members that are left subscribe to them"


@pytest.mark.lockstep(brokers=2)
async def test_added_topic_is_consumed_by_new_members_as_soon_as_the_first_one_runs(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    for topic in ("orders", "refunds"):
        await cluster.create_topic(topic, queues=3)
    old = {f"old-{number}": Member(cluster, 0, {"orders": "*"}) for number in range(2)}
    new = {f"new-{number}": Member(cluster, 1, {"orders": "*", "refunds": "*"}) for number in range(2)}
    traffic = Traffic(cluster, ("orders", "refunds"))
    for name, member in old.items():
        await cluster.start(name, member.run_ordered)
    sending = asyncio.create_task(traffic.run())
    await asyncio.sleep(1)
    await cluster.start("new-0", new["new-0"].run_ordered)
    everywhere = traffic.bodies("paid", "refunds")
    await cluster.until(lambda: everywhere <= {each.body for each in new["new-0"].got if each.topic == "refunds"})
    assert {each.topic for member in old.values() for each in member.got} == {"orders"}
    await cluster.stop("old-0")
    await cluster.start("new-1", new["new-1"].run_ordered)
    await cluster.stop("old-1")
    traffic.running = False
    await sending
    await cluster.settled(GROUP)
    handled = {(each.topic, each.body) for member in (*old.values(), *new.values()) for each in member.got}
    assert handled == {(topic, body) for topic, _, body in traffic.sent}


@pytest.mark.lockstep(brokers=2, seeds=seed_count(1, 3))
async def test_retries_reach_only_members_that_subscribe_to_their_tags(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=3)
    old = {f"old-{number}": Member(cluster, 0, {"orders": "paid"}) for number in range(2)}
    new = {f"new-{number}": Member(cluster, 1, {"orders": "paid || created"}, failing="created") for number in range(2)}
    traffic = Traffic(cluster)
    for name, member in old.items():
        await cluster.start(name, member.run_concurrent)
    sending = asyncio.create_task(traffic.run())
    await asyncio.sleep(2)
    await roll(cluster, old, new, ordered=False)
    traffic.running = False
    await sending
    await cluster.settled(GROUP)
    await cluster.until(lambda: len([each for member in new.values() for each in member.got if each.reconsume_times]) > 50)
    assert {tags for member in old.values() for tags in member.tags()} == {"paid"}


async def test_older_contract_is_refused_when_the_change_is_complete(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders")
    new = Member(cluster, 2, {"orders": "*"})
    await cluster.start("new", new.run_ordered)
    await asyncio.sleep(1)
    with pytest.raises(SubscriptionConflictError, match=r"Version 1 is older than 2: announce a change by contract_version=3, or go back"):
        await Member(cluster, 1, {"orders": "paid"}).run_ordered()


@pytest.mark.lockstep(brokers=2, seeds=seed_count(1, 4))
@pytest.mark.parametrize(("old", "new"), [(3, 1), (1, 3)])
async def test_members_of_both_versions_outlive_a_cut_of_one_broker(lockstep_cluster: TestCluster, old: int, new: int) -> None:
    """Every session of that broker ends, and members of either version come back first."""
    cluster = lockstep_cluster
    await cluster.create_topic("orders", queues=6)
    for number in range(old):
        await cluster.start(f"old-{number}", Member(cluster, 0, {"orders": "paid"}).run_ordered)
    await asyncio.sleep(2)
    for number in range(new):
        await cluster.start(f"new-{number}", Member(cluster, 1, {"orders": "paid || created"}).run_ordered)
    await asyncio.sleep(3)
    cut = cluster.brokers[0]
    cluster.partition(cut, list(cluster.workers))
    cluster.reset_connections(cut, list(cluster.workers))
    await asyncio.sleep(25)
    cluster.heal()
    await asyncio.sleep(30)
    assert {cluster.state(name) for name in cluster.workers} == {"running"}


async def test_refusal_of_one_group_does_not_stop_another_group_of_the_client(lockstep_cluster: TestCluster) -> None:
    """Its name is a word of the command that the refusal proposes."""
    cluster = lockstep_cluster
    await cluster.create_topic("orders")
    await cluster.start("new", Member(cluster, 2, {"orders": "*"}).run_ordered)
    await asyncio.sleep(1)

    async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> None: ...

    client = Client(cluster.nameserver)
    first, second = PushConsumer("update", client=client), PushConsumer(GROUP, client=client, contract_version=1)
    for consumer, expression in ((first, "*"), (second, "paid")):
        consumer.subscribe("orders", expression)
        consumer.orderly(handle)
    async with first:
        with pytest.raises(SubscriptionConflictError):
            await second.start()
        await asyncio.sleep(2)
        assert first.state is ConsumerState.RUNNING

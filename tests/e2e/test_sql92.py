"""Subscriptions by SQL92 with real servers: each kind of consumer, the contract, and a broker that does not know them."""

import asyncio
from collections.abc import Sequence

import pytest

from lockstep.client import (
    ConcurrentlyContext,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    OrderlyContext,
    Producer,
    PullConsumer,
    PushConsumer,
    SqlError,
    SubscriptionConflictError,
    sql,
)
from support.cluster import Cluster

pytestmark = pytest.mark.e2e

EXPENSIVE = "amount > 100 AND region IN ('eu', 'uk')"
ORDERS = [(str(amount), region) for amount in (50, 150, 1_000) for region in ("eu", "us", "uk")]
WANTED = sorted(f"{amount} {region}" for amount, region in ORDERS if int(amount) > 100 and region != "us")


async def produce(cluster: Cluster) -> None:
    async with Producer("shop", nameserver=cluster.nameservers) as producer:
        for amount, region in ORDERS:
            properties = {"amount": amount, "region": region}
            await producer.send(Message("orders", f"{amount} {region}".encode(), properties=properties, sharding_key=region))
        await producer.send(Message("orders", b"without properties"))


async def test_every_kind_of_consumer_is_given_the_messages_that_meet_its_condition(cluster: Cluster) -> None:
    await cluster.servers()
    await produce(cluster)
    seen: dict[str, list[str]] = {"ordered": [], "concurrent": [], "pull": []}
    ordered = PushConsumer("ordered", nameserver=cluster.nameservers).subscribe("orders", sql(EXPENSIVE))
    concurrent = PushConsumer("concurrent", nameserver=cluster.nameservers).subscribe("orders", sql(EXPENSIVE))

    @ordered.orderly
    async def in_order(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        seen["ordered"] += [message.body.decode() for message in messages]
        return ConsumeOrderlyStatus.SUCCESS

    @concurrent.concurrently
    async def at_once(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
        seen["concurrent"] += [message.body.decode() for message in messages]

    async with ordered, concurrent, PullConsumer("pull", nameserver=cluster.nameservers).subscribe("orders", sql(EXPENSIVE)) as pull:

        async def poll() -> None:
            async for message in pull:
                seen["pull"].append(message.body.decode())

        polling = asyncio.create_task(poll())
        for group in seen:
            await cluster.until(f"{group} has all", lambda group=group: len(seen[group]) >= len(WANTED))  # type: ignore[misc]
            await cluster.until_lag(0, group)
        polling.cancel()
        shown = (await cluster.group("ordered"))["members"]
        assert [member["subscription"] for member in shown] == [{"orders": f"SQL92 {EXPENSIVE}"}]
    assert {group: sorted(found) for group, found in seen.items()} == dict.fromkeys(seen, WANTED)


async def test_members_agree_about_the_condition_and_not_about_its_spelling(cluster: Cluster) -> None:
    await cluster.servers()
    first = PushConsumer("billing", nameserver=cluster.nameservers).subscribe("orders", sql("amount>100 and region='eu'"))
    same = PushConsumer("billing", nameserver=cluster.nameservers).subscribe("orders", sql("amount > 100 AND region = 'eu'"))
    other = PushConsumer("billing", nameserver=cluster.nameservers).subscribe("orders", sql("amount > 200"))
    tags = PushConsumer("billing", nameserver=cluster.nameservers).subscribe("orders", "paid")
    for consumer in (first, same, other, tags):
        consumer.orderly(handle)
    async with first, same:
        with pytest.raises(SubscriptionConflictError, match=r"SQL92 amount > 100 AND region = 'eu'. here, .SQL92 amount > 200. asked for"):
            await other.start()
        with pytest.raises(SubscriptionConflictError, match="here, 'paid' asked for"):
            await tags.start()


async def handle(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
    return ConsumeOrderlyStatus.SUCCESS


def test_condition_that_can_not_be_used_is_refused_before_the_start() -> None:
    with pytest.raises(SqlError, match=r"amount >> 100\n {8}\^ expected a property"):
        sql("amount >> 100")

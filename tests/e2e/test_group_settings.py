"""lockstep group create | update: what is set holds at every broker, for running members, over restarts."""

import json

import pytest

from support.cluster import Cluster

pytestmark = pytest.mark.e2e


async def test_a_group_is_stopped_and_started_by_its_settings_while_its_members_run(cluster: Cluster) -> None:
    await cluster.servers(queues=2)
    await cluster.consumer("consumer-1")
    await cluster.producer("producer", "--keys", "20", "--pause-ms", "20")
    await cluster.until_handled(100)
    assert "may NOT consume, at broker-a, broker-b" in await cluster.command("group", "update", "billing", "--no-consume")
    settings = (await cluster.group())["settings"]
    assert settings == {"subscription_policy": "strict", "consume": False}
    handled = len(cluster.deeds())
    lag = (await cluster.group())["lag"]
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    await cluster.until("more is stored", lambda: len(cluster.acks()) > handled + lag + 200)
    quiet = len(cluster.deeds())
    await cluster.until("still more is stored", lambda: len(cluster.acks()) > handled + lag + 400)
    assert len(cluster.deeds()) == quiet, "nothing is given out, also after a restart"
    await cluster.command("group", "update", "billing", "--consume")
    await cluster.finish_producer()
    await cluster.prove("consumer-1")


async def test_two_subscriptions_in_one_group_are_refused_or_the_last_decides(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=("broker-a",))
    made = json.loads(await cluster.command("group", "create", "billing", "--subscription-policy", "classic", "--json"))
    settings = {"subscription_policy": "classic", "consume": True}
    assert made == {"group": "billing", "created": True, **settings, "brokers": ["broker-a"], "failed": {}}
    assert "is set up already" in await cluster.command("group", "create", "billing", code=1)
    assert "use `lockstep group create`" in await cluster.command("group", "update", "nobody", "--consume", code=1)
    assert "nothing to change" in await cluster.command("group", "update", "billing", code=2)
    await cluster.consumer("consumer-1", "--tags", "even")
    await cluster.until_held(1, "consumer-1")
    await cluster.consumer("consumer-2", "--tags", "odd")
    shown = await cluster.command("group", "show", "billing")
    assert "subscription policy classic, may consume; subscriptions replaced: 1" in shown
    assert "who came last decides for all members: orders: odd." in shown
    made = await cluster.group()
    assert [member["subscription"] for member in made["members"]] == [{"orders": "even"}, {"orders": "odd"}]
    assert made["subscription"] == {"orders": "odd"}
    (told,) = cluster.heard("broker-a", "subscription.overruled")
    assert (told["was"], told["now"]) == ("orders: even", "orders: odd")

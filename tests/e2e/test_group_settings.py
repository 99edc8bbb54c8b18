"""lockstep group create | update | delete: the settings apply at every broker, to running members, and after restarts."""

import json

import pytest

from support.cluster import Cluster

pytestmark = pytest.mark.e2e


async def test_group_settings_stop_and_restart_consumption_of_running_members(cluster: Cluster) -> None:
    await cluster.servers(queues=2)
    await cluster.consumer("consumer-1")
    await cluster.producer("producer", "--keys", "20", "--pause-ms", "20")
    await cluster.until_handled(100)
    assert "may NOT consume, at broker-a, broker-b" in await cluster.command("group", "update", "billing", "--no-consume")
    settings = (await cluster.group())["settings"]
    assert settings == {"subscription_policy": "strict", "consume": False}
    handled = len(cluster.handled_events())
    lag = (await cluster.group())["lag"]
    await cluster.kill("broker-a")
    await cluster.restart("broker-a")
    await cluster.until("more is stored", lambda: len(cluster.acks()) > handled + lag + 200)
    quiet = len(cluster.handled_events())
    await cluster.until("still more is stored", lambda: len(cluster.acks()) > handled + lag + 400)
    assert len(cluster.handled_events()) == quiet, "nothing is given out, also after a restart"
    await cluster.command("group", "update", "billing", "--consume")
    await cluster.finish_producer()
    await cluster.prove("consumer-1")


async def test_two_subscriptions_in_a_group_are_rejected_or_the_last_one_decides(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=("broker-a",))
    made = json.loads(await cluster.command("group", "create", "billing", "--subscription-policy", "classic", "--json"))
    settings = {"subscription_policy": "classic", "consume": True}
    assert made == {"group": "billing", "created": True, **settings, "brokers": ["broker-a"], "failed": {}}
    assert "is configured already" in await cluster.command("group", "create", "billing", code=1)
    assert "use `lockstep group create`" in await cluster.command("group", "update", "nobody", "--consume", code=1)
    assert "nothing to change" in await cluster.command("group", "update", "billing", code=2)
    await cluster.consumer("consumer-1", "--tags", "even")
    await cluster.until_held(1, "consumer-1")
    await cluster.consumer("consumer-2", "--tags", "odd")
    shown = await cluster.command("group", "show", "billing")
    assert "subscription policy classic, may consume; subscriptions replaced: 1" in shown
    assert "the member that registered last decides for all members: orders: odd." in shown
    made = await cluster.group()
    assert [member["subscription"] for member in made["members"]] == [{"orders": "even"}, {"orders": "odd"}]
    assert made["subscription"] == {"orders": "odd"}
    (reported,) = cluster.reported_events("broker-a", "subscription.overruled")
    assert (reported["was"], reported["now"]) == ("orders: even", "orders: odd")


async def test_group_without_members_is_deleted_durably_at_every_broker(cluster: Cluster) -> None:
    await cluster.servers(queues=1)
    await cluster.command("group", "create", "billing")
    await cluster.consumer("consumer-1")
    await cluster.until_held(2, "consumer-1")
    refused = await cluster.command("group", "delete", "billing", code=1)
    assert "nothing was deleted: group billing has 1 members" in refused
    assert "Stop them, and run `lockstep group delete billing` again" in refused
    await cluster.stop("consumer-1")
    await cluster.kill("broker-b")
    missed = await cluster.command("group", "delete", "billing", code=1)
    assert "not deleted at all brokers: broker broker-b" in missed
    await cluster.restart("broker-b")
    assert "is deleted at broker-a, broker-b" in await cluster.command("group", "delete", "billing")
    for broker in ("broker-a", "broker-b"):
        await cluster.kill(broker)
        await cluster.restart(broker)
    assert json.loads(await cluster.command("group", "list", "--json")) == {"groups": [], "failed": {}}
    assert "no broker knows group billing" in await cluster.command("group", "delete", "billing", code=1)

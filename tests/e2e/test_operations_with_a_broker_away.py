"""Operators' commands while one broker is down: unknown is not reported as healthy, and the known part is printed."""

import json

import pytest

from support.cluster import Cluster

pytestmark = pytest.mark.e2e


async def test_topic_is_not_altered_while_an_ordered_groups_progress_at_a_broker_is_unknown(cluster: Cluster) -> None:
    """The group has no lag at broker-a; its progress at broker-b, which is down, is unknown."""
    await cluster.servers(queues=1)
    await cluster.consumer("consumer-1")
    await cluster.until_held(2, "consumer-1")
    await cluster.stop("consumer-1")
    await cluster.producer("producer", "--keys", "20", "--steps", "2")
    await cluster.until("both brokers have some", lambda: len(cluster.acks()) == 40)
    assert len(cluster.acknowledged_queues()) == 2
    await cluster.command("group", "reset-offset", "billing", "--to", "end", "--queue", "broker-a:0")
    await cluster.kill("broker-b")
    error = await cluster.command("topic", "alter", "orders", "--queues", "2", code=1)
    assert "nothing was changed" in error
    assert "broker-b" in error
    assert "--force" in error
    await cluster.command("topic", "alter", "orders", "--queues", "2", "--force")


async def test_dead_letters_of_reachable_brokers_are_listed_and_the_missing_one_is_named(cluster: Cluster) -> None:
    await cluster.servers(queues=1)
    file = str(cluster.folder / "mailing.lines")
    options = ["--fail", "m", "--fail-times", "1", "--max-reconsume-times", "0", "--file", file]
    await cluster.start("mailing", ["-m", "support.worker_concurrent", "--nameserver", cluster.nameservers, *options], "worker.ready")
    for number in range(8):
        await cluster.command("send", "orders", f"m{number}", "--sharding-key", f"k{number}")
    while sum(group["stored"] for group in json.loads(await cluster.command("dlq", "ls", "--json"))["groups"]) < 8:
        pass
    letters = json.loads(await cluster.command("dlq", "ls", "mailing", "--json"))["dead_letters"]
    at_a = {letter["body"] for letter in letters if letter["broker"] == "broker-a"}
    assert 0 < len(at_a) < 8
    await cluster.kill("broker-b")
    shown = await cluster.run_command("dlq", "ls", "mailing", "--json", code=1)
    assert {letter["body"] for letter in json.loads(shown)["dead_letters"]} == at_a
    assert "broker-b" in await cluster.command("dlq", "ls", "mailing", code=1)


async def test_group_change_names_the_broker_that_was_not_reached(cluster: Cluster) -> None:
    await cluster.servers(queues=1)
    await cluster.command("group", "create", "billing")
    await cluster.kill("broker-b")
    error = await cluster.command("group", "update", "billing", "--no-consume", code=1)
    assert "broker-b" in error
    assert "lockstep group update" in error


async def test_deletions_are_not_forgotten_while_a_broker_is_down(cluster: Cluster) -> None:
    await cluster.servers(queues=1)
    await cluster.command("topic", "create", "once")
    await cluster.command("topic", "delete", "once")
    await cluster.kill("broker-b")
    error = await cluster.command("topic", "forget-deleted", code=1)
    assert "nothing was forgotten: broker broker-b is not registered" in error
    assert "--all --force" in error
    error = await cluster.command("topic", "forget-deleted", "--force", code=2)
    assert "nothing was forgotten: --force requires --all" in error
    assert json.loads(await cluster.command("topic", "forget-deleted", "--all", "--force", "--json")) == {"forgotten": 1, "remembered": 0}
    assert json.loads(await cluster.command("topic", "forget-deleted", "--all", "--force", "--json")) == {"forgotten": 0, "remembered": 0}
    await cluster.command("topic", "create", "once")

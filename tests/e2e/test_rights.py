"""A cluster in which each process has a user with just the rights that it needs."""

import asyncio
from pathlib import Path

import pytest

from support.cluster import Cluster
from support.logins import PASSWORD, write_users

pytestmark = pytest.mark.e2e

RULES = {
    "broker": 'brokers = ["broker-*"]',
    "shop": 'role = "producer"\ntopics = ["orders"]',
    "billing": 'role = "consumer"\ntopics = ["orders"]\ngroups = ["billing"]',
    "twin": 'role = "consumer"\ntopics = ["orders"]\ngroups = ["billing"]',
    "ops": 'role = "operator"',
}


def write_rules(path: Path, **rules: str) -> str:
    return write_users(path, {name: [PASSWORD] for name in RULES}, {**RULES, **rules})


@pytest.fixture
def closed(cluster: Cluster, tmp_path: Path) -> Cluster:
    """Return a cluster in which everybody has the same password."""
    (tmp_path / "password").write_text(PASSWORD)
    cluster.server_options = ("--security", write_rules(tmp_path / "users.toml"))
    cluster.user, cluster.parameters = "broker", f"password_file={tmp_path / 'password'}"
    return cluster


async def started(closed: Cluster) -> None:
    """Start the servers and create the topic."""
    await closed.nameserver()
    await asyncio.gather(closed.broker("broker-a"), closed.broker("broker-b"))
    closed.user = "ops"
    await closed.command("topic", "create", "orders", "--queues", "4")


async def test_each_works_with_the_rights_of_its_role_and_loses_them_while_it_runs(closed: Cluster, tmp_path: Path) -> None:
    await started(closed)
    closed.user = "billing"
    first = await closed.consumer("consumer-1")
    closed.user = "twin"
    await closed.consumer("consumer-2")
    await closed.until_held(8, "consumer-1", "consumer-2")
    closed.user = "shop"
    await closed.producer("producer", "--keys", "50", "--steps", "1000000")
    await closed.until_handled(200)
    write_rules(tmp_path / "users.toml", billing='role = "consumer"\ntopics = ["invoices"]\ngroups = ["billing"]')
    refused = await first.wait_for_event("heartbeat.refused", timeout_s=60)
    assert "user billing may not Sub topic:orders" in refused["error"]
    await closed.until_held(8, "consumer-2")
    await closed.until_handled_more(200)
    write_rules(tmp_path / "users.toml")
    await closed.until_held(8, "consumer-1", "consumer-2")
    await closed.finish_producer()
    await closed.prove("consumer-1", "consumer-2")


async def test_commands_say_what_their_user_may_not(closed: Cluster) -> None:
    await started(closed)
    for user, command, code, words in [
        ("shop", ("send", "orders", "hello"), 0, "SEND_OK"),
        ("shop", ("tail", "orders", "--from-start"), 1, "NO_PERMISSION: user shop may not Sub or Get topic:orders (users file "),
        ("shop", ("topic", "show", "orders"), 0, "8 queues"),
        ("shop", ("topic", "delete", "orders", "--force"), 1, "may not Delete topic:orders"),
        ("billing", ("send", "orders", "hello"), 1, "may not Pub topic:orders"),
        ("billing", ("tail", "orders", "--from-start", "--no-follow"), 0, "hello"),
        ("billing", ("topic", "create", "orders-2"), 1, "may not Create topic:orders-2"),
        ("ops", ("topic", "create", "other"), 0, "created"),
        ("billing", ("topic", "show", "other"), 1, "no topic 'other'"),
        ("billing", ("topic", "list"), 0, "orders"),
        ("ops", ("broker", "config", "set", "retention_hours=1", "--broker", "broker-a"), 1, "may not do this: a super user may"),
    ]:
        closed.user = user
        ended, out, error = await closed.started_command(*command)
        said = " ".join((out + error).split())
        assert (ended, words in said) == (code, True), (user, command, said)

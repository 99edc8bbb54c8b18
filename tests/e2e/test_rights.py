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
    handled = len(closed.handled_events())
    await closed.until_handled(handled + 200)
    write_rules(tmp_path / "users.toml")
    await closed.until_held(8, "consumer-1", "consumer-2")
    await closed.finish_producer()
    await closed.prove("consumer-1", "consumer-2")

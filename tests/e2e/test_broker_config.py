"""lockstep broker config get | set with real brokers: changes are in force at once, and end with the process."""

import json
from typing import Any

import pytest

from support.cluster import Cluster

pytestmark = pytest.mark.e2e


async def setting(cluster: Cluster, name: str) -> dict[str, dict[str, Any]]:
    """Return broker → the setting."""
    found = json.loads(await cluster.command("broker", "config", "get", name, "--json"))
    assert found["failed"] == {}
    return {broker: only for broker, (only,) in found["brokers"].items()}


async def test_changed_settings_are_in_force_and_logged_until_the_broker_ends(cluster: Cluster) -> None:
    await cluster.servers("--retention-hours", "48", queues=1)
    changed = await cluster.command("broker", "config", "set", "--broker", "broker-a", "retention_hours=24", "topics_max=1")
    assert "broker-a: retention_hours: 48 → 24; a restart brings back 48 (flag --retention-hours)" in changed
    found = await setting(cluster, "retention_hours")
    assert {broker: (each["value"], each["origin"]) for broker, each in found.items()} == {
        "broker-a": (24, "set at run time"),
        "broker-b": (48, "flag --retention-hours"),
    }
    assert "topics_max allows 1" in await cluster.command("topic", "create", "more", code=1)
    await cluster.until("both changes are logged", lambda: len(cluster.reported_events("broker-a", "setting.changed")) == 2)
    events = cluster.reported_events("broker-a", "setting.changed")
    assert [(each["name"], each["before"], each["after"]) for each in events] == [("retention_hours", 48, 24), ("topics_max", 16_384, 1)]
    await cluster.stop("broker-a")
    await cluster.restart("broker-a")
    assert {each["value"] for each in (await setting(cluster, "retention_hours")).values()} == {48}


async def test_log_level_is_changed_at_all_brokers(cluster: Cluster) -> None:
    await cluster.servers(queues=1)
    await cluster.command("broker", "config", "set", "--all", "log_level=debug")
    assert not cluster.reported_events("broker-a", "connection.opened")
    await cluster.command("group", "list")
    for broker in ("broker-a", "broker-b"):
        await cluster.processes[broker].wait_for_event("connection.opened")
    assert {each["value"] for each in (await setting(cluster, "log_level")).values()} == {"debug"}


async def test_settings_that_need_a_restart_and_unknown_ones_are_refused_with_the_next_step(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=("broker-a",))
    refused = await cluster.command("broker", "config", "set", "--all", "retention_hours=24", "flush=sync", code=1)
    assert "nothing was changed: flush needs a restart: start the broker with --flush sync" in refused
    refused = await cluster.command("broker", "config", "set", "--all", "retention_hours=24", "retention_hour=24", code=1)
    assert "unknown setting 'retention_hour'; did you mean 'retention_hours'?" in refused
    assert (await setting(cluster, "retention_hours"))["broker-a"]["value"] == 72

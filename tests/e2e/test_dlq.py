"""lockstep dlq: dead letters are listed with their reason, and replayed once each."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.cluster import Cluster

pytestmark = pytest.mark.e2e

BAD, GOOD = ("bad-1", "bad-2", "bad-3"), ("good-1", "good-2")


async def start_failing_group(cluster: Cluster) -> None:
    """Start a concurrent group that gives up at the first failure of each message beginning with `bad`."""
    await cluster.servers(queues=1)
    file = str(cluster.folder / "mailing.calls")
    options = ["--fail", "bad", "--fail-times", "1", "--max-reconsume-times", "0"]
    command = ["-m", "support.worker_concurrent", "--nameserver", cluster.nameservers, "--file", file, *options]
    await cluster.start("mailing", command, "worker.ready")
    for body in (*BAD, *GOOD):
        await cluster.command("send", "orders", body, "--key", body, "--tag", "mail", "--property", "tenant=a", "--sharding-key", "k")


def calls(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Return (body, retries, result) of each message of each call."""
    path = Path(cluster.folder / "mailing.calls")
    lines = path.read_text().splitlines() if path.exists() else []
    return [(body, retries, result) for body, retries, result, _ in map(str.split, lines)]


async def dlq(cluster: Cluster, *arguments: str) -> Any:
    return json.loads(await cluster.command("dlq", *arguments, "--json"))


async def wait_for_dead_letters(cluster: Cluster, count: int) -> list[dict[str, Any]]:
    """Return the group's dead letters when there are `count` of them."""
    await cluster.until("every message was called", lambda: {body for body, _, _ in calls(cluster)} == {*BAD, *GOOD})
    while True:
        shown = await dlq(cluster, "ls")
        if sum(group["stored"] for group in shown["groups"]) >= count:
            found: list[dict[str, Any]] = (await dlq(cluster, "ls", "mailing"))["dead_letters"]
            return found


async def test_dead_letters_are_listed_with_their_origin_and_reason(cluster: Cluster) -> None:
    await start_failing_group(cluster)
    found = await wait_for_dead_letters(cluster, 3)
    assert sorted(letter["body"] for letter in found) == sorted(BAD)
    for letter in found:
        assert (letter["origin_topic"], letter["tags"], letter["replayed"]) == ("orders", "mail", False)
        assert letter["reason"] == "the listener returned RECONSUME_LATER"
        assert letter["properties"]["tenant"] == "a"
    one = await dlq(cluster, "show", "mailing", found[0]["offset_message_id"])
    assert one["body"] == found[0]["body"]
    for other_id in (found[0]["message_id"], found[0]["origin_message_id"]):
        assert (await dlq(cluster, "show", "mailing", other_id))["body"] == found[0]["body"]
    assert "has no dead letter" in await cluster.command("dlq", "show", "mailing", "0" * 32, code=1)
    assert "group nobody has no dead letters" in await cluster.command("dlq", "ls", "nobody", code=1)


async def test_replay_redelivers_to_the_group_once_and_is_remembered(cluster: Cluster) -> None:
    await start_failing_group(cluster)
    await wait_for_dead_letters(cluster, 3)
    would = {"group": "mailing", "done": False, "to": "retry", "count": 3, "left": [], "failed": {}}
    assert await dlq(cluster, "replay", "mailing", "--dry-run") == would
    assert "3 dead letters of mailing were sent to %RETRY%mailing" in await cluster.command("dlq", "replay", "mailing")
    await cluster.until("each was handled", lambda: {body for body, _, result in calls(cluster) if result == "done"} == {*BAD, *GOOD})
    assert (await dlq(cluster, "replay", "mailing"))["count"] == 0, "each once"
    assert (await dlq(cluster, "ls"))["groups"] == [{"group": "mailing", "stored": 3, "not_replayed": 0}]
    assert all(letter["replayed"] for letter in (await dlq(cluster, "ls", "mailing"))["dead_letters"])
    await cluster.kill("broker-a", "broker-b")
    await cluster.restart("broker-a", "broker-b")
    assert (await dlq(cluster, "ls"))["groups"][0]["not_replayed"] == 0, "also after a restart"
    assert len([1 for body, _, result in calls(cluster) if body in BAD and result == "done"]) == 3


async def test_replay_to_the_topic_sends_the_original_message(cluster: Cluster) -> None:
    await start_failing_group(cluster)
    await wait_for_dead_letters(cluster, 3)
    before = {(queue["broker"], queue["queue_id"]): queue["max_offset"] for queue in await topic(cluster)}
    assert (await dlq(cluster, "replay", "mailing", "--to", "topic"))["count"] == 3
    grown = {key: end - before[key] for key, end in ((((q["broker"], q["queue_id"])), q["max_offset"]) for q in await topic(cluster))}
    assert sorted(grown.values()) == [0, 3], "by its sharding key, where it came from"
    await cluster.until("they fail anew", lambda: len([1 for body, retries, _ in calls(cluster) if body in BAD and retries == "0"]) == 6)


async def topic(cluster: Cluster) -> list[dict[str, Any]]:
    queues: list[dict[str, Any]] = json.loads(await cluster.command("topic", "show", "orders", "--json"))["queues"]
    return queues


async def test_replay_to_a_group_without_members_requires_the_target_option(cluster: Cluster) -> None:
    await start_failing_group(cluster)
    await wait_for_dead_letters(cluster, 3)
    await cluster.stop("mailing")
    assert "use --to retry if it is concurrent, else --to topic" in await cluster.command("dlq", "replay", "mailing", code=1)
    assert "is not one of 'retry', 'topic'" in await cluster.command("dlq", "replay", "mailing", "--to", "moon", code=2)
    assert (await dlq(cluster, "replay", "mailing", "--to", "retry"))["count"] == 3

"""Every message id leads to its own message or to an error that says how to find it, even if brokers advertise names."""

import json

import pytest

from lockstep.client import Message, MessageQueue, Producer
from support.cluster import QUICK, Cluster

pytestmark = pytest.mark.e2e


async def test_message_show_distinguishes_messages_at_equal_offsets_of_two_brokers(cluster: Cluster) -> None:
    await cluster.nameserver()
    for name in ("broker-a", "broker-b"):
        await cluster.broker(name, *QUICK, "--advertise", "localhost:0")
    await cluster.command("topic", "create", "orders", "--queues", "1")
    ids = {}
    async with Producer("test", nameserver=cluster.nameservers) as producer:
        for name in ("broker-a", "broker-b"):
            sent = await producer.send(Message("orders", f"in {name}".encode()), queue=MessageQueue("orders", name, 0))
            ids[name] = sent.offset_message_id
    assert len(set(ids.values())) == 2
    assert all(int(id_[:2], 16) >= 240 for id_ in ids.values())
    for name, message_id in ids.items():
        shown = json.loads(await cluster.command("message", "show", message_id, "--json"))
        assert (shown["broker"], shown["body"], shown["offset_message_id"]) == (name, f"in {name}", message_id)
    a, b = ids.values()
    foreign = a[:16] + f"{int(b[16:], 16) + 1:016X}"
    assert "the store with the id" in await cluster.command("message", "show", foreign, code=1)
    assert "expected 32 hex digits" in await cluster.command("message", "show", "no-id", code=2)


async def test_message_is_found_by_key_by_its_producers_id_and_by_time(cluster: Cluster) -> None:
    await cluster.servers(queues=2)
    for body in ("before", "sought", "after"):
        await cluster.command("send", "orders", body, "--key", f"{body}-7", "--sharding-key", "k", "--tag", body)
    sent = json.loads(await cluster.command("send", "orders", "last", "--key", "sought-7", "--json"))

    async def find(*options: str) -> list[str]:
        found = json.loads(await cluster.command("message", "find", "--json", *options))
        assert (found["complete"], found["failed"]) == (True, {})
        return [each["body"] for each in found["messages"]]

    assert await find("--key", "sought-7") == ["last", "sought"]
    assert await find("--key", "sought") == []
    assert await find("--key", "sought-7", "--limit", "1", "--topic", "orders", "--since", "1h") == ["last"]
    assert await find("--topic", "orders", "--since", "1h", "--sharding-key", "k", "--body", "e") == ["after", "before"]
    assert await find("--topic", "orders", "--tag", "sought || after") == ["after", "sought"]
    assert await find("--id", sent["message_id"]) == ["last"]
    shown = json.loads(await cluster.command("message", "show", sent["message_id"], "--json"))
    assert (shown["body"], shown["offset_message_id"]) == ("last", sent["offset_message_id"])
    assert json.loads(await cluster.command("message", "show", sent["offset_message_id"], "--json")) == shown
    assert "several words" in await cluster.command("message", "find", "--key", "a b", code=2)


async def test_tail_begins_and_ends_where_it_is_told(cluster: Cluster) -> None:
    await cluster.servers(queues=2)
    sent = [
        json.loads(await cluster.command("send", "orders", f"body {n}", "--key", f"order-{n}", "--sharding-key", "k", "--json"))
        for n in range(3)
    ]
    queue = f"{sent[0]['broker']}:{sent[0]['queue_id']}"

    async def tail(*options: str) -> list[str]:
        lines = (await cluster.command("tail", "orders", "--no-follow", "--json", *options)).splitlines()
        return [json.loads(line)["body"] for line in lines]

    assert await tail() == []
    assert await tail("--from-start") == ["body 0", "body 1", "body 2"]
    assert await tail("--from-start", "--key", "order-1") == ["body 1"]
    assert await tail("--queue", queue, "--offset", str(sent[1]["queue_offset"])) == ["body 1", "body 2"]
    assert await tail("--queue", queue, "--from-start", "--count", "1") == ["body 0"]
    other = f"{sent[0]['broker']}:{1 - sent[0]['queue_id']}"
    assert await tail("--queue", other, "--from-start") == []
    stored = json.loads(await cluster.command("message", "show", sent[2]["offset_message_id"], "--json"))["stored_at"]
    assert await tail("--since", stored) == ["body 2"]
    assert await tail("--since", "1h") == ["body 0", "body 1", "body 2"]
    assert "orders has no queue nowhere:0" in await cluster.command("tail", "orders", "--queue", "nowhere:0", code=1)

"""Every message id leads to its own message or to an error, even if brokers advertise names."""

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

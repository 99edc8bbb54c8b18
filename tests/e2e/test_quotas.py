"""A user at its limits, against real servers: what is refused costs time, and neither messages nor queues."""

import asyncio
import json
import signal
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from lockstep.client import Client, ConsumeOrderlyStatus, Message, MessageExt, OrderlyContext, Producer, PushConsumer
from support.cluster import Cluster, Report
from support.logins import PASSWORD, write_users

pytestmark = pytest.mark.e2e

RULES = {
    "broker": 'brokers = ["broker-*"]',
    "ops": 'role = "operator"',
    "shop": 'role = "consumer"\ntopics = ["orders"]\ngroups = ["billing"]\nallow = ["Pub topic:orders"]\n'
    'limits = { bytes_in_per_s = "20KiB", bytes_out_per_s = "20KiB", requests_per_s = 40 }',
}
KEYS, STEPS, BODY_BYTES = 8, 5, 4_000
"""160 KB, eight times what the user may send in a second: four session timeouts of the brokers."""


async def test_producer_at_its_limit_keeps_the_queues_of_the_consumer_on_its_connection(
    cluster: Cluster, tmp_path: Path, report: Report
) -> None:
    (tmp_path / "password").write_text(PASSWORD)
    audit = tmp_path / "audit"
    users = write_users(tmp_path / "users.toml", {name: [PASSWORD] for name in RULES}, RULES)
    cluster.server_options = ("--security", users, "--audit", str(audit))
    cluster.user, cluster.parameters = "broker", f"password_file={tmp_path / 'password'}"
    await cluster.nameserver()
    await cluster.broker("broker-a")
    cluster.user = "ops"
    await cluster.command("topic", "create", "orders", "--queues", "4")
    client = Client(cluster.addresses["nameserver"], user="shop", password=PASSWORD)
    handled, events = defaultdict[str, list[int]](list), list[str]()
    consumer = PushConsumer("billing", client=client).subscribe("orders")
    consumer.on_event(lambda event: events.append(type(event).__name__))

    @consumer.orderly
    async def listen(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        for message in messages:
            handled[message.body[:1].decode()].append(int(message.body[1:3]))
        return ConsumeOrderlyStatus.SUCCESS

    async def send(producer: Producer, key: str) -> None:
        for step in range(STEPS):
            await producer.send(Message("orders", f"{key}{step:02}".encode().ljust(BODY_BYTES), sharding_key=key))

    async with consumer, Producer("shop", client=client, send_timeout_ms=120_000) as producer:
        await cluster.until("the consumer has all queues", lambda: events.count("QueueAssigned") == 4)
        epochs = await cluster.epochs()
        audit.rename(tmp_path / "audit.1")
        cluster.signal(signal.SIGHUP, "broker-a", "nameserver")
        began_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(send(producer, str(key)) for key in range(KEYS)))
        report(f"{KEYS * STEPS} sends of {BODY_BYTES} bytes took {asyncio.get_running_loop().time() - began_s:.1f} s at 20 KiB/s")
        await cluster.until("all messages are handled", lambda: sum(map(len, handled.values())) == KEYS * STEPS)
        assert handled == {str(key): list(range(STEPS)) for key in range(KEYS)}
        assert events == ["QueueAssigned"] * 4
        assert await cluster.epochs() == epochs
    events_before, events_after = ([json.loads(line) for line in path.read_text().splitlines()] for path in (tmp_path / "audit.1", audit))
    assert ("login", "shop", "done") in {(each["event"], each["user"], each["outcome"]) for each in events_before}
    assert ("login", "ops", "done") in {(each["event"], each["user"], each["outcome"]) for each in events_after}

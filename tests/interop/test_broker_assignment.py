"""Members of RocketMQ's Java client whose queues the broker assigns, beside one that computes its queues itself."""

import asyncio
from pathlib import Path

import pytest

from support.cluster import running_cluster
from support.java_tools import JavaProgram, JavaTools
from support.java_wire import JSON, java_wire

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

QUEUES, SHARED_S = 3, 120
"""Queues of each broker. Within this time the members share them."""


def handled(member: JavaProgram, number: int) -> int:
    """Return how many messages of a round a member has handled."""
    return len({line for line in member.lines if line.startswith("handled ") and line.split()[-1].startswith(f"{number}-")})


async def send_and_await(address: str, number: int) -> None:
    """Send a message to each queue of a broker, and return when the group has committed all of them."""
    async with java_wire(address, JSON) as wire:
        for queue_id in range(QUEUES):
            header = {"a": "pg", "b": "orders", "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1, "h": 0, "i": "TAGS\x01TagA"}
            assert (await wire.call(310, header, f"{number}-{address}-{queue_id}".encode())).code == 0
        for queue_id in range(QUEUES):
            asked = {"consumerGroup": "cg", "topic": "orders", "queueId": queue_id}
            while (await wire.call(14, asked)).fields.get("offset") != str(number):
                pass


async def test_members_that_ask_share_the_queues_with_one_that_does_not(tmp_path: Path) -> None:
    tools = JavaTools.fetch("5.3.3", tmp_path, "Member")
    async with running_cluster(tmp_path) as cluster:
        await cluster.nameserver()
        for name in ("broker-a", "broker-b"):
            await cluster.broker(name)
        await cluster.command("topic", "create", "orders", "--queues", str(QUEUES))
        addresses = [cluster.addresses[name] for name in ("broker-a", "broker-b")]
        call = ("Member", cluster.nameservers, "cg", "orders")
        async with (
            tools.running(*call, "m1", "asks") as first,
            tools.running(*call, "m2", "asks") as second,
            tools.running(*call, "m3") as third,
        ):
            members = (first, second, third)
            for member in members:
                await member.until(lambda lines: any(line.startswith("started ") for line in lines))
            number, shares = 0, [0, 0, 0]
            async with asyncio.timeout(SHARED_S):
                while shares != [2, 2, 2]:  # AVG of six queues, when all know each other
                    number += 1
                    for address in addresses:
                        await send_and_await(address, number)
                    shares = [handled(member, number) for member in members]

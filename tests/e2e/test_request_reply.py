"""Request and reply between processes, while the replier or the broker is killed in between."""

import asyncio
import signal

import pytest

from lockstep.client import Message, Producer, Reply, ReplyTimeoutError
from support.cluster import Cluster

pytestmark = pytest.mark.e2e


async def replier(cluster: Cluster, name: str, *, opened: bool) -> None:
    """Start a replier. It replies from now on if it is `opened`, otherwise when `reply` tells it to."""
    await cluster.start(name, ["-m", "support.worker_replier", "--nameserver", cluster.nameservers, "--name", name], "worker.ready")
    if opened:
        cluster.signal(signal.SIGUSR1, name)


def ask(producer: Producer, body: bytes, timeout_ms: int = 60_000) -> "asyncio.Future[Reply]":
    return asyncio.ensure_future(producer.request(Message("orders", body), timeout_ms=timeout_ms))


async def test_request_outlives_the_kill_of_its_replier_and_of_its_broker(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=["broker-a"])
    async with Producer("asking", nameserver=cluster.nameservers) as producer:
        await replier(cluster, "first", opened=False)
        asking = ask(producer, b"AAPL")
        await cluster.until_heard("first", "replier.has", body="AAPL")
        await cluster.kill("first")
        await replier(cluster, "second", opened=True)
        assert (await asking).body == b"second: AAPL"
        await cluster.stop("second")

        await replier(cluster, "third", opened=False)
        asking = ask(producer, b"MSFT")
        await cluster.until_heard("third", "replier.has", body="MSFT")
        await cluster.kill("broker-a")
        cluster.signal(signal.SIGUSR1, "third")  # its broker is away
        await cluster.restart("broker-a")
        assert (await asking).body == b"third: MSFT"
        await cluster.until_heard("third", "replier.replied", body="MSFT")
        assert producer.health().request_count == 0

        await cluster.stop("third")
        with pytest.raises(ReplyTimeoutError):
            await ask(producer, b"nobody is there", timeout_ms=500)
        assert (await cluster.group("pricing"))["lag"] == 1

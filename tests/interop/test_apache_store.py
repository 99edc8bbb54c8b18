"""A store directory goes from RocketMQ's own broker to ours and back: nothing is lost, and no delayed message comes twice."""

import json
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lockstep.protocol.messages.record import SYS_BORN_IPV6, SYS_STORE_IPV6
from support.cluster import Cluster, running_cluster
from support.java_programs import compiled
from support.processes import completed
from support.rocketmq_server import RocketMQ, delivered_of, offsets_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STORE = "store-broker-a"
"""The directory that `Cluster.broker` gives to a broker of this name."""
LARGE, SMALL = "40000", "20"
"""Bytes of a message. Forty large ones need two files of the log."""
DELAY_30_S, DELAY_10_S, DELAY_1_S = "4", "3", "1"


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(None, tmp_path_factory.mktemp("rocketmq"), "StoreClient", pom="server/pom.xml")


@pytest.fixture
async def rocketmq(class_path: str, tmp_path: Path) -> AsyncIterator[RocketMQ]:
    servers = RocketMQ(tmp_path, class_path, tmp_path / STORE)
    yield servers
    await servers.close()


def names(name: str, count: int) -> list[str]:
    return [f"{name}-{number} 0" for number in range(count)]


async def refused(folder: Path, *options: str) -> tuple[int | None, str]:
    """Start a broker that can't start. Return its exit code and what it says."""
    command = ["-m", "lockstep.broker", "--name", "broker-a", "--listen", "127.0.0.1:0", "--store", str(folder / STORE), *options]
    code, _, error = await completed(sys.executable, *command, limit_s=60)
    return code, error


async def our_broker(cluster: Cluster, *options: str) -> str:
    if "nameserver" not in cluster.processes:
        await cluster.nameserver()
    await cluster.broker("broker-a", *options)
    return cluster.nameservers


async def test_store_moves_to_lockstep_and_back_with_kills(rocketmq: RocketMQ, tmp_path: Path) -> None:
    store = str(tmp_path / STORE)
    await rocketmq.start()
    await rocketmq.client("send", "orders", "a", "40", "0", LARGE)
    assert sorted(await rocketmq.client("consume", "billing", "orders", "40")) == sorted(names("a", 40))
    await rocketmq.client("send", "orders", "b", "10", "0", LARGE)
    await rocketmq.client("send", "later", "early", "3", DELAY_1_S, SMALL)
    assert sorted(await rocketmq.client("consume", "timers", "later", "3")) == names("early", 3)
    await rocketmq.client("send", "later", "early", "1", DELAY_1_S, SMALL)
    assert await rocketmq.client("consume", "timers", "later", "1") == names("early", 1)
    await rocketmq.until(lambda: offsets_of(rocketmq, "orders", "billing") == 40 and delivered_of(rocketmq, 1) == 4)
    await rocketmq.until(lambda: offsets_of(rocketmq, "later", "timers") == 4)
    await rocketmq.client("send", "later", "late", "3", DELAY_30_S, SMALL)
    await rocketmq.kill()

    code, said = await refused(tmp_path)
    assert code == 4
    assert "start with --adopt" in said
    async with running_cluster(tmp_path) as cluster:
        assert "a start: needs --adopt: it has no lockstep/identity" in await cluster.command("store", "inspect", store)
        ours = await our_broker(cluster, "--adopt")
        assert sorted(await rocketmq.client("consume", "billing", "orders", "10", nameserver=ours)) == names("b", 10)
        everything = [*names("a", 40), *names("b", 10)]
        assert sorted(await rocketmq.client("consume", "audit-1", "orders", "50", nameserver=ours)) == sorted(everything)
        assert sorted(await rocketmq.client("consume", "timers", "later", "3", nameserver=ours)) == names("late", 3)
        await rocketmq.client("send", "orders", "c", "30", "0", LARGE, nameserver=ours)
        await rocketmq.client("send", "later", "back", "2", DELAY_30_S, SMALL, nameserver=ours)
        await cluster.kill("broker-a")
        assert "was not stopped in order" in await cluster.command("store", "export", store, code=1)
        await cluster.restart("broker-a")
        await cluster.stop("broker-a")
        assert "2 delayed messages wait" in await cluster.command("store", "export", store)
        everything += names("c", 30)

        await rocketmq.start()
        assert sorted(await rocketmq.client("consume", "billing", "orders", "30")) == sorted(names("c", 30))
        assert sorted(await rocketmq.client("consume", "audit-2", "orders", "80")) == sorted(everything)
        assert sorted(await rocketmq.client("consume", "timers", "later", "2")) == names("back", 2)
        await rocketmq.client("send", "orders", "d", "5", "0", LARGE)
        await rocketmq.client("send", "new", "n", "3", "0", SMALL)
        await rocketmq.client("send", "later", "last", "2", DELAY_10_S, SMALL)
        await rocketmq.until(lambda: offsets_of(rocketmq, "orders", "billing") == 80 and offsets_of(rocketmq, "later", "timers") == 9)
        await rocketmq.until(lambda: delivered_of(rocketmq, 4) == 5)
        await rocketmq.kill()
        everything += names("d", 5)

        code, said = await refused(tmp_path)
        assert code == 4
        assert "has run here since" in said
        assert "has run on it since" in await cluster.command("store", "inspect", store)
        ours = await our_broker(cluster, "--adopt")
        assert sorted(await rocketmq.client("consume", "billing", "orders", "5", nameserver=ours)) == names("d", 5)
        assert sorted(await rocketmq.client("consume", "audit-3", "orders", "85", nameserver=ours)) == sorted(everything)
        assert sorted(await rocketmq.client("consume", "audit-3", "new", "3", nameserver=ours)) == names("n", 3)
        assert sorted(await rocketmq.client("consume", "timers", "later", "2", nameserver=ours)) == names("last", 2)
        await cluster.stop("broker-a")
        assert "a start: opens it" in await cluster.command("store", "inspect", store)
        assert "0 problems" in await cluster.command("store", "check", store)


async def test_unfinished_work_is_refused_or_left_behind(rocketmq: RocketMQ, tmp_path: Path) -> None:
    await rocketmq.start()
    await rocketmq.client("send", "orders", "a", "4", "0", SMALL)
    await rocketmq.client("timer", "orders", "timer", "3600000")
    await rocketmq.stop()
    code, said = await refused(tmp_path, "--adopt")
    assert code == 4
    assert "1 messages with a delay of any length" in said
    async with running_cluster(tmp_path) as cluster:
        ours = await our_broker(cluster, "--adopt", "--adopt-without", "timers")
        assert sorted(await rocketmq.client("consume", "billing", "orders", "4", nameserver=ours)) == names("a", 4)
        await cluster.stop("broker-a")
        assert "0 problems" in await cluster.command("store", "check", str(tmp_path / STORE))


async def test_undecided_transactions_are_taken_over(rocketmq: RocketMQ, tmp_path: Path) -> None:
    await rocketmq.start()
    await rocketmq.client("send", "orders", "a", "4", "0", SMALL)
    await rocketmq.client("half", "orders", "half", "2")
    await rocketmq.stop()
    async with running_cluster(tmp_path) as cluster:
        ours = await our_broker(cluster, "--adopt")
        await rocketmq.client("half", "orders", "ours", "1", nameserver=ours)
        await cluster.kill("broker-a")
        await cluster.restart("broker-a")
        committed, rolled_back, own = json.loads(await cluster.command("tx", "ls", "--json"))["messages"]
        await cluster.command("tx", "commit", committed["message_id"], "--reason", "a test", "--yes")
        await cluster.command("tx", "rollback", rolled_back["message_id"], "--reason", "a test", "--yes")
        await cluster.command("tx", "commit", own["message_id"], "--reason", "a test", "--yes")
        assert len(await rocketmq.client("consume", "audit", "orders", "6", nameserver=ours)) == 6
        await cluster.stop("broker-a")
        assert "0 problems" in await cluster.command("store", "check", str(tmp_path / STORE))


async def test_transactions_that_have_ended_are_done_for_the_other_broker(rocketmq: RocketMQ, tmp_path: Path) -> None:
    """It finds no op messages of ours, and would ask about all half messages from its offset on."""
    store = str(tmp_path / STORE)
    await rocketmq.start()
    await rocketmq.client("send", "orders", "a", "2", "0", SMALL)
    await rocketmq.stop()
    async with running_cluster(tmp_path) as cluster:
        ours = await our_broker(cluster, "--adopt")
        await rocketmq.client("half", "orders", "h", "2", nameserver=ours)
        first, second = json.loads(await cluster.command("tx", "ls", "--json"))["messages"]
        await cluster.command("tx", "commit", first["message_id"], "--reason", "a test", "--yes")
        await cluster.stop("broker-a")
        assert "has 1 half messages, whose transactions are not decided" in await cluster.command("store", "export", store, code=1)
        await cluster.restart("broker-a")
        await cluster.command("tx", "rollback", second["message_id"], "--reason", "a test", "--yes")
        await cluster.stop("broker-a")
        await cluster.command("store", "export", store)
    await rocketmq.start()
    assert sorted(await rocketmq.client("consume", "billing", "orders", "3")) == [*names("a", 2), *names("h", 1)]
    await rocketmq.stop()
    assert offsets_of(rocketmq, "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS") == 2


async def test_records_with_ipv6_hosts_are_served_and_go_back(class_path: str, tmp_path: Path) -> None:
    if not has_ipv6():
        pytest.skip("no IPv6 on this machine: RocketMQ's broker can't write such records")
    rocketmq = RocketMQ(tmp_path, class_path, tmp_path / STORE, host="0:0:0:0:0:0:0:1")
    try:
        await rocketmq.start()
        await rocketmq.client("send", "orders", "a", "40", "0", LARGE)
        await rocketmq.client("send", "later", "late", "2", DELAY_10_S, SMALL)
        await rocketmq.stop()
        assert ipv6_hosts(tmp_path / STORE) == (True, True)
        async with running_cluster(tmp_path) as cluster:
            ours = await our_broker(cluster, "--adopt")
            assert sorted(await rocketmq.client("consume", "billing", "orders", "40", nameserver=ours)) == sorted(names("a", 40))
            assert sorted(await rocketmq.client("consume", "timers", "later", "2", nameserver=ours)) == names("late", 2)
            await rocketmq.client("send", "orders", "b", "2", "0", LARGE, nameserver=ours)
            tail = await cluster.command("tail", "orders", "--from-start", "--count", "42", "--json")
            assert len({json.loads(line)["message_id"] for line in tail.splitlines()}) == 42, "lockstep's own client reads them"
            await cluster.stop("broker-a")
            assert "0 problems" in await cluster.command("store", "check", str(tmp_path / STORE))
            await cluster.command("store", "export", str(tmp_path / STORE))
        await rocketmq.start()
        assert sorted(await rocketmq.client("consume", "billing", "orders", "2")) == names("b", 2)
        assert sorted(await rocketmq.client("consume", "audit", "orders", "42")) == sorted([*names("a", 40), *names("b", 2)])
    finally:
        await rocketmq.close()


def ipv6_hosts(store: Path) -> tuple[bool, bool]:
    """Return whether the born host and the store host of the first record are IPv6 ones."""
    head = (store / "commitlog" / f"{0:020d}").read_bytes()[:91]
    return bool(head[39] & SYS_BORN_IPV6), bool(head[39] & SYS_STORE_IPV6)


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True

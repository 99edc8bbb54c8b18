"""Times, ids and keys: what RocketMQ's clients and tools ask a broker about stored messages."""

import struct

import pytest

from support.cluster import Cluster
from support.java_requests import java_broker, pull, send
from support.java_wire import BINARY, JSON, records

pytestmark = pytest.mark.e2e

QUEUE = {"topic": "orders", "queueId": "0"}


def store_times(data: bytes) -> list[int]:
    """Return the store times of records."""
    found = []
    while data:
        found.append(struct.unpack_from(">q", data, 56)[0])
        data = data[struct.unpack_from(">i", data)[0] :]
    return found


@pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])
async def test_offsets_by_time_and_the_time_of_the_first_message(cluster: Cluster, kind: int) -> None:
    async with java_broker(cluster, kind=kind) as broker:
        assert (await broker.call(32, QUEUE)).fields == {"timestamp": "-1"}
        for number in range(3):
            await broker.call(310, send(), b"%d" % number)
        times = store_times((await broker.call(11, pull(0))).body)
        assert (await broker.call(32, QUEUE)).fields == {"timestamp": str(times[0])}
        assert (await broker.call(32, {**QUEUE, "queueId": "77"})).fields == {"timestamp": "-1"}

        async def offset(at: int, **boundary: str) -> int:
            return int((await broker.call(29, {**QUEUE, "timestamp": str(at), **boundary})).fields["offset"])

        for at in (times[0] - 1, times[0], times[1], times[2], times[2] + 1):
            at_or_after = [number for number, time in enumerate(times) if time >= at]
            until = [number for number, time in enumerate(times) if time <= at]
            assert await offset(at) == await offset(at, boundaryType="lower") == (at_or_after or [3])[0]
            assert await offset(at, boundaryType="UPPER") == (until or [0])[-1]


async def test_message_is_viewed_by_its_id_also_with_a_topic(cluster: Cluster) -> None:
    async with java_broker(cluster) as broker:
        sent = await broker.call(310, send(), b"hello", version=479)
        position = int(sent.fields["msgId"][16:], 16)
        for topic in ({}, {"topic": "orders"}):
            viewed = await broker.call(33, {"offset": str(position), **topic})
            assert [body for _, body, _ in records(viewed.body)] == [b"hello"]
        missing = await broker.call(33, {"offset": str(position + 1), "topic": "orders"})
        assert (missing.code, str(position + 1) in (missing.remark or "")) == (1, True)


@pytest.mark.parametrize("kind", [JSON, BINARY], ids=["json", "binary"])
async def test_messages_are_found_by_key_and_by_unique_key(cluster: Cluster, kind: int) -> None:
    async with java_broker(cluster, kind=kind) as broker:
        for number in range(3):
            await broker.call(310, send(properties=f"KEYS\x01all k{number}\x02UNIQ_KEY\x01AA{number}"), b"%d" % number)
        query = {"topic": "orders", "key": "all", "maxNum": "2", "beginTimestamp": "0", "endTimestamp": "9999999999999"}

        async def found(**fields: str) -> list[bytes]:
            response = await broker.call(12, {**query, **fields})
            assert {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"} == response.fields.keys()
            return [body for _, body, _ in records(response.body)]

        assert await found() == [b"2", b"1"]
        assert await found(key="k1") == [b"1"]
        assert await found(key="AA1", _UNIQUE_KEY_QUERY="true") == [b"1"]
        for fields in ({"key": "k"}, {"key": "all", "_UNIQUE_KEY_QUERY": "true"}, {"topic": "others"}, {"endTimestamp": "9"}):
            refused = await broker.call(12, {**query, **fields})
            assert (refused.code, "no message has this key" in (refused.remark or "")) == (22, True)


@pytest.mark.parametrize("asked", [{"maxMsgBytes": "2147483647"}, {"maxMsgBytes": "150000"}, {}])
async def test_pull_of_a_rocketmq_5_client_has_at_most_256_kib(cluster: Cluster, asked: dict[str, str]) -> None:
    async with java_broker(cluster) as broker:
        for _ in range(5):
            await broker.call(310, send(), bytes(100_000))
        pulled = await broker.call(11, {**pull(0), **asked}, version=479)
        assert len(records(pulled.body)) == (1 if asked.get("maxMsgBytes") == "150000" else 2)


@pytest.mark.parametrize(("sys_flag", "module"), [(0x101, "lz4.frame"), (0x201, "zstandard")])
async def test_body_that_java_5_has_compressed_is_stored_as_it_came_and_read_by_our_tools(
    cluster: Cluster, sys_flag: int, module: str
) -> None:
    body = pytest.importorskip(module).compress(b"hello " * 1_000)
    async with java_broker(cluster) as broker:
        await broker.call(310, send(f=str(sys_flag)), body)
        pulled = await broker.call(11, pull(0))
        assert [stored for _, stored, _ in records(pulled.body)] == [body]
        assert pulled.body[36:40] == sys_flag.to_bytes(4, "big")
        assert "hello hello" in await cluster.command("tail", "orders", "--from-start", "--count", "1")

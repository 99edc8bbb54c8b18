"""CONSUMER_SEND_MSG_BACK for unknown groups: it creates a group, and has the same limits as every other creation.

The request needs no membership, and each group's topic is created for it: one stored message was enough for unlimited topics.
"""

import asyncio
import shutil
from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.delivery.group_topics import GroupTopics
from lockstep.broker.journal import Journal
from lockstep.broker.tables.topic_table import TopicTable
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.topics.layouts import LayoutTable
from support.whole_broker import Client, dialled, frame, place, running, settings

MIB = 1 << 20
LEVELS = (-1, 3)
"""To the dead letters at once, and to be retried."""


async def store_message(client: Client) -> int:
    """Store one message and return its log position."""
    header, data, _ = frame(0, 1)
    return place(await client.done(RequestCode.SEND_RECORDS, header, data)).physical_offset


async def send_back(client: Client, offset: int, groups: range, level: int) -> list[tuple[int, str]]:
    """Return (code, remark) of a request for each group."""
    requested = [client.send_request(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(offset, f"g{number}", level)) for number in groups]
    return [(response.code, response.remark or "") for response in await asyncio.gather(*requested)]


def known_counts(broker: Broker) -> tuple[int, int]:
    """Return (groups, topics) of the broker."""
    return len(broker.state.coordination.state.activity), broker.state.layouts.live_count


@pytest.mark.parametrize("level", LEVELS)
async def test_group_above_the_limit_is_rejected_by_name_and_gets_no_topic(tmp_path: Path, level: int) -> None:
    async with running(settings(tmp_path, groups_max=3)) as broker, dialled(broker) as client:
        await client.create()
        offset = await store_message(client)
        assert {code for code, _ in await send_back(client, offset, range(3), level)} == {ResponseCode.SUCCESS}
        for group, (code, remark) in enumerate(await send_back(client, offset, range(3, 50), level), 3):
            assert code == ResponseCode.NO_PERMISSION
            assert f"knows 3 groups, 3 are allowed (--groups-max): group g{group} is refused" in remark
        assert known_counts(broker) == (3, 4)
        for each in LEVELS:  # a known group gets both of its topics
            assert {code for code, _ in await send_back(client, offset, range(3), each)} == {ResponseCode.SUCCESS}
        assert known_counts(broker) == (3, 7)


@pytest.mark.parametrize("level", LEVELS)
async def test_rejected_topic_leaves_no_group(tmp_path: Path, level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        offset = await store_message(client)
        monkeypatch.setattr("lockstep.broker.tables.topic_table.NAMES_MAX", 2)
        assert {code for code, _ in await send_back(client, offset, range(1), level)} == {ResponseCode.SUCCESS}
        for group, (code, remark) in enumerate(await send_back(client, offset, range(1, 5), level), 1):
            assert code == ResponseCode.NO_PERMISSION
            assert f"g{group} was not created: the cluster has 2 topics" in remark
        assert known_counts(broker) == (1, 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("of_free", [3, 1.5], ids=["below half the reserve", "below the reserve"])
async def test_full_disk_creates_and_writes_nothing(tmp_path: Path, level: int, of_free: float) -> None:
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        await client.create()
        offset = await store_message(client)
    reserve = int(of_free * shutil.disk_usage(tmp_path).free) // MIB
    async with running(settings(tmp_path, disk_reserve_mib=reserve, disk_used_percent_max=100)) as broker, dialled(broker) as client:
        before, end = known_counts(broker), broker.state.take_snapshot()["layouts"]
        log_bytes = broker.status().log_bytes
        responses = await send_back(client, offset, range(20), level)
        assert {code for code, _ in responses} == {ResponseCode.SERVICE_NOT_AVAILABLE}
        assert (known_counts(broker), broker.state.take_snapshot()["layouts"]) == (before, end)
        assert broker.status().log_bytes == log_bytes


def test_below_half_the_disk_reserve_only_an_acknowledged_message_gets_its_topic() -> None:
    def full(what: str) -> None:
        raise ServiceNotAvailableError(f"full: {what} is new")

    topics = TopicTable(LayoutTable(), Journal(), "broker-a")
    homes = GroupTopics(topics, may_begin=full)
    with pytest.raises(ServiceNotAvailableError, match="full: topic %DLQ%g is new"):
        homes.create("%DLQ%g")
    assert homes.writable_queue("%RETRY%g", 0) == 0
    homes.create("%RETRY%g")
    assert topics.layouts.live_count == 1

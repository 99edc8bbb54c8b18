"""A whole broker and the layouts in its store: one that nameservers refuse, and those that lost against others while it was down."""

from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.topics.layouts import COUNTER_MAX
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.host import Host
from support.whole_broker import TOPIC, dialled, kill, running, settings, stored


def layout(topic: str, counter: int, broker: str = "broker-a") -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, 7), (LayoutEntry(broker, 2, 2, 1),))


def store_unchecked(broker: Broker, found: TopicLayout) -> None:
    """Write the layout into the log without a check."""
    broker.state.topics._put(found)
    broker.state.write_changes()


async def test_broker_with_a_layout_that_is_refused_registers_its_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(settings(tmp_path)) as before:
        async with dialled(before) as client:
            await client.create()
        store_unchecked(before, layout("wrong", COUNTER_MAX + 1))
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await nameserver.start()
    try:
        async with running(settings(tmp_path, nameserver=nameserver.address)):
            assert nameserver.table.registered() == ("broker-a",)
            assert [each.topic for each in nameserver.table.layouts.all()] == [TOPIC]
    finally:
        await nameserver.stop()
    assert [record for record in caplog.records if record.getMessage().startswith("layout.refused nameserver=")] != []


async def test_message_in_a_queue_without_layout_is_readable_after_the_next_start(tmp_path: Path) -> None:
    """The layout that won was full, and has room since."""
    async with running(settings(tmp_path, auto_create_topics=True)) as first:
        async with dialled(first) as client:
            response = await client.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("prod", "new", 1), b"kept")
            assert response.code == ResponseCode.SUCCESS
        store_unchecked(first, layout("new", 9, "broker-b"))
        await first._store.sync()  # type: ignore[union-attr]
        await kill(first)
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        assert [each.broker_name for each in again.state.topics.require_layout("new").entries] == ["broker-b", "broker-a"]
        assert [record.body for record in await stored(client, "new", 1)] == [b"kept"]


@pytest.mark.parametrize("ahead", [0, 1, 5])
async def test_topic_recreated_at_another_broker_has_no_earlier_message_after_a_kill(tmp_path: Path, ahead: int) -> None:
    """This broker was away, and had changed the layout `ahead` times alone before."""

    def grown(entry_count: int, began: int, counter: int) -> TopicLayout:
        entries = tuple(LayoutEntry("broker-a", 1, 1, began + number) for number in range(entry_count))
        return TopicLayout("new", LayoutVersion(counter, 7), entries)

    async with running(settings(tmp_path)) as first, dialled(first) as client:
        for count in range(1, ahead + 2):
            first.state.topics.create(grown(count, 1, count))
        response = await client.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("prod", "new", 0), b"old")
        assert response.code == ResponseCode.SUCCESS
        first.state.topics.adopt([grown(ahead + 1, 3, ahead + 3)])
        response = await client.send_request(RequestCode.SEND_MESSAGE, SendMessageHeader("prod", "new", 0), b"kept")
        assert response.code == ResponseCode.SUCCESS
        await first._store.sync()  # type: ignore[union-attr]
        await kill(first)
    async with running(settings(tmp_path)) as again, dialled(again) as client:
        assert again.state.topics.require_layout("new").began == 3
        assert await stored(client, "new", 0, offset=0) == []
        assert [record.body for record in await stored(client, "new", 0, offset=1)] == [b"kept"]


@pytest.mark.parametrize(
    ("accepted", "tried", "previous"),
    [(0, (), 0), (-5, (9,), 0), (-5, (0,), -5), (-5, (-1, 0), -5), (3, (), 3), (3, (9,), 3)],
    ids=["accepted", "followed", "tried", "tried twice", "the log was cut", "and another one tried"],
)
async def test_accepted_term_is_that_of_the_log_unless_it_was_only_tried(
    tmp_path: Path, accepted: int, tried: tuple[int, ...], previous: int
) -> None:
    """A copy that was refused may have followed a master with a higher term since. All are relative to the term of the log."""
    async with running(settings(tmp_path)) as first:
        term = first.term
    numbers = [term + accepted, *(term + each for each in tried)]
    (tmp_path / "store/lockstep/term").write_text(" ".join(map(str, numbers)))
    async with running(settings(tmp_path)) as again:
        assert again.running._previous_term == term + previous
        assert again.term > max(*numbers, term)


async def test_truncated_log_keeps_the_term_of_its_last_start(tmp_path: Path) -> None:
    """Otherwise a nameserver would take the store for a copy: the operator has cut the damaged part, terms included."""
    async with running(settings(tmp_path)) as first:
        term = first.term
    for path in (tmp_path / "store/commitlog").iterdir():
        path.unlink()
    for path in (*(tmp_path / "store/lockstep").glob("snapshot-*"), tmp_path / "store/lockstep/synced"):
        path.unlink()
    async with running(settings(tmp_path)) as again:
        assert again.running._previous_term == term
        assert again.term > term

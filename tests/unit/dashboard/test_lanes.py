"""The lanes of a group's page: of queues, of members, and as a table."""

import re

import pytest

from lockstep.client import MessageModel, PushConsumer
from lockstep.dashboard.lanes import SPANS_SHOWN, span_rows
from lockstep.operations.groups.ownership import OwnershipLane, Span
from lockstep.operations.pictures.group import GroupPicture
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, shown
from support.why_kit import GROUP, TOPIC, Member, accept, send


def test_table_has_the_newest_spans_and_counts_the_others() -> None:
    spans = tuple(Span(number, number + 1, f"m{number % 3}" if number % 2 else None) for number in range(400))
    lanes = [OwnershipLane("t", "b", queue_id, spans) for queue_id in range(3)]
    rows, more = span_rows(GroupPicture("", "", lanes, 0, of_members=False), (0, 400))
    assert (len(rows), more) == (SPANS_SHOWN, 1_200 - SPANS_SHOWN)
    assert [(row.queue, row.began_ms, row.ended_ms, row.letter) for row in rows[:4]] == [
        *(("t@b:0", 399, None, "B"), ("t@b:1", 399, None, "B"), ("t@b:2", 399, None, "B")),
        ("t@b:0", 398, 399, ""),
    ]
    assert rows[-1].span.from_ms == 233


def test_table_does_not_say_when_a_span_began_that_began_before_the_period() -> None:
    lanes = [OwnershipLane("t", "b", 0, (Span(5, 40, "a"), Span(40, 100, known=False)))]
    rows, _ = span_rows(GroupPicture("", "", lanes, 0, of_members=False), (5, 100))
    assert [(row.began_ms, row.ended_ms, row.length) for row in rows] == [(40, None, "60 ms"), (None, 40, "≥ 35 ms")]


async def test_concurrent_group_shows_who_was_a_member_when(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await cluster.start("a", Member(cluster, accept, concurrent=True).run)
    await cluster.advance(seconds=4)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=10)
        await cluster.start("b", Member(cluster, accept, concurrent=True).run)
        await cluster.advance(seconds=10)
        await cluster.kill("b")
        await cluster.advance(seconds=12)
        text = await shown(on, f"/groups/{GROUP}")
        assert "Who was a member when" in text
        assert f"Who was a member of group {GROUP} 2 members joined, 1 left, 1 of them after the connection was lost" in text
        assert re.search("broker-[ab] started, broker-[ab] started, A joined", text)
        assert "B joined" in text
        assert "B left" in text
        assert "locks no queue" not in text
        assert re.search(r"\(13\.\d s\), last heard [34]\.\d s before, ended: its connection was lost, and the grace is over", text)
        rows = re.search(r"Member Began Ended How long Why it ended (.*?) Members", text)
        assert rows is not None
        killed = r"B \S+ \S+ \S+ 13\.0 s its connection was lost, and the grace is over; last heard at \S+"
        assert re.search(rf"{killed} A \S+ \S+ still (39|40)\.\d s", rows[1]), rows[1]


async def test_broadcasting_group_has_lanes_of_members_too(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)

    async def consume() -> None:
        consumer = PushConsumer(GROUP, nameserver=cluster.nameserver, message_model=MessageModel.BROADCASTING).subscribe(TOPIC)
        consumer.orderly(accept)
        async with consumer:
            await consumer.wait_closed()

    await cluster.start("a", consume)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=12)
        text = await shown(on, f"/groups/{GROUP}")
        assert "Each member of a broadcasting group consumes every queue" in text
        assert f"Who was a member of group {GROUP} 1 member joined, 0 left" in text


async def test_ordered_group_has_every_bar_in_a_table_that_is_closed(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    async with dashboard(cluster) as on:
        for name in "ab":
            await cluster.start(name, Member(cluster).run)
            await cluster.advance(seconds=4)
        await send(cluster, 40, keys=40)
        await cluster.settled(GROUP)
        await cluster.advance(seconds=8)
        page = checked(await get(on.app, f"/groups/{GROUP}"))
        text = checked(await get(on.app, f"/groups/{GROUP}")).text
        assert "Nothing is known yet" not in page.text
        assert "<details><summary>The picture as a table</summary>" in (await get(on.app, f"/groups/{GROUP}")).text
        part = (await get(on.app, f"/groups/{GROUP}", x_part="spans")).text
        assert len(re.findall(r"<tr><th scope=\"row\">[AB] ", part)) == 6, "four queues, two of which have moved"
        assert len(re.findall(r"<td>still</td>", part)) == 4
        assert 'aria-describedby="lanes-said"' in (await get(on.app, f"/groups/{GROUP}", x_part="lanes")).text
        assert "The table below says the same" in text
        assert re.search(r"broker-[ab] started", text)


@pytest.mark.lockstep(brokers=1)
async def test_queue_that_fails_is_marked_at_the_end_of_its_bar(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster

    def fail(messages: object, context: object) -> None:
        raise RuntimeError("no")

    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("a", Member(cluster, fail).run)
    await send(cluster, 1)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=12)
        assert re.search(rf"{TOPIC}@broker-a:0: fails for \S+ s, \d attempts fails \d×", await shown(on, f"/groups/{GROUP}"))


async def test_picture_of_all_queues_of_a_topic_shows_what_is_stored_or_the_lag_of_a_group(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=16)
    await cluster.start("a", Member(cluster).run)
    await send(cluster, 100, keys=100)
    await cluster.settled(GROUP)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=8)
        page = f"/topics/{TOPIC}"
        stored = await shown(on, page)
        assert f"Picture of all queues messages stored messages behind of {GROUP}" in stored
        assert "Messages that each queue stores" in stored
        assert re.search(r"Highest: broker-[ab]:\d+ \d+, broker-[ab]:\d+ \d+,", stored)
        behind = await shown(on, f"{page}?of={GROUP}")
        assert f"Messages behind of {GROUP}, of each queue" in behind
        assert "broker-a: 16 queues, highest 0" in behind
        assert "Highest:" not in behind, "nothing is behind"
        assert f'<option value="{GROUP}" selected>' in (await get(on.app, f"{page}?of={GROUP}")).text
        await cluster.kill("a")
        await send(cluster, 40, keys=1)
        await cluster.advance(seconds=8)
        behind = await shown(on, f"{page}?of={GROUP}")
        assert re.search(r"Highest: broker-[ab]:\d+ 40 ", behind)
        assert re.search(r"Highest: broker-[ab]:\d+ 40 ", await shown(on, f"/groups/{GROUP}"))
        for hostile in ("none", "<b>", "%00", "of" * 500):
            assert "Messages that each queue stores" in checked(await get(on.app, f"{page}?of={hostile}")).text


async def test_group_with_more_queues_than_lanes_shows_how_many_each_member_held(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=40)
    await cluster.start("a", Member(cluster).run)
    await cluster.advance(seconds=5)
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=30)
        await cluster.start("b", Member(cluster).run)
        await cluster.advance(seconds=20)
        text = await shown(on, f"/groups/{GROUP}?window=1")
        assert "16 queues that moved less often are not shown" in text
        assert re.search(rf"Queues held by the members of group {GROUP} 80 queues .* \S+@\S+: 40 now \S+@\S+: 40 now", text)
        (first,) = re.findall(r"<path d=\"([^\"]*)\" class=\"c0\">", (await get(on.app, f"/groups/{GROUP}?window=1", x_part="held")).text)
        assert re.fullmatch(r"M[\d.]+ 170.0(V170.0H[\d.]+)?V10.0H6\d\d.\d(V\d+.0H6\d\d.\d)?V90.0H946.0V170.0H[\d.]+Z", first)
        few = await shown(on, f"/groups/{GROUP}x")
        assert "Queues held by each member" not in few


async def test_group_that_does_not_consume_a_topic_is_not_asked_for(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=16)
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)

        async def asked(*args: object) -> None:
            raise AssertionError(args)

        monkeypatch.setattr(on.watch.admin, "group_status", asked)
        assert (await get(on.app, f"/topics/{TOPIC}?of=stranger")).status == 200

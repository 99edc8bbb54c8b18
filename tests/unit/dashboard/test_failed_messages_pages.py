"""The pages of dead letters and of parked keys over a simulated cluster."""

import asyncio
import re
from collections.abc import Sequence

import pytest

from lockstep.client import Backoff, Message, MessageExt, OrderedRetry, OrderlyContext
from lockstep.dashboard import Dashboard, failed_messages
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.messages.dead_letters import commit_replayed, find_dead_letter_queues
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.asgi import get
from support.panel import checked, dashboard, shown, stored
from support.parked_group import Group
from support.why_kit import GROUP, TOPIC, Member

DEAD, PARKED = f"/groups/{GROUP}/dead", f"/groups/{GROUP}/parked"
HOSTILE = "<script>alert(1)</script>\u202e'\"&"
QUICK = OrderedRetry(max_attempts=2, on_exhausted="dlq", backoff=Backoff(first_ms=10, max_ms=10))


async def refuse(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
    """A listener that accepts nothing."""
    raise RuntimeError(f"card declined {HOSTILE}")


async def give_up(cluster: TestCluster, *messages: Message) -> list[str]:
    """Let the group give up on these messages. Return their ids."""
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("member", Member(cluster, refuse, {"retry": QUICK}).run)
    ids = await stored(cluster, *messages)
    await cluster.settled(GROUP)
    return ids


def numbered(count: int) -> list[Message]:
    return [Message(TOPIC, b"n%d." % n, sharding_key=f"k{n}") for n in range(count)]


# ------------------------------------------------------------------------------------------------------------ dead letters


async def test_newest_dead_letters_of_each_broker_are_shown_with_what_became_of_them(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await give_up(cluster, *numbered(90))
    admin = AdminClient(Host.current(), cluster.nameserver)
    found = await find_dead_letter_queues(admin, GROUP)
    counts = {name: queues[0].stored_count for name, queues in found.values.items()}
    assert min(counts.values()) > failed_messages.NEWEST
    (queue,) = found.values["broker-a"]
    await commit_replayed(admin, queue, GROUP, queue.offsets.max_offset - 3)
    async with dashboard(cluster) as on:
        page = checked(await get(on.app, DEAD))
        assert f"Stored: 90, of which {counts['broker-b'] + 3} were not replayed. Shown are the newest of each broker." in page.text
        rows = re.findall(r"[0-9A-F]{32} \S+ (broker-[ab]) orders (\d) (yes|no) (.*?) n\d+\.", page.text)
        assert len(rows) == 2 * failed_messages.NEWEST
        assert {(attempts, "card declined" in reason) for _, attempts, _, reason in rows} == {("2", True)}
        assert [replayed for broker, _, replayed, _ in rows if broker == "broker-a"] == ["no"] * 3 + ["yes"] * 17
        assert {replayed for broker, _, replayed, _ in rows if broker == "broker-b"} == {"no"}
        assert f"lockstep dlq replay {GROUP}" in page.text
        times = re.findall(r"[0-9A-F]{32} (\S+Z)", page.text)
        assert times == sorted(times, reverse=True)
        (link, *_) = [link for link in page.links if link.startswith("/messages/")]
        assert (await get(on.app, link)).status == 200


async def test_dead_letters_come_without_a_reload_and_the_group_page_counts_them(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("member", Member(cluster, refuse, {"retry": QUICK}).run)
    await cluster.advance(seconds=5)
    async with dashboard(cluster) as on:
        got = await get(on.app, DEAD)
        assert (got.status, "The group has no dead letters" in checked(got).text) == (200, True)
        await stored(cluster, *numbered(1))
        await cluster.settled(GROUP)
        await cluster.advance(seconds=15)
        text = await shown(on, DEAD)
        assert "Stored: 1, of which 1 were not replayed." in text
        assert "Shown are the newest" not in text
        await get(on.app, f"/groups/{GROUP}")
        page = checked(await get(on.app, f"/groups/{GROUP}"))
        assert DEAD in page.links
        assert "Dead letters: 1" in page.text
        part = await get(on.app, DEAD, x_part="letters")
        assert (await get(on.app, DEAD, x_part="letters", if_none_match=part.headers["etag"])).status == 304


async def test_group_whose_dead_letters_were_replayed_needs_no_attention(lockstep_cluster: TestCluster) -> None:
    """And the group that records the replay, which has no member, is none that lags."""
    cluster = lockstep_cluster
    await give_up(cluster, *numbered(30))
    admin = AdminClient(Host.current(), cluster.nameserver)
    found = await find_dead_letter_queues(admin, GROUP)
    queues = [queue for each in found.values.values() for queue in each]
    async with dashboard(cluster) as on:
        for queue in queues:
            await commit_replayed(admin, queue, GROUP, queue.offsets.max_offset - 1)
        await cluster.advance(seconds=12)
        front = await shown(on, "/")
        assert f"{GROUP} : dead letters: {len(queues)} " in front
        assert "LOCKSTEP_REPLAY" not in front + await shown(on, "/groups")
        assert re.search(r"Behind 0 messages", front)
        for queue in queues:
            await commit_replayed(admin, queue, GROUP, queue.offsets.max_offset)
        await cluster.advance(seconds=12)
        assert "No group is failing" in await shown(on, "/")
        assert "Dead letters:" not in await shown(on, f"/groups/{GROUP}")


@pytest.mark.parametrize("url", [DEAD, PARKED, f"{PARKED}?count=1", "/groups/%3Cscript%3E/dead", f"/groups/{'x' * 300}/parked"])
async def test_group_that_nobody_knows_is_not_found(lockstep_cluster: TestCluster, url: str) -> None:
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=5)
        got = await get(on.app, url)
        assert got.status == 404
        assert re.search(f"no broker knows group {GROUP}|'<script>'|'xxx", checked(got).text)


async def test_broker_that_is_killed_is_named_and_counts_for_nothing(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await give_up(cluster, *numbered(30))
    async with dashboard(cluster) as on:
        await cluster.advance(seconds=5)
        assert "Stored: 30" in await shown(on, DEAD)
        await cluster.kill("broker-b")
        await cluster.advance(seconds=10)
        text = await shown(on, DEAD)
        assert "broker-b is left out" in text
        assert "Stored: 30" not in text
        assert "broker-b orders" not in text
        await cluster.kill("nameserver-1")
        await cluster.advance(seconds=10)
        assert "What follows is older" in await shown(on, DEAD)


async def test_words_of_clients_in_dead_letters_are_only_words(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await give_up(cluster, Message(TOPIC, HOSTILE.encode() + b"\xff", sharding_key=HOSTILE))
    async with dashboard(cluster) as on:
        text = await shown(on, DEAD)
        assert text.count("<script>alert(1)</script>") == 2
        assert "\u202e" not in text


async def test_without_bodies_dead_letters_are_listed_by_their_size(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await give_up(cluster, Message(TOPIC, b"secret"))
    async with dashboard(cluster, bodies=False) as on:
        text = await shown(on, DEAD)
        assert "6 bytes" in text
        assert "secret" not in text


# ------------------------------------------------------------------------------------------------------------- parked keys


async def test_parked_keys_are_shown_with_what_replays_and_drops_them(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(40, 10, "k3", "k7")
    async with dashboard(cluster) as on:
        page = checked(await get(on.app, PARKED))
        rows = re.findall(r"(k\d) orders broker-[ab]:0 parked \S+Z (\d) (\S+: card declined)", page.text)
        assert sorted(rows) == [(key, "3", rows[0][2]) for key in ("k3", "k7")]
        assert "Waiting" not in page.text
        assert f"lockstep park replay {GROUP} KEY" in page.text
        assert f"lockstep park drop {GROUP} KEY --to dlq" in page.text
        assert "?count=1" in page.links
        await cluster.advance(seconds=10)
        group = checked(await get(on.app, f"/groups/{GROUP}"))
        assert PARKED in group.links
        assert "Parked keys: 2" in group.text


async def test_what_waits_is_counted_on_request_only(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(40, 10, "k3", "k7")
    counted = []
    count_waiting = failed_messages.count_waiting

    async def count(*args: object) -> object:
        counted.append(args)
        return await count_waiting(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(failed_messages, "count_waiting", count)
    async with dashboard(cluster) as on:
        for _ in range(5):
            await shown(on, PARKED)
        assert not counted
        page = checked(await get(on.app, f"{PARKED}?count=1"))
        assert sorted(re.findall(r"(k\d) orders broker-[ab]:0 parked \S+Z (\d) 3 ", page.text)) == [("k3", "4"), ("k7", "4")]
        assert len(counted) == 1
        assert 'data-part="keys"' not in (await get(on.app, f"{PARKED}?count=1")).text, "it does not refresh itself"


async def test_group_without_parked_keys_says_when_there_are_some(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.start("member", Member(cluster).run)
    await cluster.advance(seconds=5)
    async with dashboard(cluster) as on:
        got = await get(on.app, PARKED)
        assert (got.status, 'on_exhausted="park"' in checked(got).text) == (200, True)
        assert "The group has parked no key" in await shown(on, f"{PARKED}?count=1")


async def test_broker_that_is_silent_is_named_on_the_page_of_parked_keys(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(40, 10, *(f"k{n}" for n in range(10)))
    async with dashboard(cluster) as on:
        assert "broker-b:0" in await shown(on, PARKED)
        await cluster.pause("broker-b")
        await asyncio.sleep(10)
        text = await shown(on, PARKED)
        assert "broker-b is left out" in text
        assert "broker-b:0" not in text
        assert "broker-a:0" in text
        await cluster.resume("broker-b")


async def test_words_of_clients_in_parked_keys_are_only_words(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster, poison={HOSTILE})
    await cluster.start("worker", group.member)
    await stored(cluster, Message(TOPIC, b"1", sharding_key=HOSTILE))
    await cluster.until(lambda: group.failed >= 3)
    await cluster.settled(GROUP)
    async with dashboard(cluster) as on:
        for url in (PARKED, f"{PARKED}?count=1"):
            page = checked(await get(on.app, url))
            assert page.text.count("<script>alert(1)</script>") == 1
            assert "\u202e" not in page.text


async def test_only_the_first_of_many_parked_keys_are_shown(lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_messages, "KEYS_SHOWN", 2)
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(10, 10, "k1", "k2", "k3", "k4", "k5")
    async with dashboard(cluster) as on:
        text = await shown(on, PARKED)
        assert "At least 3 more keys" in text
        assert len(re.findall(r"k\d orders", text)) == 2


@pytest.mark.parametrize(("url", "forms"), [(DEAD, ["dlq-replay"]), (PARKED, ["park-replay", "park-drop"])])
async def test_where_changes_are_allowed_the_pages_lead_to_the_forms(lockstep_cluster: TestCluster, url: str, forms: list[str]) -> None:
    cluster = lockstep_cluster
    if url == DEAD:
        await give_up(cluster, *numbered(2))
    else:
        await cluster.create_topic(TOPIC, queues=1)
        await Group(cluster).park(4, 4, "k1")
    made = Dashboard(cluster.nameserver, host=Host.current(), changes=True)
    links = [link for link in checked(await get(made.app, url)).links if link.startswith("/changes/")]
    assert links == [f"/changes/{form}?group={GROUP}" for form in forms]
    for link in links:
        assert (await get(made.app, link)).status == 200
    await made.stop()
    async with dashboard(cluster) as on:
        assert not [link for link in checked(await get(on.app, url)).links if "changes" in link]

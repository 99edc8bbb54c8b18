"""/groups/GROUP/why: all queues of a group, one of them, or that of a sharding key."""

import json
from urllib.parse import quote

import pytest

from lockstep.cli.commands import why
from lockstep.testing import TestCluster
from support.asgi import get
from support.json_pages import ageless, parsed, printed
from support.panel import checked, dashboard
from support.why_kit import GROUP, TOPIC, Member, hang, send

WHY = f"/groups/{GROUP}/why"


async def stands(cluster: TestCluster) -> None:
    """Let every queue of the group stand, with a listener that does not end."""
    await cluster.create_topic(TOPIC, queues=2)
    await cluster.start("a", Member(cluster, hang).run)
    await send(cluster, 40, keys=40)
    await cluster.advance(seconds=5)


async def test_page_of_a_queue_explains_it_alone_and_is_linked_from_the_group(lockstep_cluster: TestCluster) -> None:
    await stands(lockstep_cluster)
    async with dashboard(lockstep_cluster) as on:
        await lockstep_cluster.advance(seconds=8)
        group = checked(await get(on.app, f"/groups/{GROUP}"))
        link = f"{WHY}?queue={quote(f'{TOPIC}@broker-b:1', safe='')}"
        assert link in group.links
        page = checked(await get(on.app, link))
        assert f"{TOPIC}@broker-b:1 stalled" in page.text
        assert f"{TOPIC}@broker-a" not in page.text
        assert "Because the listener" in page.text
        assert f"{TOPIC}@broker-a:1 stalled" in checked(await get(on.app, WHY)).text


async def test_json_of_a_question_is_what_the_command_prints(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    await stands(lockstep_cluster)
    where = lockstep_cluster.nameserver
    async with dashboard(lockstep_cluster) as on:
        for query, (target, key, topic) in {
            f"queue={TOPIC}:1": (f"{TOPIC}:1", None, None),
            "key=k7": (None, "k7", None),
            f"topic={TOPIC}": (None, None, TOPIC),
        }.items():
            expected = await printed(capsys, why._why(GROUP, target, key, topic, where, True))
            assert ageless(parsed(await get(on.app, f"{WHY}?{query}&format=json"))) == ageless(expected), query
            assert expected["queues"], query


async def test_page_of_a_key_says_to_which_queue_it_belongs(lockstep_cluster: TestCluster) -> None:
    await stands(lockstep_cluster)
    async with dashboard(lockstep_cluster) as on:
        page = checked(await get(on.app, f"{WHY}?key=k7&topic={TOPIC}"))
        found = json.loads((await get(on.app, f"{WHY}?key=k7&topic={TOPIC}&format=json")).text)
        assert found["note"].startswith(f"key k7 of topic {TOPIC} belongs to {TOPIC}@broker-")
        assert found["note"] in page.text


async def test_explanation_is_asked_for_again_soon_and_says_when_it_is_old(lockstep_cluster: TestCluster) -> None:
    await stands(lockstep_cluster)
    async with dashboard(lockstep_cluster) as on:
        first = parsed(await get(on.app, f"{WHY}?format=json"))
        await lockstep_cluster.advance(seconds=6)
        assert parsed(await get(on.app, f"{WHY}?format=json")) != first, "its times have changed"
        assert "As of" not in checked(await get(on.app, WHY)).text
        await lockstep_cluster.advance(seconds=60)
        assert "As of" in checked(await get(on.app, WHY)).text
        await lockstep_cluster.kill("broker-a")
        await lockstep_cluster.kill("broker-b")
        await lockstep_cluster.advance(seconds=60)
        await get(on.app, WHY)
        await lockstep_cluster.advance(seconds=20)
        assert "What follows is older." in checked(await get(on.app, WHY)).text


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("queue=hello", 400, "'hello' is no queue: write TOPIC:QUEUE or TOPIC@BROKER:QUEUE"),
        ("queue=AC11000300002A9F000000000000017A", 400, "is no queue"),
        ("queue=<script>alert(1)</script>", 400, "is no queue"),
        (f"queue={TOPIC}:1&key=k", 400, "not both"),
        ("topic=%20/", 400, "topic"),
        (f"queue={TOPIC}:99", 404, f"group {GROUP} has no queue 99 of topic {TOPIC}"),
        ("topic=nothing", 404, f"group {GROUP} has no queue of nothing"),
    ],
)
async def test_question_that_has_no_answer_says_why(lockstep_cluster: TestCluster, query: str, status: int, words: str) -> None:
    await lockstep_cluster.create_topic(TOPIC, queues=2)
    await lockstep_cluster.start("a", Member(lockstep_cluster).run)
    await lockstep_cluster.settled(GROUP)
    async with dashboard(lockstep_cluster) as on:
        got = await get(on.app, f"{WHY}?{query}")
        assert got.status == status
        assert words in checked(got).text
        assert words in parsed(await get(on.app, f"{WHY}?{query}&format=json"), status)["error"]

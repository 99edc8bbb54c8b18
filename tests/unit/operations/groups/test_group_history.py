"""lockstep group history: what happened to a group, how its queues moved, and what is not known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring as parse

import pytest

from lockstep.cli.commands.group_history import _history
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_history import HandOver, hand_overs, in_order, incomplete, summary
from lockstep.protocol.bodies import GroupEvent, GroupEventKind, GroupEvents
from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.testing import TestCluster
from support.why_kit import GROUP, TOPIC, Member, send

K = GroupEventKind
SVG = "{http://www.w3.org/2000/svg}"


def member(number: int, kind: GroupEventKind, client_id: str, at_ms: int) -> GroupEvent:
    return GroupEvent(number, at_ms, kind, GROUP, client_id)


def queue(number: int, kind: GroupEventKind, client_id: str, at_ms: int, since_ms: int | None = None, queue_id: int = 0) -> GroupEvent:
    return GroupEvent(number, at_ms, kind, GROUP, client_id, None, TOPIC, queue_id, number, since_ms)


# --------------------------------------------------------------------------------------------------------------------- pure parts


def moves(*events: GroupEvent) -> list[tuple[str, str, int, bool]]:
    return [(each.before, each.after, each.took_ms, each.lost) for each in hand_overs(in_order({"broker-a": events}))]


@pytest.mark.parametrize("kind", [K.FREED, K.LOST, K.ENDED])
@pytest.mark.parametrize("grant", [K.GRANTED, K.RENEWED])
def test_hand_over_lasts_from_the_last_sign_of_the_owner_to_the_grant_of_another(kind: GroupEventKind, grant: GroupEventKind) -> None:
    found = moves(queue(1, K.GRANTED, "a", 0), queue(2, kind, "a", 4_000, 1_000), queue(3, grant, "b", 4_007, 4_000))
    assert found == [("a", "b", 3_007, kind is K.LOST)]


def test_hand_over_does_not_begin_before_the_next_owner_joined() -> None:
    joined = member(3, K.JOINED, "b", 9_000)
    assert moves(queue(2, K.FREED, "a", 4_000, 4_000), joined, queue(4, K.GRANTED, "b", 9_002)) == [("a", "b", 2, False)]


def test_queue_that_returns_to_its_owner_or_was_never_held_has_not_moved() -> None:
    assert moves(queue(1, K.GRANTED, "a", 0), queue(2, K.FREED, "a", 5), queue(3, K.GRANTED, "a", 6)) == []
    assert moves(queue(1, K.GRANTED, "a", 0), queue(2, K.GRANTED, "b", 5, queue_id=1)) == []


def test_queues_of_two_brokers_with_one_name_are_two_queues() -> None:
    events = in_order({"broker-b": [queue(1, K.FREED, "a", 5)], "broker-a": [queue(7, K.GRANTED, "b", 9), queue(6, K.FREED, "c", 9)]})
    assert [(each.broker, each.event.number) for each in events] == [("broker-b", 1), ("broker-a", 6), ("broker-a", 7)]
    assert [(each.broker, each.before, each.after) for each in hand_overs(events)] == [("broker-a", "c", "b")]


def moved(took_ms: int, lost: bool) -> HandOver:
    return HandOver("broker-a", TOPIC, 0, "a", "b", 0, took_ms, lost)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([], "no queue moved to another member"),
        ([moved(7, False)], "1 queue moved to another member: 1 released by the owner (median 7 ms, longest 7 ms)"),
        (
            [moved(3, False), moved(999, False), moved(5, False), moved(3_000, True)],
            "4 queues moved to another member: 3 released by the owner (median 5 ms, longest 999 ms), "
            "1 lost with the owner (median 3.0 s, longest 3.0 s)",
        ),
    ],
)
def test_summary_tells_orderly_moves_from_losses(found: list[HandOver], text: str) -> None:
    assert summary(found) == text


def test_what_a_broker_does_not_know_is_told() -> None:
    events = (queue(11, K.GRANTED, "a", 5_000),)
    whole = GroupEvents(1, 9_000, 1_000, 1, 11, events, {})
    assert incomplete(GROUP, {"broker-a": whole}, 1_000) == []
    assert incomplete(GROUP, {"broker-a": whole}, None) == []
    assert incomplete(GROUP, {"broker-a": whole}, 999) == ["broker-a started 8.0 s ago, and has no earlier events"]
    for cut in (replace(whole, first=3), replace(whole, dropped={GROUP: 10})):
        assert incomplete(GROUP, {"broker-a": cut}, 4_999) == [f"broker-a has dropped earlier events of {GROUP}: it keeps a limited number"]
        assert incomplete(GROUP, {"broker-a": cut}, 5_000) == []
        assert len(incomplete(GROUP, {"broker-a": cut}, None)) == 1
    assert incomplete(GROUP, {"broker-a": replace(whole, dropped={"other": 10})}, 1_000) == []


# --------------------------------------------------------------------------------------------------------------------- in a cluster


async def history(cluster: TestCluster, capsys: pytest.CaptureFixture[str], **options: Any) -> Any:
    """Return what the command prints. The members are named a, b, c by the order in which they joined."""
    names: dict[str, str] = {}
    for chosen in ({}, options):
        capsys.readouterr()
        await _history(GROUP, **{"topic": None, "since": None, "svg": None, **chosen}, nameserver=cluster.nameserver, as_json=True)
        printed = capsys.readouterr().out
        for event in json.loads(printed)["events"]:
            if event["kind"] == "joined":
                names.setdefault(event["client_id"], "abcd"[len(names)])
    for client_id, name in names.items():
        printed = printed.replace(json.dumps(client_id), json.dumps(name))
    return json.loads(printed)


async def members(cluster: TestCluster, *names: str) -> None:
    """Start members, whose workers have these names, one after the other. Return when all have consumed what was sent to each queue."""
    for name in names:
        await cluster.start(name, Member(cluster).run)
        await cluster.advance(seconds=5)
        await consumed(cluster)


async def consumed(cluster: TestCluster) -> None:
    """Send to each queue, and return when all is consumed: then each queue has an owner."""
    await send(cluster, 80, keys=80)
    await cluster.settled(GROUP)


def queues_of(report: Any, client_id: str, kind: str) -> set[tuple[str, int]]:
    return {(each["broker"], each["queue_id"]) for each in report["events"] if (each["client_id"], each["kind"]) == (client_id, kind)}


@pytest.mark.lockstep(brokers=2)
async def test_killed_and_stopped_members_are_told_apart(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=4)
    await members(cluster, "a", "b")
    first = await history(cluster, capsys)
    assert {(each["client_id"], each["kind"]) for each in first["events"] if each["topic"] is None} == {("a", "joined"), ("b", "joined")}
    ours = queues_of(first, "b", "granted")
    assert len(ours) == 4
    assert queues_of(first, "a", "freed") == ours
    assert {(each["before"], each["after"], each["lost"]) for each in first["hand_overs"]} == {("a", "b", False)}

    await cluster.kill("b")
    await consumed(cluster)
    await members(cluster, "c")
    await cluster.stop("a")
    await consumed(cluster)
    report = await history(cluster, capsys)
    assert queues_of(report, "b", "lost") == ours
    lost = [each for each in report["hand_overs"] if each["lost"]]
    assert {(each["before"], each["after"]) for each in lost} == {("b", "a")}
    assert all(3_000 <= each["took_ms"] < 40_000 for each in lost)
    assert {each["after"] for each in report["hand_overs"] if each["before"] == "a" and not each["lost"]} == {"b", "c"}
    assert (report["notes"], report["failed"]) == ([], {})
    assert [each["wall_ms"] for each in report["events"]] == sorted(each["wall_ms"] for each in report["events"])


@pytest.mark.lockstep(brokers=2)
async def test_only_one_topic_or_the_last_minutes_can_be_asked_for(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await members(cluster, "a")
    await cluster.advance(minutes=10)
    await members(cluster, "b")
    everything = await history(cluster, capsys)
    late = await history(cluster, capsys, since="5m")
    assert {each["client_id"] for each in everything["events"] if each["kind"] == "joined"} == {"a", "b"}
    assert {each["client_id"] for each in late["events"] if each["kind"] == "joined"} == {"b"}
    assert late["hand_overs"] == everything["hand_overs"] != []
    assert {each["topic"] for each in everything["events"]} == {None, TOPIC}
    assert await history(cluster, capsys, topic=TOPIC) == everything
    other = await history(cluster, capsys, topic="others")
    assert (other["hand_overs"], {each["topic"] for each in other["events"]}) == ([], {None})


@pytest.mark.lockstep(brokers=2)
async def test_started_broker_says_since_when_it_has_events_and_an_absent_one_is_named(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await members(cluster, "a")
    await cluster.restart("broker-a")
    await consumed(cluster)
    report = await history(cluster, capsys, since="1h")
    assert [line.split(" started ")[0] for line in report["notes"]] == ["broker-a", "broker-b"]
    assert ("broker-a", "reconnected") in {(each["broker"], each["kind"]) for each in report["events"]}
    await cluster.kill("broker-b")
    with pytest.raises(OperationError, match="broker-b"):
        await history(cluster, capsys)
    printed = json.loads(capsys.readouterr().out)
    assert {each["broker"] for each in printed["events"]} == {"broker-a"}


@pytest.mark.lockstep(brokers=1)
async def test_table_has_a_line_for_each_event(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    with pytest.raises(OperationError, match="no broker knows group billing"):
        await _history(GROUP, None, None, None, cluster.nameserver, False)
    with pytest.raises(ConfigError, match="--since 'soon'"):
        await _history(GROUP, None, "soon", None, cluster.nameserver, False)
    with pytest.raises(LocalProtocolError):
        await _history("a group", None, None, None, cluster.nameserver, False)
    await cluster.create_topic(TOPIC, queues=1)
    await members(cluster, "a")
    await cluster.kill("a")
    await cluster.advance(seconds=10)
    await members(cluster, "b")
    capsys.readouterr()
    await _history(GROUP, TOPIC, None, None, cluster.nameserver, False)
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[2] for line in lines[1:-1]]
    assert shown == ["joined", "granted", "disconnected", "left", "lost", "joined", "granted"]
    assert "its connection was lost, and the grace is over; last heard " in lines[5]
    assert " free for " in lines[7]
    assert lines[-1].startswith("1 queue moved to another member: 1 lost with the owner (median ")


@pytest.mark.lockstep(brokers=2)
async def test_picture_shows_who_held_each_queue(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=2)
    await members(cluster, "a", "b")
    await cluster.kill("b")
    await consumed(cluster)
    picture = tmp_path / "owners.svg"
    await history(cluster, capsys, svg=picture)
    root = parse(picture.read_text())
    titles = [each.text or "" for each in root.iter(f"{SVG}title")]
    lost = [each for each in titles if "its connection was lost, and the grace is over" in each]
    assert len(lost) == 2
    assert all("last heard" in each for each in lost)
    assert sum(each == f"{TOPIC}@broker-{name}:{number}" for each in titles for name in "ab" for number in range(2)) == 4
    with pytest.raises(ConfigError, match="--svg"):
        await history(cluster, capsys, svg=tmp_path)
    await cluster.kill("broker-b")
    with pytest.raises(OperationError, match="broker-b"):
        await _history(GROUP, None, None, picture, cluster.nameserver, True)
    assert f"{TOPIC}@broker-b:1: not known" in picture.read_text()

"""lockstep park ls | show | replay | drop: operators see what waits for which key, and bring it back or give it up."""

from typing import Any

import pytest

from lockstep.cli import main as cli
from lockstep.cli.change_command import carry_out
from lockstep.cli.commands.park import _list, _show
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.group_delete import GroupDelete
from lockstep.operations.changes.park_change import DropTarget, ParkDrop, ParkReplay
from lockstep.operations.changes.topic_delete import TopicDelete
from lockstep.operations.groups import parked
from lockstep.operations.groups.group_report import report
from lockstep.operations.groups.parked import count_forgotten, replay_waits_for
from lockstep.protocol.bodies import (
    BrokerAddress,
    ConsumerGroup,
    GroupSettings,
    GroupStatus,
    ListVersion,
    MemberStatus,
    ParkControlBody,
    ParkControlReply,
    QueueStatus,
    Subscription,
)
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import dlq_topic
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.ended_command import Run
from support.parked_group import GROUP, TOPIC, Group, send, until_parked
from support.queue_moves import broker_named

one_broker = pytest.mark.lockstep(brokers=1)


def replay(cluster: TestCluster, key: str | None, *, group: str = GROUP, topic: str | None = None, as_json: bool = False) -> Any:
    return carry_out(ParkReplay(group=group, key=key, every=key is None, topic=topic), cluster.nameserver, as_json=as_json)


def drop(cluster: TestCluster, key: str | None, *, as_json: bool = False) -> Any:
    return carry_out(ParkDrop(group=GROUP, key=key, every=key is None, to=DropTarget.DLQ), cluster.nameserver, as_json=as_json)


# --------------------------------------------------------------------------------------------------------------------- ls


@one_broker
async def test_ls_shows_each_key_with_its_error_and_what_waits(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(100, 10, "k3", "k7")
    await send(cluster, 10, 10, start=100)
    await cluster.settled(GROUP)
    head, three, seven = (await run(_list(GROUP, None, cluster.nameserver, False))).lines
    assert head == ["key", "topic", "queue", "state", "since", "waiting", "attempts", "error"]
    assert (three[:4], three[5:]) == (["k3", TOPIC, "broker-a:0", "parked"], ["11", "3", "RuntimeError:", "card", "declined"])
    assert (seven[0], seven[5]) == ("k7", "11")
    shown = (await run(_list(GROUP, TOPIC, cluster.nameserver, True))).json
    assert (shown["cut"], shown["failed"]) == ([], {})
    (row, _) = shown["keys"]
    assert row.pop("since").endswith("Z")
    assert row == {
        "group": GROUP,
        "key": "k3",
        "topic": TOPIC,
        "broker": "broker-a",
        "queue_id": 0,
        "state": "parked",
        "next_offset": 3,
        "attempts": 3,
        "error": "RuntimeError: card declined",
        "waiting": 11,
        "waiting_complete": True,
    }


@one_broker
async def test_ls_without_a_group_lists_all_groups(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    assert (await run(_list(None, None, cluster.nameserver, False))).out == "no keys are parked\n"
    one, other = Group(cluster), Group(cluster, "audit", poison={"k1"})
    await cluster.start("other", other.member)
    await one.park(20, 10, "k3")
    await until_parked(other, "k1")
    head, *rows = (await run(_list(None, None, cluster.nameserver, False))).lines
    assert head[:2] == ["group", "key"]
    assert [row[:2] for row in rows] == [["audit", "k1"], [GROUP, "k3"]]


@one_broker
async def test_ls_counts_up_to_a_limit(lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(100, 10, "k3", "k7")
    monkeypatch.setattr(parked, "PAGE_COUNT", 4)
    for name, limit, counts in (("COUNTED_MAX", 7, ["4+", "4+"]), ("PULLS_MAX", 1, ["2+", "2+"])):
        with monkeypatch.context() as patch:
            patch.setattr(parked, name, limit)
            _, *rows = (await run(_list(GROUP, None, cluster.nameserver, False))).lines
            assert [row[5] for row in rows] == counts
            shown = (await run(_list(GROUP, None, cluster.nameserver, True))).json
            assert [each["waiting_complete"] for each in shown["keys"]] == [False, False]


@one_broker
async def test_ls_of_what_is_not_parked_or_not_known(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(10, 10)
    for as_json in (False, True):
        ended = await run(_list("nothing", None, cluster.nameserver, as_json))
        assert ended == ("", "no broker knows group nothing; run `lockstep group list` to list the known groups", "")
    assert (await run(_list(GROUP, None, cluster.nameserver, False))) == (f"no keys of group {GROUP} are parked\n", "", "")
    assert (await run(_list(GROUP, None, cluster.nameserver, True))).json == {"keys": [], "cut": [], "unlisted": [], "failed": {}}
    assert "no topic 'nothing'" in (await run(_list(GROUP, "nothing", cluster.nameserver, False))).error


async def test_ls_without_one_broker_shows_the_keys_of_the_others(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    keys = [f"k{number}" for number in range(10)]
    await group.park(40, 10, *keys)
    at_b = {each.row.key for each in await group.parked() if each.broker.name == "broker-b"}
    assert 0 < len(at_b) < 10
    await cluster.kill("broker-a")
    ended = await run(_list(GROUP, None, cluster.nameserver, True))
    assert {row["key"] for row in ended.json["keys"]} == at_b
    assert list(ended.json["failed"]) == ["broker-a"]
    assert ended.error.startswith("the result is incomplete: broker broker-a: ")


@one_broker
async def test_ls_reports_a_queue_that_cannot_be_read_and_a_list_that_is_cut(
    lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(20, 10, "k3")
    real = AdminClient.control_parked

    async def cut(self: AdminClient, broker: BrokerAddress, body: ParkControlBody) -> ParkControlReply:
        return ParkControlReply((await real(self, broker, body)).keys, more=True)

    async def unreadable(self: AdminClient, *args: object, **options: object) -> tuple[bytes, int]:
        raise ConfigError("the disk is broken")

    monkeypatch.setattr(AdminClient, "control_parked", cut)
    monkeypatch.setattr(AdminClient, "pull", unreadable)
    ended = await run(_list(GROUP, None, cluster.nameserver, False))
    _, row, note = ended.lines
    assert (row[0], row[5]) == ("k3", "-")
    assert " ".join(note) == "broker broker-a has more keys, which are not listed. Name a group, or a topic with --topic"
    assert "broker broker-a: the disk is broken" in ended.error
    shown = (await run(_list(GROUP, None, cluster.nameserver, True))).json
    assert (shown["keys"][0]["waiting"], shown["cut"], shown["unlisted"]) == (None, ["broker-a"], [])


@one_broker
async def test_keys_for_which_a_response_has_no_place_are_counted(
    lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    other = Group(cluster, "audit", poison={"k1"})
    await cluster.start("other", other.member)
    await Group(cluster).park(100, 10, "k3", "k5", "k7")
    await until_parked(other, "k1")
    monkeypatch.setattr("lockstep.broker.groups.parking.LISTED_MAX", 2)
    ended = await run(_list(GROUP, None, cluster.nameserver, False))
    assert [row[0] for row in ended.lines[1:3]] == ["k3", "k5"]
    more = f"1 more keys, which are not listed: 1 of group {GROUP} in {TOPIC}:0"
    assert ended.out.splitlines()[3] == f"broker broker-a has {more}. Name a group, or a topic with --topic"
    shown = (await run(_list(None, None, cluster.nameserver, True))).json
    counts = {each["group"]: each["count"] for each in shown["unlisted"]}
    listed = [each["group"] for each in shown["keys"]]
    assert sum(counts.values()) == 2
    assert {group: counts.get(group, 0) + listed.count(group) for group in ("audit", GROUP)} == {"audit": 1, GROUP: 3}
    forgotten = await count_forgotten(AdminClient(Host.current(), cluster.nameserver), topic=TOPIC)
    assert (forgotten.keys, forgotten.groups, forgotten.waiting.complete) == (4, ("audit", GROUP), False)


# ----------------------------------------------------------------------------------------------------------- what a deletion forgets


@one_broker
async def test_deletion_of_a_topic_says_what_is_forgotten(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(100, 10, "k3", "k7")
    first, second = (await run(carry_out(TopicDelete(topic=TOPIC), cluster.nameserver))).out.splitlines()
    assert first == f"2 parked keys of {GROUP} are forgotten, with 20 messages that wait for them"
    assert second.startswith(f"topic {TOPIC} is deleted: ")
    await cluster.create_topic(f"{TOPIC}-2", queues=1)
    shown = (await run(carry_out(TopicDelete(topic=f"{TOPIC}-2"), cluster.nameserver, as_json=True))).json
    assert (shown["parked_keys"], shown["waiting"], shown["waiting_complete"]) == (0, 0, True)


@one_broker
async def test_deletion_of_a_group_says_what_is_forgotten(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(100, 10, "k3", "k7")
    await cluster.stop("worker")
    ended = await run(carry_out(GroupDelete(group=GROUP), cluster.nameserver))
    first, second, *_ = ended.out.splitlines()
    assert first == f"2 parked keys of {GROUP} are forgotten, with 20 messages that wait for them"
    assert second == f"group {GROUP} is deleted at broker-a: its progress and its settings"
    assert ended.error == ""


async def test_deletion_names_brokers_that_do_not_say_what_is_forgotten(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await cluster.kill("broker-b")
    found = await count_forgotten(AdminClient(Host.current(), cluster.nameserver), topic=TOPIC)
    (sentence,) = found.sentences
    assert sentence.startswith("broker broker-b does not say what is parked there: ")
    assert found.as_json() == {"parked_keys": 0, "waiting": 0, "waiting_complete": False}


# --------------------------------------------------------------------------------------------------------------------- show


@one_broker
async def test_show_prints_the_waiting_messages_in_order(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(50, 10, "k3")
    first, head, *rows = (await run(_show(GROUP, "k3", None, 20, cluster.nameserver, False))).lines
    assert " ".join(first[:10]) == f"key 'k3' of group {GROUP} in {TOPIC} broker-a:0: parked, set"
    assert " ".join(first[-9:]) == "failed calls, the last one with RuntimeError: card declined"
    assert head == ["offset", "id", "stored", "at", "tag", "keys", "body"]
    assert [(row[0], row[3], row[5]) for row in rows] == [(f"{n}", "t", f"{n}") for n in range(3, 50, 10)]
    cut = (await run(_show(GROUP, "k3", TOPIC, 2, cluster.nameserver, False))).lines
    assert (len(cut), " ".join(cut[-1])) == (5, "the first 2, there may be more; pass --limit N to show more")
    shown = (await run(_show(GROUP, "k3", None, 5, cluster.nameserver, True))).json
    (queue,) = shown["queues"]
    assert (shown["group"], shown["key"], shown["failed"]) == (GROUP, "k3", {})
    assert (queue["broker"], queue["queue_id"], queue["next_offset"], queue["complete"]) == ("broker-a", 0, 3, True)
    assert [message["body"] for message in queue["messages"]] == ["3", "13", "23", "33", "43"]
    assert {message["sharding_key"] for message in queue["messages"]} == {"k3"}


@one_broker
async def test_show_reads_page_after_page(lockstep_cluster: TestCluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(50, 10, "k3")
    monkeypatch.setattr(parked, "PAGE_COUNT", 2)
    for limit in (3, 4, 5):
        (queue,) = (await run(_show(GROUP, "k3", None, limit, cluster.nameserver, True))).json["queues"]
        assert [message["body"] for message in queue["messages"]] == ["3", "13", "23", "33", "43"][:limit]
        assert queue["complete"] is (limit == 5)


async def test_show_of_a_key_that_is_not_parked_names_the_next_step(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(20, 10, "k3")
    said = f"key 'k4' of group {GROUP} is not parked; run `lockstep park ls {GROUP}` to list the parked keys"
    assert await run(_show(GROUP, "k4", None, 20, cluster.nameserver, False)) == ("", said, "")
    assert "no broker knows group nothing" in (await run(_show("nothing", "k4", None, 20, cluster.nameserver, False))).error
    await cluster.create_topic("bills", queues=1)
    assert f"key 'k3' of group {GROUP} is not parked in bills" in (
        (await run(_show(GROUP, "k3", "bills", 20, cluster.nameserver, False))).error
    )
    await cluster.kill("broker-b")
    assert f"key 'k4' of group {GROUP} is not parked at the brokers that responded; the result is incomplete: broker broker-b: " in (
        (await run(_show(GROUP, "k4", None, 20, cluster.nameserver, False))).error
    )


@one_broker
async def test_parked_messages_are_shown_while_the_group_may_not_consume(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(20, 10, "k3")
    admin = AdminClient(Host.current(), cluster.nameserver)
    await admin.configure(await broker_named(admin, "broker-a"), GroupSettings(GROUP, consume_enable=False))
    assert (await run(_list(GROUP, None, cluster.nameserver, False))).lines[1][5] == "2"
    assert (await run(_show(GROUP, "k3", None, 20, cluster.nameserver, False))).lines[2][5] == "3"
    ended = await run(replay(cluster, "k3"))
    assert ended.out.splitlines()[-1] == f"group {GROUP} may not consume: allow it with `lockstep group update {GROUP} --consume`"


# ------------------------------------------------------------------------------------------------------------------- replay


@one_broker
async def test_replay_brings_a_key_back_and_says_how_to_follow_it(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(50, 10, "k3", "k7")
    group.poison.clear()
    ended = await run(replay(cluster, "k3"))
    assert ended == (
        "topic   queue       keys\n"
        "orders  broker-a:0     1\n"
        "group billing: keys to replay: 1, being replayed already: 0; the owners of their queues do it, and `lockstep park ls billing` "
        "shows what is left\n",
        "",
        "",
    )
    await until_parked(group, "k7")
    assert group.of_key("k3") == list(range(3, 50, 10))
    assert not group.of_key("k7")
    assert (await run(replay(cluster, None, topic=TOPIC))).error == ""
    await until_parked(group)
    assert group.of_key("k7") == list(range(7, 50, 10))


@one_broker
async def test_replay_waits_for_a_member_and_says_so(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(50, 10, "k3", "k7")
    await cluster.stop("worker")
    group.poison.clear()
    hint = f'no member of group {GROUP} that replays keys is connected: start one with on_exhausted="park"'
    assert (await run(replay(cluster, "k3"))).out.splitlines()[-1] == hint
    shown = (await run(replay(cluster, None, as_json=True))).json
    assert (shown["group"], shown["action"], shown["cut"], shown["failed"]) == (GROUP, "replay", [], {})
    assert shown["waits_for"] == [hint]
    assert [(each["key"], each["state_before"], each["state"]) for each in shown["keys"]] == [
        ("k3", "replaying", "replaying"),
        ("k7", "parked", "replaying"),
    ]
    assert "keys to replay: 2, being replayed already: 2;" in (await run(replay(cluster, None))).out
    assert [row[3] for row in (await run(_list(GROUP, None, cluster.nameserver, False))).lines[1:]] == ["replaying"] * 2
    await cluster.restart("worker")
    await until_parked(group)
    assert (group.of_key("k3"), group.of_key("k7")) == (list(range(3, 50, 10)), list(range(7, 50, 10)))


@one_broker
async def test_replay_of_what_is_not_parked(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(10, 10)
    said = f"key 'k4' of group {GROUP} is not parked; run `lockstep park ls {GROUP}` to list the parked keys"
    assert await run(replay(cluster, "k4")) == ("", said, "")
    assert await run(replay(cluster, None)) == (f"no keys of group {GROUP} are parked\n", "", "")
    assert (await run(replay(cluster, None, as_json=True))).json["keys"] == []
    for key in ("k4", None):
        assert "no broker knows group nothing" in (await run(replay(cluster, key, group="nothing"))).error


@one_broker
async def test_replay_is_refused_readably_while_the_members_would_not_do_it(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    await Group(cluster).park(20, 10, "k3")
    await cluster.stop("worker")
    await cluster.start("blocking", Group(cluster, on_exhausted="block").member)
    await cluster.settled(GROUP)
    ended = await run(replay(cluster, "k3"))
    assert ended.out == ""
    assert ended.error.startswith(
        "some keys of group billing may not be replayed: broker broker-a: PARK_REFUSED: the members of group billing do not replay keys: "
    )
    assert ended.error.endswith("When that is solved, run `lockstep park replay billing k3` again")
    shown = (await run(replay(cluster, None, topic=TOPIC, as_json=True))).json
    assert (shown["keys"], shown["waits_for"], list(shown["failed"])) == ([], [], ["broker-a"])


async def test_change_without_one_broker_is_made_at_the_others(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(40, 10, *(f"k{number}" for number in range(10)))
    at_b = {each.row.key for each in await group.parked() if each.broker.name == "broker-b"}
    await cluster.kill("broker-a")
    replayed = ParkReplay(group=GROUP, every=True, topic=TOPIC)
    dropped = ParkDrop(group=GROUP, every=True, topic=TOPIC, to=DropTarget.DLQ)
    for change, options in ((replayed, f"replay {GROUP} --all"), (dropped, f"drop {GROUP} --all --to dlq")):
        ended = await run(carry_out(change, cluster.nameserver, as_json=True))
        assert {each["key"] for each in ended.json["keys"]} == at_b
        assert ended.error.startswith(f"some keys of group {GROUP} may not be ")
        assert ended.error.endswith(f"run `lockstep park {options} --topic {TOPIC}` again")


# --------------------------------------------------------------------------------------------------------------------- drop


@one_broker
async def test_dropped_messages_are_in_the_dead_letter_topic(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(50, 10, "k3", "k7")
    await cluster.stop("worker")
    ended = await run(drop(cluster, "k3"))
    assert ended == (
        "topic   queue       keys\n"
        "orders  broker-a:0     1\n"
        "group billing: keys to drop: 1, being dropped already: 0; their messages go to %DLQ%billing, and `lockstep park ls billing` shows "
        "what is left\n",
        "",
        "",
    )
    await until_parked(group, "k7")
    admin = AdminClient(Host.current(), cluster.nameserver)
    broker = await broker_named(admin, "broker-a")
    assert [each.max_offset for each in await admin.offsets(broker, dlq_topic(GROUP))] == [5]
    assert [each["key"] for each in (await run(drop(cluster, None, as_json=True))).json["keys"]] == ["k7"]
    await until_parked(group)
    assert [each.max_offset for each in await admin.offsets(broker, dlq_topic(GROUP))] == [10]


@one_broker
async def test_key_that_is_being_dropped_is_not_replayed(lockstep_cluster: TestCluster, run: Run) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(50, 10, "k3", "k7")
    group.poison.clear()
    await cluster.pause("worker")  # only the owner of the queue ends the drop
    await run(drop(cluster, "k3"))
    said = (await run(replay(cluster, None))).out.splitlines()
    assert said[2].startswith("group billing: keys to replay: 1, being replayed already: 0;")
    assert said[3] == "keys that are being dropped, and are not replayed: 1"
    ended = await run(replay(cluster, "k3"))
    assert "PARK_REFUSED: key 'k3' of group billing in orders queue 0 is being dropped already" in ended.error
    listed = (await run(_list(GROUP, None, cluster.nameserver, False))).lines[1:]
    assert [(row[0], row[3], row[5]) for row in listed] == [("k7", "replaying", "5"), ("k3", "dropping", "0")]
    await cluster.resume("worker")
    await until_parked(group)
    assert not group.of_key("k3")
    assert group.of_key("k7") == list(range(7, 50, 10))


# ---------------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "billing"), "name a KEY, or use --all for every parked key of the group"),
        (("replay", "billing", "k3", "--all"), "name a KEY, or use --all"),
        (("drop", "billing", "--to", "dlq"), "name a KEY, or use --all"),
        (("drop", "billing", "k3"), "Missing option '--to'"),
        (("drop", "billing", "--all"), "Missing option '--to'"),
        (("drop", "billing", "k3", "--to", "nowhere"), "'nowhere' is not"),
        (("show", "billing"), "Missing argument 'KEY'"),
        (("show", "billing", ""), "key '' has 0 bytes: parked keys have 1 to 1024"),
        (("replay", "billing", "k" * 1_025), "has 1025 bytes: parked keys have 1 to 1024"),
        (("show", "billing", "\udcff"), "is not UTF-8: no such key can be parked"),
        (("ls", "no good"), "no good"),
        (("ls", "--topic", "no good"), "no good"),
    ],
)
def test_arguments_that_are_never_valid_are_refused(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(("park", *arguments, "--nameserver", "127.0.0.1:1"))
    assert ended.value.code == 2
    assert words in " ".join(capsys.readouterr().err.replace("│", "").split())


# --------------------------------------------------------------------------------------------------- what a change waits for

QUEUE = MessageQueue(TOPIC, "broker-a", 0)
NOBODY = f'no member of group {GROUP} that replays keys is connected: start one with on_exhausted="park"'


def status(*members: MemberStatus, lease_ms: int | None = None, consume: bool = True) -> GroupStatus:
    contract = ConsumerGroup(GROUP, (Subscription(TOPIC),), ordered=True)
    queue = QueueStatus(TOPIC, 0, "java", 1, 1, 5, 9, 0, None, lease_ms, parked=1, disk_pulls=0)
    return GroupStatus(GROUP, ListVersion(1, 1), contract, members, (queue,), 0, GroupSettings(GROUP, consume_enable=consume))


NATIVE = MemberStatus("python", "0123abcd", "10.0.0.9:1", True, 10)
CLASSIC = MemberStatus("java", None, "10.0.0.9:2", True, 10)
AWAY = MemberStatus("python", "0123abcd", "", False, 900)


@pytest.mark.parametrize(
    ("reported", "waits_for"),
    [
        (status(NATIVE), []),
        (status(), [NOBODY]),
        (status(AWAY), [NOBODY]),
        (status(CLASSIC), [NOBODY]),
        (status(NATIVE, consume=False), [f"group {GROUP} may not consume: allow it with `lockstep group update {GROUP} --consume`"]),
        (status(NATIVE, CLASSIC, lease_ms=900), ["orders broker-a:0 is held by java, a client of RocketMQ, which replays no keys"]),
    ],
    ids=["member", "no member", "member in its grace", "classic member", "no consumption", "queue of a classic member"],
)
def test_what_a_replay_waits_for_is_named(reported: GroupStatus, waits_for: list[str]) -> None:
    found = report(GROUP, {"broker-a": reported}, [QUEUE])
    assert replay_waits_for(found, [QUEUE]) == waits_for
    elsewhere = [line for line in waits_for if "RocketMQ" not in line]
    assert replay_waits_for(found, [MessageQueue(TOPIC, "broker-a", 1)]) == elsewhere


def test_replay_of_a_group_that_no_reached_broker_knows_waits_for_a_member() -> None:
    assert replay_waits_for(None, [QUEUE]) == ['no member that replays keys is connected: start one with on_exhausted="park"']

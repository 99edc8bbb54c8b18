"""lockstep group delete deletes a group at every broker unless it has members, and names the topics that remain."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.cli import main as cli
from lockstep.protocol.bodies import GroupSettings, GroupStatus, ListVersion, MemberStatus
from lockstep.protocol.errors import NoPermissionError
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from support.fake_broker import FakeBroker, ThreadedCluster

SETTINGS = GroupSettings("billing", consume_enable=False)


def status(*members: str) -> GroupStatus:
    reported = tuple(MemberStatus(each, None, "10.0.0.9:5555", True, 400, subscriptions=()) for each in members)
    return GroupStatus("billing", ListVersion(1, 1), None, reported, (), 0, SETTINGS)


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(*(FakeBroker(name, groups={"billing": status()}) for name in ("broker-a", "broker-b"))) as made:
        yield made


@pytest.fixture
def delete(cluster: ThreadedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCKSTEP_NAMESERVER", cluster.nameserver)

    def run(group: str, *options: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(("group", "delete", group, *options))
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def brokers_with_group(cluster: ThreadedCluster) -> list[str]:
    return [name for name, broker in cluster.brokers.items() if "billing" in broker.groups]


def test_group_is_deleted_at_every_broker_and_remaining_topics_are_named(delete: Any, cluster: ThreadedCluster) -> None:
    cluster.hold(TopicLayout("%DLQ%billing", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1, 1, 1),)))
    code, out, err = delete("billing")
    assert (code, err, brokers_with_group(cluster)) == (0, "", [])
    first, second = out.splitlines()
    assert first == "group billing is deleted at broker-a, broker-b: its progress and its settings"
    assert second == "topic %DLQ%billing and its messages are kept; run `lockstep topic delete %DLQ%billing --force` to delete them"


def test_json_output_lists_brokers_failures_and_remaining_topics(delete: Any, cluster: ThreadedCluster) -> None:
    del cluster.brokers["broker-a"].groups["billing"]
    code, out, _ = delete("billing", "--json")
    assert code == 0
    deleted = {"group": "billing", "brokers": ["broker-a", "broker-b"], "failed": {}, "topics_kept": []}
    assert json.loads(out) == {**deleted, "parked_keys": 0, "waiting": 0, "waiting_complete": True}


def test_group_with_members_is_deleted_at_no_broker_and_they_are_named(delete: Any, cluster: ThreadedCluster) -> None:
    cluster.brokers["broker-b"].groups["billing"] = status(*(f"m{number}" for number in range(9)))
    code, _, err = delete("billing")
    assert (code, brokers_with_group(cluster)) == (1, ["broker-a", "broker-b"])
    assert "nothing was deleted: group billing has 9 members: m0, m1, m2, m3, m4, m5, m6, m7 …. Stop them" in err
    assert "run `lockstep group delete billing` again" in err


def test_broker_that_rejects_is_named_with_the_next_step_and_the_others_delete(delete: Any, cluster: ThreadedCluster) -> None:
    cluster.brokers["broker-b"].refusal = NoPermissionError("it has queues that clients hold")
    code, out, err = delete("billing")
    assert (code, brokers_with_group(cluster)) == (1, ["broker-b"])
    assert "is deleted at broker-a" in out
    assert "not deleted at all brokers: broker broker-b: NO_PERMISSION: it has queues that clients hold" in err
    assert "run `lockstep group delete billing` again" in err


def test_unreachable_broker_is_named(delete: Any, cluster: ThreadedCluster) -> None:
    cluster.run(cluster.brokers["broker-b"].stop())
    code, _, err = delete("billing")
    assert (code, "broker-a" in brokers_with_group(cluster)) == (1, False)
    assert "not deleted at all brokers: broker broker-b" in err


@pytest.mark.parametrize(("group", "words"), [("nothing", "lockstep group list"), ("", "group is blank")])
def test_unknown_group_is_rejected(delete: Any, cluster: ThreadedCluster, group: str, words: str) -> None:
    code, _, err = delete(group)
    assert (code > 0, words in err, brokers_with_group(cluster)) == (True, True, ["broker-a", "broker-b"])

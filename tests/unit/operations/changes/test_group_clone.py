"""lockstep group clone | export | import: a group gets the progress of another one, or of a file."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cli.change_command import carry_out
from lockstep.cli.commands.group_progress import _export, _import
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.group_clone import GroupClone
from lockstep.operations.changes.group_reset import GroupReset
from lockstep.operations.changes.reset_plan import plan_offsets
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_progress import GroupProgress, from_json, progress_of, to_json
from lockstep.operations.groups.group_report import QueueLine
from lockstep.protocol.bodies import OffsetRange, QueueOffset, ResetBody
from lockstep.protocol.errors import ConfigError, StateError
from lockstep.protocol.topics.queue import MessageQueue
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.parked_group import GROUP, TOPIC, Group, send
from support.queue_moves import broker_named

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-b", 1)
TARGET = "audit"


def line(queue: MessageQueue, committed: int | None, *, done: tuple[int, ...] = (), parked: int | None = None) -> QueueLine:
    none: Any = None
    place = queue.topic, queue.broker_name, queue.queue_id
    return QueueLine(*place, True, none, none, none, committed, none, none, none, none, none, done=done, parked=parked)


# --------------------------------------------------------------------------------------------------------------------- pure parts


def test_progress_has_no_retry_topic_and_no_queue_without_progress() -> None:
    retry = MessageQueue("%RETRY%g", "broker-a", 0)
    lines = [
        line(QUEUE, 5, done=(7, 9, 20, 21)),
        line(OTHER, 0, parked=2),
        line(MessageQueue("others", "broker-a", 0), None),
        line(retry, 4),
    ]
    assert progress_of("g", lines) == GroupProgress("g", {QUEUE: 5, OTHER: 0}, 3, {OTHER: 2})
    assert progress_of("g", lines, "others") == GroupProgress("g", {})


@given(
    st.dictionaries(
        st.builds(MessageQueue, st.sampled_from(["a", "b-c"]), st.just("broker-a"), st.integers(0, 9)), st.integers(0, 2**63 - 1)
    )
)
def test_file_is_read_as_it_was_written(offsets: dict[MessageQueue, int]) -> None:
    assert from_json(json.dumps(to_json(GroupProgress("g", offsets), 0))) == GroupProgress("g", offsets)


ROW: dict[str, Any] = {"topic": "t", "broker": "b", "queue_id": 0, "offset": 1}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("", "it is not JSON"),
        ([], "not a file of `lockstep group export`"),
        ({"format": 2, "group": "g", "queues": []}, "not a file of"),
        ({"format": 1, "group": "g"}, "not a file of"),
        ({"format": 1, "queues": []}, "has no valid group"),
        ({"format": 1, "group": "a b", "queues": []}, "has no valid group"),
        ({"format": 1, "group": "g", "queues": [3]}, "queue 0 of the file is not an object"),
        ({"format": 1, "group": "g", "queues": [ROW, ROW]}, "is in it twice"),
        ({"format": 1, "group": "g", "queues": [{**ROW, "topic": 7}]}, "queue 0 of the file: topic is a int"),
        ({"format": 1, "group": "g", "queues": [{**ROW, "broker": ""}]}, "queue 0 of the file: broker name is blank"),
        ({"format": 1, "group": "g", "queues": [{**ROW, "offset": -1}]}, "offset is '-1', expected a number"),
        ({"format": 1, "group": "g", "queues": [{**ROW, "offset": True}]}, "offset is 'True', expected"),
        ({"format": 1, "group": "g", "queues": [{**ROW, "queue_id": "0"}]}, "queue_id is '0', expected"),
        ({"format": 1, "group": "g", "queues": [{**ROW, "offset": 2**63}]}, "expected a number from 0 to"),
    ],
)
def test_file_that_is_no_export_is_refused(document: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_json(document if isinstance(document, str) else json.dumps(document))


def test_offsets_outside_of_a_queue_become_the_nearest_ones() -> None:
    ranges = {QUEUE: OffsetRange(0, 10, 20), OTHER: OffsetRange(1, 0, 5)}
    low, high = plan_offsets({QUEUE: 3, OTHER: 9}, [line(QUEUE, 15, parked=1)], ranges)
    assert (low.before, low.after, low.asked, low.parked) == (15, 10, 3, 1)
    assert (high.before, high.after, high.asked, high.parked) == (None, 5, 9, 0)
    (inside,) = plan_offsets({QUEUE: 20}, [], ranges)
    assert (inside.after, inside.asked) == (20, None)
    with pytest.raises(StateError):
        plan_offsets({QUEUE: 3}, [], {})


# --------------------------------------------------------------------------------------------------------------------- in a cluster


def clone(cluster: TestCluster, source: str = GROUP, target: str = TARGET, **options: Any) -> Any:
    shown = {name: options.pop(name, default) for name, default in (("dry_run", False), ("as_json", True))}
    return carry_out(GroupClone(source=source, target=target, **options), cluster.nameserver, **shown)


async def set_progress(cluster: TestCluster, group: str, offsets: Sequence[int], topic: str = TOPIC) -> None:
    """Set the progress of the queue that each of the brokers has."""
    admin = AdminClient(Host.current(), cluster.nameserver)
    for name, offset in zip(cluster.brokers, offsets, strict=True):
        await admin.reset(await broker_named(admin, name), ResetBody(group, topic, (QueueOffset(0, offset),)))


async def committed(cluster: TestCluster, group: str) -> dict[tuple[str, str], int | None]:
    found = await cluster.group_status(group)
    return {} if found is None else {(each.topic, each.broker): each.committed_offset for each in found.queues}


async def started(cluster: TestCluster) -> None:
    """Create two topics with a queue at each broker, and store messages."""
    for topic in (TOPIC, "others"):
        await cluster.create_topic(topic, queues=1)
    await send(cluster, 40, 10)


@pytest.mark.lockstep(brokers=2)
async def test_clone_gives_the_target_the_offsets_of_the_source(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    await set_progress(cluster, GROUP, [3, 5])
    await set_progress(cluster, GROUP, [0, 0], "others")
    await clone(cluster, dry_run=True)
    planned = json.loads(capsys.readouterr().out)
    assert (planned["done"], await committed(cluster, TARGET)) == (False, {})
    await clone(cluster, topic=TOPIC)
    done = json.loads(capsys.readouterr().out)
    assert [(each["before"], each["after"]) for each in done["queues"]] == [(None, 3), (None, 5)]
    assert await committed(cluster, TARGET) == {(TOPIC, "broker-a"): 3, (TOPIC, "broker-b"): 5}
    assert done["undo"] == [], "there was no progress"
    await set_progress(cluster, GROUP, [4, 1])
    await clone(cluster, dry_run=True, as_json=False)
    assert "undo: " not in capsys.readouterr().out
    await clone(cluster, as_json=False)
    assert await committed(cluster, TARGET) == await committed(cluster, GROUP)
    printed = [line.removeprefix("undo: ") for line in capsys.readouterr().out.splitlines()]
    commands = [line for line in printed if line.startswith("lockstep ")]
    assert commands == [
        f"lockstep group reset-offset {TARGET} --topic {TOPIC} --queue broker-{name}:0 --to {offset}"
        for name, offset in (("a", 3), ("b", 5))
    ]
    assert f"queues in which the group had no progress: 2; only `lockstep group delete {TARGET}` takes that back" in printed
    for command in commands:
        _, _, _, group, _, topic, _, queue, _, offset = shlex.split(command)
        await carry_out(GroupReset(group=group, to=offset, topic=topic, queue=(queue,)), cluster.nameserver)
    assert (await committed(cluster, TARGET))[TOPIC, "broker-a"] == 3
    assert (await committed(cluster, TARGET))[TOPIC, "broker-b"] == 5
    capsys.readouterr()
    await clone(cluster)
    capsys.readouterr()
    await clone(cluster, as_json=False)
    assert capsys.readouterr().out.splitlines()[-1] == f"group {TARGET}: messages to consume again: 0, messages to skip: 0"


@pytest.mark.lockstep(brokers=2)
async def test_export_and_import_bring_progress_back(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    await set_progress(cluster, GROUP, [3, 5])
    await _export(GROUP, cluster.nameserver)
    file = tmp_path / "group.json"
    file.write_text(capsys.readouterr().out)
    assert [(each["broker"], each["offset"]) for each in json.loads(file.read_text())["queues"]] == [("broker-a", 3), ("broker-b", 5)]
    await set_progress(cluster, GROUP, [4, 1])
    await _import(str(file), False, True, cluster.nameserver, True)
    assert json.loads(capsys.readouterr().out)["done"] is False
    assert set((await committed(cluster, GROUP)).values()) == {4, 1}
    await _import(str(file), False, False, cluster.nameserver, True)
    assert await committed(cluster, GROUP) == {(TOPIC, "broker-a"): 3, (TOPIC, "broker-b"): 5}
    document = json.loads(file.read_text())
    document["queues"][0]["offset"] = 1_000_000
    file.write_text(json.dumps(document))
    capsys.readouterr()
    await _import(str(file), False, False, cluster.nameserver, True)
    printed = capsys.readouterr()
    (clipped, _) = json.loads(printed.out)["queues"]
    assert clipped["asked"] == 1_000_000 > clipped["after"]
    assert f"became the nearest ones that they hold ({TOPIC}@broker-a:0: 1000000 became {clipped['after']})" in printed.err
    document["queues"][0]["queue_id"] = 7
    file.write_text(json.dumps(document))
    with pytest.raises(OperationError, match="nothing was changed: 1 of the 2 queues do not exist here"):
        await _import(str(file), False, False, cluster.nameserver, True)


@pytest.mark.lockstep(brokers=1)
async def test_parked_keys_of_the_source_are_named_and_those_of_the_target_are_kept(
    lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic(TOPIC, queues=1)
    group = Group(cluster)
    await group.park(40, 10, "k3")
    await clone(cluster)
    printed = capsys.readouterr()
    assert (
        f"keys of group {GROUP} are parked: k3 ({TOPIC} broker-a:0). Their messages below the committed offsets do not come" in printed.err
    )
    await _export(GROUP, cluster.nameserver)
    assert "k3" in capsys.readouterr().err
    before = await committed(cluster, GROUP)
    await set_progress(cluster, TARGET, [7])
    with pytest.raises(OperationError, match=f"keys of group {GROUP} are parked"):
        await clone(cluster, TARGET, GROUP)
    assert await committed(cluster, GROUP) == before
    await cluster.stop("worker")
    await clone(cluster, TARGET, GROUP, drop_parked=True)
    assert (set((await committed(cluster, GROUP)).values()), await group.parked()) == ({7}, ())


@pytest.mark.lockstep(brokers=2)
async def test_nothing_is_changed_if_a_broker_does_not_respond(lockstep_cluster: TestCluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    await set_progress(cluster, GROUP, [3, 5])
    await cluster.kill("broker-b")
    with pytest.raises(OperationError, match="broker broker-b"):
        await clone(cluster)
    with pytest.raises(OperationError, match="broker broker-b"):
        await _export(GROUP, cluster.nameserver)
    assert (capsys.readouterr().out, await committed(cluster, TARGET)) == ("", {})


@pytest.mark.lockstep(brokers=1)
async def test_source_must_have_progress(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await started(cluster)
    with pytest.raises(OperationError, match=f"no broker knows group {GROUP}"):
        await clone(cluster)
    await set_progress(cluster, GROUP, [3])
    with pytest.raises(OperationError, match=f"group {GROUP} has no progress in others"):
        await clone(cluster, topic="others")
    with pytest.raises(ConfigError, match="can't be cloned to itself"):
        await clone(cluster, GROUP, GROUP)

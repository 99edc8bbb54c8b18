"""`lockstep message show MSGID --track` of one message, with groups in every state."""

import json
from pathlib import Path

import pytest

from lockstep.operations.messages.message_track import MEANINGS, TrackType
from support.cluster import Cluster

pytestmark = pytest.mark.e2e


async def concurrent(cluster: Cluster, group: str) -> None:
    command = ["-m", "support.worker_concurrent", "--nameserver", cluster.nameservers, "--group", group]
    await cluster.start(group, [*command, "--file", str(cluster.folder / f"{group}.lines")], "worker.ready")
    await cluster.until_lag(0, group)


async def member(cluster: Cluster, mode: str, *options: str) -> None:
    """Start a group that has the name of its mode; return when it has handled the message."""
    path = Path(cluster.folder / f"{mode}.seen")
    command = ["-m", "support.worker_member", mode, "--nameserver", cluster.nameservers, "--group", mode, "--file", str(path), *options]
    await cluster.start(mode, command, "worker.ready")
    await cluster.until(f"{mode} has it", lambda: path.exists() and path.read_text())


async def test_every_group_is_listed_with_its_track_and_meaning(cluster: Cluster) -> None:
    await cluster.servers(queues=1, brokers=("broker-a",))
    body = '{"order":0,"step":0}'
    message_id = json.loads(await cluster.command("send", "orders", body, "--tag", "even", "--json"))["offset_message_id"]
    await concurrent(cluster, "handles")
    await concurrent(cluster, "left")
    await cluster.stop("left")
    await member(cluster, "poll")
    await member(cluster, "broadcast", "--offset-dir", str(cluster.folder / "offsets"))
    broken = cluster.folder / "broken"
    broken.touch()
    await cluster.consumer("failing", "--group", "failing", "--broken", str(broken))
    await cluster.until_heard("failing", "listener.failed", attempt=1)
    await cluster.consumer("filtering", "--group", "filtering", "--tags", "odd")
    await cluster.until_lag(0, "filtering")
    shown = json.loads(await cluster.command("message", "show", message_id, "--track", "--json"))
    assert shown["body"] == body
    tracks = {track["group"]: track for track in shown["track"]}
    assert {group: track["track"] for group, track in tracks.items()} == {
        "broadcast": "CONSUME_BROADCASTING",
        "failing": "NOT_CONSUME_YET",
        "filtering": "CONSUMED_BUT_FILTERED",
        "handles": "CONSUMED",
        "left": "CONSUMED",
        "poll": "PULL",
    }
    assert {group for group, track in tracks.items() if not track["online"]} == {"left"}
    left = tracks.pop("left")
    assert left["meaning"] == f"{MEANINGS[TrackType.CONSUMED]}; no member of the group is connected"
    assert all(track["meaning"] == MEANINGS[TrackType(track["track"])] for track in tracks.values())
    assert (tracks["failing"]["committed_offset"], tracks["handles"]["committed_offset"]) == (0, 1)
    broken.unlink()

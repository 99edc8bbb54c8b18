"""A broker process on a store that was damaged while it was stopped: it continues with the intact data, or it does not start (store.md).

One damage of each kind; every position, torn write and lost sync is tested on files in memory (unit/broker/store).
"""

import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lockstep.protocol.bodies import BrokerStatus, LockVerdict
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from support.background import Background, background
from support.damage import Damage
from support.native import Member, Native, Stream, native
from support.processes import run_program

pytestmark = pytest.mark.e2e

BODY_BYTES = 1_000
FRAME = 10


def command(store: Path, *options: str) -> tuple[str, ...]:
    return "lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(store), "--segment-mib", "1", *options


@contextmanager
def serving(store: Path, *options: str) -> Iterator[Background]:
    with background(store.parent, "broker", "-m", *command(store, *options), ready="broker.started") as broker:
        yield broker


@asynccontextmanager
async def served(store: Path, *options: str) -> AsyncIterator[tuple[Background, Native]]:
    """Start a broker and connect to it; kill it at the end unless the test has stopped it."""
    with serving(store, *options) as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            yield broker, client


@dataclass
class SentFrames:
    """The acknowledged frames, and the position of each in the log."""

    stream: Stream = field(default_factory=lambda: Stream("orders"))
    bodies: list[bytes] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)

    async def send(self, client: Native, count: int) -> None:
        """Send `count` more frames."""
        for _ in range(count):
            bodies = [b"%06d" % (len(self.bodies) + i) + bytes(BODY_BYTES) for i in range(FRAME)]
            response = await client.done(RequestCode.SEND_RECORDS, *self.stream.frame(*bodies))
            self.frames.append(response.fields["physicalOffset"])
            self.bodies += bodies

    def cut(self, frames: int) -> None:
        """Only the first `count` frames survived; the producer continues from there, as after a request without a response."""
        stream = Stream("orders")
        for number in range(frames):
            stream.frame(*self.bodies[number * FRAME : (number + 1) * FRAME])
        self.stream, self.bodies, self.frames = stream, self.bodies[: frames * FRAME], self.frames[:frames]


async def run_broker(store: Path, frames: int, *, killed: bool = True) -> tuple[SentFrames, Damage]:
    """Run a broker that accepts `count` frames, and end it."""
    life = SentFrames()
    async with served(store) as (broker, client):
        await client.create("orders")
        await life.send(client, frames)
        if not killed:
            assert broker.stop() == 0
    return life, Damage(store)


async def check_continues(store: Path, life: SentFrames, *options: str) -> dict[str, object]:
    """Start it; check that it has exactly the expected frames, accepts more, and has those after another kill. Return its started event."""
    async with served(store, *options) as (broker, client):
        started = broker.started("broker.started")
        assert await client.everything("orders") == life.bodies
        await life.send(client, 3)
        assert await client.everything("orders") == life.bodies
    async with served(store) as (broker, client):
        assert await client.everything("orders") == life.bodies
        assert broker.stop() == 0
    return started


def check_start_fails(store: Path, position: int) -> str:
    """Check for exit 5 and one line that names the position and both next steps."""
    ended = run_program(*command(store))
    assert (ended.returncode, ended.stderr.count("\n")) == (5, 1), (ended.returncode, ended.stderr)
    assert f"log position {position}: " in ended.stderr
    assert "Restore the store, or start with --cut-corrupt" in ended.stderr
    return ended.stderr


# ------------------------------------------------------------------------------------------------------------ the unsynced tail


async def test_torn_frame_is_cut_and_can_be_sent_again(tmp_path: Path) -> None:
    life, damage = await run_broker(tmp_path / "s", 10)
    damage.write_synced_position(life.frames[8])
    damage.zero(life.frames[9] + 5_000)
    life.cut(9)
    started = await check_continues(tmp_path / "s", life)
    assert started["clean"] is False
    assert 0 < int(str(started["cut_bytes"])) <= 5_000


async def test_unsynced_hole_cuts_the_intact_records_after_it(tmp_path: Path) -> None:
    """Pages reach the disk in any order. The cut part is zeroed, or its records would be found again after new ones."""
    life, damage = await run_broker(tmp_path / "s", 40)
    damage.write_synced_position(life.frames[10])
    damage.zero(life.frames[12] + 100, 4_096)
    end = life.frames[39]
    assert damage.record(end).body == life.bodies[390]
    life.cut(12)
    started = await check_continues(tmp_path / "s", life)
    assert int(str(started["cut_bytes"])) > 27 * FRAME * BODY_BYTES
    assert damage.read(end, 10_000) == bytes(10_000)


async def test_garbage_after_the_last_record_is_cut(tmp_path: Path) -> None:
    life, damage = await run_broker(tmp_path / "s", 5)
    position = damage.record(life.frames[4]).physical_offset
    end = position + (life.frames[4] - life.frames[3])
    damage.write(end, b"\xde\xad\xbe\xef" * 3_000)
    await check_continues(tmp_path / "s", life)


async def test_unsynced_segment_that_was_never_written_is_cut(tmp_path: Path) -> None:
    life, damage = await run_broker(tmp_path / "s", 150)
    assert len(damage.segments) == 2
    second = int(damage.segments[1].name)
    kept = sum(start < second for start in life.frames)
    damage.write_synced_position(life.frames[kept - 1])
    damage.zero(second)
    life.cut(kept)
    await check_continues(tmp_path / "s", life)


# --------------------------------------------------------------------------------------------------- below the synced length


@pytest.mark.parametrize("at", [21, 300, 1_090])
async def test_flipped_bit_below_the_synced_length_fails_the_start_unless_cut_corrupt(tmp_path: Path, at: int) -> None:
    """The bit is in the queue offset, the body or the properties of a record."""
    life, damage = await run_broker(tmp_path / "s", 10)
    damage.write_synced_position(life.frames[9])
    damage.flip(life.frames[4] + at, 3)
    before = damage.segments[0].read_bytes()
    words = check_start_fails(tmp_path / "s", life.frames[4])
    assert f"and {life.frames[9]} bytes had been synced" in words
    assert damage.segments[0].read_bytes() == before, "a start that stops changes nothing"
    whole = [body for offset, body in enumerate(life.bodies) if offset != 40]
    async with served(tmp_path / "s", "--cut-corrupt") as (broker, client):
        assert await client.reported("orders") == (whole, [40])
        (said,) = broker.find("store.set_aside")
        assert (said["lost_messages"], said["lost_queues"], said["lost_offsets"]) == (1, 1, ["orders:0 40..40"])
    async with served(tmp_path / "s") as (broker, client):
        assert await client.reported("orders") == (whole, [40])
        assert broker.stop() == 0


async def test_missing_synced_tail_fails_the_start(tmp_path: Path) -> None:
    life, damage = await run_broker(tmp_path / "s", 10)
    damage.write_synced_position(life.frames[9])
    damage.zero(life.frames[6])
    assert "nothing is there" in check_start_fails(tmp_path / "s", life.frames[6])
    life.cut(6)
    await check_continues(tmp_path / "s", life, "--cut-corrupt")


async def test_damage_below_the_snapshot_is_reported_as_a_gap_and_the_rest_is_served(tmp_path: Path) -> None:
    """A flipped bit and 4 KiB of zeros in a part of the log that is not read at the start."""
    life, damage = await run_broker(tmp_path / "s", 150, killed=False)
    damage.flip(life.frames[4] + 300)
    damage.zero(life.frames[20] + 100, 4_096)
    zeroed = [200, 201, 202, 203]
    whole = [body for offset, body in enumerate(life.bodies) if offset not in (40, *zeroed)]
    for _ in range(2):
        async with served(tmp_path / "s") as (broker, client):
            assert await client.reported("orders") == (whole, [40, *zeroed])
            assert broker.stop() == 0
    async with served(tmp_path / "s") as (broker, client):
        status = await client.done(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert decode_body(BrokerStatus, status.body).damaged_messages == 5


async def test_wrong_queue_entries_lose_no_message(tmp_path: Path) -> None:
    life, damage = await run_broker(tmp_path / "s", 150, killed=False)
    entries = damage.store / "consumequeue/orders/0" / f"{0:020d}"
    with entries.open("r+b") as file:
        file.seek(20 * 300)
        wrong = file.read(20)
        file.seek(20 * 310)
        file.write(wrong * 1_000)
    async with served(tmp_path / "s") as (broker, client):
        assert await client.reported("orders") == (life.bodies, [])
        assert broker.find("queue.repaired") or broker.find("queues.rebuilding")
        assert broker.stop() == 0


# -------------------------------------------------------------------------------------------------------------- snapshots


async def run_twice(store: Path) -> tuple[SentFrames, Damage]:
    """Run with two clean stops, so with two snapshots: after frame 5 with billing's commit at 20, after frame 10 with 70."""
    life, member = SentFrames(), Member(None, "orders")  # type: ignore[arg-type]
    for committed in (20, 70):
        async with served(store) as (broker, client):
            await client.create("orders")
            await life.send(client, 5)
            await member.join(client)
            epoch = (await member.lock()).epoch
            assert (await member.commit(epoch, committed, release=True)).verdict is LockVerdict.OK
            assert broker.stop() == 0
    damage = Damage(store)
    assert len(damage.snapshots) == 2
    return life, damage


async def committed(store: Path) -> int:
    async with served(store) as (_, client):
        member = Member(client, "orders", client_id="z@9#9", session="9" * 32)
        await member.join()
        return (await member.status()).committed_offset


async def test_snapshot_ahead_of_an_unclean_log_is_ignored_and_removed(tmp_path: Path) -> None:
    life, damage = await run_twice(tmp_path / "s")
    older, newer = damage.snapshots
    damage.mark_unclean()
    damage.zero(life.frames[7])
    damage.write_synced_position(int(older.name.partition("-")[2]))
    life.cut(7)
    assert await committed(tmp_path / "s") == 20
    assert newer not in damage.snapshots
    await check_continues(tmp_path / "s", life)


async def test_snapshot_ahead_of_a_log_synced_further_fails_the_start(tmp_path: Path) -> None:
    life, damage = await run_twice(tmp_path / "s")
    damage.zero(life.frames[7])
    before = damage.snapshots
    check_start_fails(tmp_path / "s", life.frames[7])
    assert damage.snapshots == before


@pytest.mark.parametrize("harm", ["torn", "flipped"])
async def test_damaged_snapshot_falls_back_to_the_older_one_and_the_log_after_it(tmp_path: Path, harm: str) -> None:
    _, damage = await run_twice(tmp_path / "s")
    newer = damage.snapshots[1]
    data = bytearray(newer.read_bytes())
    data[len(data) // 2] ^= 1
    newer.write_bytes(data if harm == "flipped" else data[: len(data) // 2])
    assert await committed(tmp_path / "s") == 70


async def test_without_snapshots_the_state_is_replayed_from_the_whole_log(tmp_path: Path) -> None:
    life, damage = await run_twice(tmp_path / "s")
    for snapshot in damage.snapshots:
        snapshot.unlink()
    assert await committed(tmp_path / "s") == 70
    await check_continues(tmp_path / "s", life)


# ----------------------------------------------------------------------------------------------------------- files removed


DERIVED = ("consumequeue", "index", "config", "checkpoint", "lockstep/boot")


@pytest.mark.parametrize(("killed", "names"), [(True, DERIVED), (False, DERIVED), (True, ("lockstep/synced", "lock")), (True, ("abort",))])
async def test_derived_files_are_rebuilt(tmp_path: Path, killed: bool, names: tuple[str, ...]) -> None:
    life, damage = await run_broker(tmp_path / "s", 20, killed=killed)
    for path in [damage.store / name for name in names]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    await check_continues(tmp_path / "s", life)


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_missing_log_file_fails_the_start_and_cut_corrupt_serves_the_others(tmp_path: Path, number: int) -> None:
    """The missing file is the first, a middle or the last one."""
    life, damage = await run_broker(tmp_path / "s", 250, killed=False)
    assert len(damage.segments) == 3
    missing = damage.segments[number]
    held = [int(path.name) for path in damage.segments] + [1 << 40]
    kept = [frame for frame, start in enumerate(life.frames) if not held[number] <= start < held[number + 1]]
    whole = [body for frame in kept for body in life.bodies[frame * FRAME : frame * FRAME + FRAME]]
    missing.unlink()
    ended = run_program(*command(tmp_path / "s"))
    assert (ended.returncode, ended.stderr.count("\n")) == (5, 1), (ended.returncode, ended.stderr)
    assert str(int(missing.name)) in ended.stderr
    async with served(tmp_path / "s", "--cut-corrupt") as (broker, client):
        found, lost = await client.reported("orders")
        assert (found, len(lost)) == (whole, len(life.bodies) - len(whole))
        (said,) = broker.find("store.set_aside")
        assert (said["lost_messages"], said["lost_offsets"]) == (len(lost), [f"orders:0 {lost[0]}..{lost[-1]}"])
        assert broker.stop() == 0
    checked = run_program("lockstep.cli.main", "store", "check", str(tmp_path / "s"), "--json")
    assert (checked.returncode, json.loads(checked.stdout)["lost_messages"]) == (5, len(lost))
    async with served(tmp_path / "s") as (_, client):
        assert (await client.reported("orders"))[0] == whole
        status = await client.done(RequestCode.GET_BROKER_RUNTIME_INFO)
        assert decode_body(BrokerStatus, status.body).damaged_messages == len(lost)


@pytest.mark.parametrize("killed", [True, False])
async def test_log_of_another_broker_fails_the_start_and_is_left_unchanged(tmp_path: Path, killed: bool) -> None:
    """With a snapshot that does not fit the log, and without one."""
    life, damage = await run_broker(tmp_path / "s", 10, killed=killed)
    _, other = await run_broker(tmp_path / "other", 12, killed=killed)
    own = tmp_path / "own"
    (tmp_path / "s" / "commitlog").rename(own)
    shutil.copytree(tmp_path / "other" / "commitlog", tmp_path / "s" / "commitlog")
    for option in ((), ("--cut-corrupt",)):
        ended = run_program(*command(tmp_path / "s", *option))
        assert (ended.returncode, ended.stderr.count("\n")) == (5, 1), (ended.returncode, ended.stderr)
        assert "another broker" in ended.stderr
        assert [path.read_bytes() for path in damage.segments] == [path.read_bytes() for path in other.segments]
    shutil.rmtree(tmp_path / "s" / "commitlog")
    own.rename(tmp_path / "s" / "commitlog")
    await check_continues(tmp_path / "s", life)


async def test_foreign_names_are_ignored_or_rejected_with_their_path(tmp_path: Path) -> None:
    """Exit 3 would mean a failed disk."""
    life, damage = await run_broker(tmp_path / "s", 5)
    (damage.store / "consumequeue" / "README").write_text("not ours")
    await check_continues(tmp_path / "s", life)
    stray = damage.store / "commitlog" / f"{8 << 20:020d}"
    stray.mkdir()
    ended = run_program(*command(tmp_path / "s"))
    assert (ended.returncode, ended.stderr.count("\n")) == (5, 1), (ended.returncode, ended.stderr)
    assert f"{stray} is a directory" in ended.stderr
    checked = run_program("lockstep.cli.main", "store", "check", str(tmp_path / "s"), "--json")
    assert (checked.returncode, len(json.loads(checked.stdout)["problems"])) == (5, 1)
    stray.rmdir()
    await check_continues(tmp_path / "s", life)


async def test_damaged_identity_fails_the_start(tmp_path: Path) -> None:
    life, _ = await run_broker(tmp_path / "s", 5)
    identity = tmp_path / "s" / "lockstep" / "identity"
    whole = identity.read_text()
    identity.write_text(whole[:40])
    ended = run_program(*command(tmp_path / "s"))
    assert (ended.returncode, ended.stderr.count("\n")) == (5, 1), (ended.returncode, ended.stderr)
    assert str(identity) in ended.stderr
    identity.write_text(whole.replace('"format": 1', '"format": 2'))
    ended = run_program(*command(tmp_path / "s"))
    assert (ended.returncode, ended.stderr.count("\n")) == (4, 1), (ended.returncode, ended.stderr)
    assert "has format 2, written by lockstep" in ended.stderr
    identity.write_text(whole)
    await check_continues(tmp_path / "s", life)


# ------------------------------------------------------------------------------------------------------------- check and scrub


def check(store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run_program("lockstep.cli.main", "store", "check", str(store), *options)


async def test_store_check_prints_each_problem_and_changes_nothing(tmp_path: Path) -> None:
    life, damage = await run_broker(tmp_path / "s", 150, killed=False)
    assert check(tmp_path / "s").returncode == 0
    damage.flip(life.frames[4] + 300)
    damage.zero(life.frames[20] + 100, 4_096)
    before = {path: path.read_bytes() for path in (tmp_path / "s").rglob("*") if path.is_file()}
    ended = check(tmp_path / "s", "--json")
    assert ended.returncode == 5, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["whole"], report["lost_messages"], report["record_count"] > 1_490) == (False, 5, True)
    where = [problem["where"] for problem in report["problems"] if problem["kind"] == "messages"]
    assert where == ["orders queue 0 offsets 40 to 40", "orders queue 0 offsets 200 to 203"]
    assert f"{life.frames[4]} to " in check(tmp_path / "s").stdout
    assert {path: path.read_bytes() for path in before} == before
    assert {path for path in (tmp_path / "s").rglob("*") if path.is_file()} == set(before)


async def test_store_check_rejects_an_open_store(tmp_path: Path) -> None:
    with serving(tmp_path / "s"):
        ended = check(tmp_path / "s")
    assert (ended.returncode, ended.stderr.count("\n")) == (6, 1), ended.stderr
    assert check(tmp_path / "nothing").returncode == 2

"""The law that damage is never silent, for random damage of a store that does not run.

A start either fails and leaves the directory unchanged, or every stored message is read as it was written or is reported as lost.
"""

import json
from dataclasses import dataclass, field
from random import Random

import pytest

from lockstep.broker.store import IdentityError, StoreCorruptError
from lockstep.broker.store.health.check import check_store
from lockstep.testing.simulation.disk import SimFiles
from support.effort import seeds, usually
from support.store_kit import (
    BORN_HOST,
    PATH,
    Recorded,
    all_bodies,
    append,
    confirmed,
    kill,
    no_state,
    open_store,
    read_queue_as_consumer,
    recovered,
    sequenced,
)

QUEUES = (("orders", 0), ("orders", 1), ("bills", 0))


@dataclass
class Stored:
    """A store that was closed or killed, and its contents."""

    files: SimFiles
    bodies: dict[tuple[str, int], list[bytes]] = field(default_factory=lambda: {key: [] for key in QUEUES})
    states: int = 0
    closed: bool = False
    """In order."""


async def create_store(random: Random) -> Stored:
    files = SimFiles(random.randrange(1 << 30), cached_reads=random.random() < 0.7)
    made = Stored(files)
    settings = {"segment_bytes": random.choice((4096, 8192, 16384)), "queue_file_entries": random.choice((8, 32)), "tail_bytes": 512}
    store = await open_store(files, **settings, queue_tail_bytes=400)
    crc, first = 0, 0
    for _ in range(random.randrange(20, 80)):
        kind = random.random()
        topic, queue_id = key = random.choice(QUEUES)
        bodies = [b"%d:" % len(made.bodies[key]) + random.randbytes(random.choice((3, 60, 300))) for _ in range(random.randint(1, 4))]
        if kind < 0.2 and key == QUEUES[0]:
            frame, sequence = sequenced(bodies, first=first, previous_crc=crc, topic=topic, queue_id=queue_id)
            store.append_frame(topic, queue_id, frame, len(bodies), born_host=BORN_HOST, sequenced=True)
            crc, first = sequence.crc, sequence.next
        elif kind < 0.8:
            append(store, *bodies, topic=topic, queue_id=queue_id)
        else:
            store.append_state(b"state %d" % made.states)
            made.states += 1
            bodies = []
        made.bodies[key] += bodies
        if random.random() < 0.1:
            await store.write_snapshot(made.states)
    if random.random() < 0.5:
        await store.write_snapshot(made.states)
        await store.close()
        made.closed = True
    else:
        await store.sync()
        store.writer.flusher._record = True
        await store.writer.flusher.sync(record=True)
        await confirmed(store)
        await kill(store, files)
    return made


def damage_one_file(random: Random, files: SimFiles) -> str:
    """Damage one file and return a description of the damage."""
    logs = sorted(path for path in files.names if "/commitlog/" in path)
    path = random.choice(logs)
    used = files.names[path].used_bytes
    kind = random.choice(("flip", "flip", "zero", "noise", "file", "short", "entries", "entries", "swap", "queue file", "snapshot"))
    if kind == "flip" and used:
        at = random.randrange(used)
        files.flip(path, at, random.randrange(8))
        return f"bit of {path} at {at}"
    if kind in ("zero", "noise") and used:
        at, size = random.randrange(used), random.choice((20, 512, 2000))
        size = min(size, len(files.names[path].cache) - at)
        files.overwrite(path, at, bytes(size) if kind == "zero" else random.randbytes(size))
        return f"{size} bytes of {kind} in {path} at {at}"
    if kind == "file" and len(logs) > 1:
        files.remove_tree(path)
        return f"{path} is gone"
    if kind == "short":
        at = random.randrange(len(files.names[path].cache))
        files.replace(path, files.names[path].cache[:at])
        files.names[path].measure()
        return f"{path} has {at} bytes"
    queues = sorted(path for path in files.names if "/consumequeue/" in path)
    if kind == "snapshot":
        path = random.choice([name for name in files.names if "/snapshot-" in name] or [path])
        if files.names[path].used_bytes:
            files.flip(path, random.randrange(files.names[path].used_bytes))
        return f"a bit of {path}"
    if not queues:
        return "nothing"
    path = random.choice(queues)
    if kind == "queue file":
        files.remove_tree(path)
        return f"{path} is gone"
    if kind == "swap" and len(queues) > 1:
        other = random.choice(queues)
        files.names[path], files.names[other] = files.names[other], files.names[path]
        files.durable_names.update(files.names)
        return f"{path} and {other} are swapped"
    at = random.randrange(len(files.names[path].cache))
    files.overwrite(path, at, random.randbytes(random.choice((1, 4, 60)))[: len(files.names[path].cache) - at])
    return f"entries of {path} at {at}"


def contents(files: SimFiles) -> dict[str, bytes]:
    """Return the contents of every file that a refused start must not change."""
    return {path: bytes(inode.cache) for path, inode in files.names.items() if path.rpartition("/")[2] not in ("lock", "abort", "start")}


def lost_by_manifest(files: SimFiles) -> int:
    """Return the lost messages by the manifest of the newest start that continued after a loss, or 0."""
    manifests = [path for path in files.names if path.endswith("/manifest.json")]
    if not manifests:
        return 0
    found = json.loads(bytes(files.names[max(manifests)].cache))
    assert sum(end - first for _, _, first, end in found["lost_offsets"]) == found["lost_messages"]
    return int(found["lost_messages"])


async def check_law(made: Stored, what: str, *, cut_corrupt: bool) -> bool:
    """Assert the law; return whether the store started."""
    before = contents(made.files)
    checked = await check_store(made.files, PATH, lambda position, end: None, no_state)
    assert contents(made.files) == before, f"{what}: the check changed files"
    try:
        store, found = await recovered(made.files, Recorded(), cut_corrupt=cut_corrupt)
    except (StoreCorruptError, IdentityError):
        made.files.crash(power=False)
        after = contents(made.files)
        assert {path for path in before if after.get(path) != before[path]} == set(), f"{what}: a refused start changed files"
        return False
    assert store.damage.message_count == found.lost_messages == lost_by_manifest(made.files), f"{what}: numbers differ"
    for _ in range(2):
        lost = 0
        for key in QUEUES:
            reported = await read_queue_as_consumer(store, *key)
            low, high = store.bounds(*key)
            expected = made.bodies[key]
            assert {offset: body for offset, body in reported.found.items() if expected[offset] != body} == {}, what
            assert low == 0, f"{what}: {key} begins at {low}, and retention has removed nothing"
            missing = set(range(high)) - set(reported.found) - set(reported.lost)
            assert not missing, f"{what}: {key} {sorted(missing)} neither read nor reported"
            lost += len(reported.lost)
            if all("/consumequeue/" in each or each == "nothing" for each in what.split("; ")):
                assert (reported.lost, low) == ([], 0), f"{what}: {key} lost {reported.lost}, begins at {low}: its log is whole"
            if not found.lost_synced and not found.lost_messages:
                assert (low, high) == (0, len(expected)), f"{what}: {key} has {low}..{high}, had {len(expected)}"
        assert sum(end - first for _, _, first, end in store.damage.lost()) == store.damage.message_count == lost, what
        await store.close()
        report = await check_store(made.files, PATH, lambda position, end: None, no_state)
        if any("running CRC" in problem.what or "__LS_SEQ" in problem.what for problem in (*checked.problems, *report.problems)):
            return True  # a property of an idempotent frame: its record is served, and no one knows which of them it is
        assert report.lost_messages == lost, f"{what}: {lost} messages are lost, the check says {report.problems}"
        if made.closed and all(store.bounds(*key)[1] == len(made.bodies[key]) for key in QUEUES):
            assert checked.lost_messages == lost, f"{what}: {lost} messages are lost, the check before the start said {checked.problems}"
        store, again = await recovered(made.files, Recorded())
        assert not again.lost_synced
    append(store, b"next")
    await confirmed(store)
    assert (await all_bodies(store))[-1] == b"next"
    await store.close()
    return True


@pytest.mark.parametrize("seed", seeds(100, 400))
async def test_damage_is_rejected_or_reported_and_no_other_message_is_lost(seed: int) -> None:
    random = Random(seed)
    made = await create_store(random)
    what = "; ".join(damage_one_file(random, made.files) for _ in range(random.choice((1, 1, 2))))
    if not await check_law(made, what, cut_corrupt=False):
        assert await check_law(made, what, cut_corrupt=True) or "identity" in what, what


@pytest.mark.parametrize("bit", usually((0, 1, 7, 8, 31, 32, 62, 63), range(64)))
@pytest.mark.parametrize(("count", "removed"), [(1, False), (2, False), (30, False), (30, True)])
async def test_flipped_bit_of_the_first_queue_offset_loses_one_message(bit: int, count: int, removed: bool) -> None:
    """No CRC covers the offset, and no earlier record shows the correct one. `removed`: retention has removed the earlier records."""
    files = SimFiles()
    settings = {"segment_bytes": 4096, "log_bytes_max": 6 * 4096}
    store = await open_store(files, **settings)
    for number in range(30):
        if number < count:
            append(store, b"first %d" % number * 50, queue_id=0)
        append(store, b"other %d" % number * 50, queue_id=1)
    await store.write_snapshot([])
    append(store, b"more", queue_id=1)
    await store.write_snapshot([])
    if removed:
        await store.retention(0)
        append(store, b"more", queue_id=1)
        await store.write_snapshot([])
    low, high = store.bounds("orders", 0)
    assert (low > 0) == removed
    place = store._queues.get(("orders", 0)).min_position
    await store.close()
    log = f"{PATH}/commitlog/{place - place % 4096:020d}"
    files.flip(log, place % 4096 + 27 - bit // 8, bit % 8)
    report = await check_store(files, PATH, lambda position, end: None, no_state)
    size = report.damaged_bytes
    assert (report.lost_messages, [problem.kind for problem in report.problems]) == (1, ["log", "messages"]), report.problems
    with pytest.raises(StoreCorruptError):
        await recovered(files)
    files.crash(power=False)
    store, found = await recovered(files, cut_corrupt=True)
    assert (found.lost_messages, store.damage.lost()) == (1, [("orders", 0, low, low + 1)])
    assert store.damage.byte_count == size < 1000
    reported = await read_queue_as_consumer(store)
    assert (reported.lost, len(reported.found)) == ([low], high - low - 1)
    await store.close()

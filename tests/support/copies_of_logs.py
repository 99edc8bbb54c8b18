"""The logs of a master and of a replica as bytes on the disk, and whether they are equal."""

import asyncio
import json
from pathlib import Path
from typing import Any

from lockstep.client import Message, Producer
from lockstep.protocol.bodies import ReplicaStatus
from support.cluster import LOOK_S, WAIT_S
from support.replica_pair import ReplicaPair

SEGMENTS = ("--segment-mib", "1", "--disk-used-percent-max", "100")
"""Small files of the log, which retention leaves alone also where the disk of the tests is nearly full."""
BODY = bytes(range(256)) * 256


def identity_of(pair: ReplicaPair, place: str) -> dict[str, Any]:
    """Return the content of lockstep/replica; nothing if there is none yet."""
    try:
        found: dict[str, Any] = json.loads((pair.store(place) / "lockstep" / "replica").read_text())
    except FileNotFoundError:
        return {}
    return found


def log_bytes(store: Path, end: int) -> bytes:
    """Return the log of a store from its first file on, up to `end`."""
    data = b""
    for path in sorted(path for path in (store / "commitlog").iterdir() if path.name.isdecimal()):
        with path.open("rb") as file:
            data += file.read(max(0, end - int(path.name)))
    return data


async def fill(pair: ReplicaPair, mib: int) -> None:
    """Store so many MiB of messages, in a topic of their own."""
    async with Producer("filler", nameserver=pair.cluster.nameservers, compress_over_bytes=None, send_timeout_ms=30_000) as producer:
        for _ in range(mib):
            await asyncio.gather(*(producer.send(Message("filler", BODY)) for _ in range(16)))


async def until_in_set(pair: ReplicaPair, replica: str, master: str) -> ReplicaStatus:
    """Wait until the copy is in the set of its master, and has all that was written when this was called. Return its status."""
    goal: int | None = None
    async with asyncio.timeout(WAIT_S):
        while True:
            ruling, copy = await pair.status(master), await pair.status(replica)
            if ruling is not None and copy is not None and copy.store_id == ruling.store_id:
                goal = ruling.end if goal is None else goal
                member = any(each.member == copy.member and each.in_set for each in ruling.replicas)
                if member and copy.following and copy.end >= goal:
                    return copy
            await asyncio.sleep(LOOK_S)


def differences(pair: ReplicaPair, replica: str, master: str, end: int) -> list[str]:
    """Return what differs between a copy and its master: the log up to `end`, or small files, or the first queue file of `filler`."""
    one, other = pair.store(replica), pair.store(master)
    names = ("lockstep/identity", "lockstep/proof", f"consumequeue/filler/0/{0:020d}")
    unlike = [name for name in names if not (one / name).exists() or (one / name).read_bytes() != (other / name).read_bytes()]
    return unlike + [f"the log up to {end}"] * (log_bytes(one, end) != log_bytes(other, end))


async def until_mended(pair: ReplicaPair, replica: str, master: str) -> None:
    """Wait until the copy is in the set, and has what its master has."""
    found: list[str] = []
    try:
        async with asyncio.timeout(WAIT_S):
            while found := differences(pair, replica, master, (await until_in_set(pair, replica, master)).end):  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S:.0f} s; unlike: {found}\n{pair.cluster.output_tails()}") from None


async def until_equal(pair: ReplicaPair, replica: str, master: str) -> int:
    """Wait as `until_in_set`. Check that both logs are equal up to the end of the copy's, and return that."""
    end = (await until_in_set(pair, replica, master)).end
    assert log_bytes(pair.store(replica), end) == log_bytes(pair.store(master), end), f"the logs differ below {end}"
    return end

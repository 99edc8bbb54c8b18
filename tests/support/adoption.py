"""A directory of RocketMQ's broker that a broker takes over, and what a start makes of it."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader
from lockstep.protocol.messages.record import SYS_IPV6_MASK
from lockstep.runtime.host import Host
from support.foreign_store import ForeignDirectory, topic_entry
from support.native import bodies
from support.whole_broker import Client, settings

SYSTEM = (
    topic_entry("TBW102", 8, perm=7),
    topic_entry("DefaultCluster", 16, perm=7),
    topic_entry("broker-a", 1, perm=7),
    topic_entry("DefaultCluster_REPLY_TOPIC", 1),
    topic_entry("rmq_sys_REVIVE_LOG_DefaultCluster", 8),
    topic_entry("rmq_sys_SYNC_BROKER_MEMBER_broker-a", 1, perm=1),
    topic_entry("SCHEDULE_TOPIC_XXXX", 18),
)
LEVEL_1 = 1
SECOND_MAGIC = bytes.fromhex("DAA320AB")
"""RocketMQ: MessageDecoder.MESSAGE_MAGIC_CODE_V2."""
FAR_MS = 4_102_444_800_000
"""2100-01-01: a timer that is never due in a test."""


def foreign_directory(tmp_path: Path) -> ForeignDirectory:
    """Return a directory with a log of two files: 40 messages in `orders`, and 3 in `later` with delays, of which one was delivered."""
    directory = ForeignDirectory(tmp_path / "store")
    for number in range(40):
        directory.add("orders", b"m%d" % number + bytes(500), queue_id=number % 2, properties=b"TAGS\x01a\x02")
    for number in range(3):
        directory.add_delayed(b"d%d" % number, topic="later", level=LEVEL_1)
    write(directory)
    return directory


def write(directory: ForeignDirectory, *topics: dict[str, Any]) -> None:
    offsets = {"orders@billing": {0: 5, 1: 20}, "rmq_sys_wheel_timer@CID_RMQ_SYS_TIMER": {0: 1}, "gone@billing": {0: 1}}
    entries = (topic_entry("orders", 2), topic_entry("later", 1), *SYSTEM, *topics)
    directory.write(*entries, offsets=offsets, disabled=("stopped",), delays={LEVEL_1: 1})


async def pull(client: Client, topic: str, queue_id: int, offset: int = 0) -> list[bytes]:
    header = PullHeader("g", topic, queue_id, offset, max_msg_nums=100, sys_flag=SUBSCRIPTION, max_msg_bytes=1 << 20)
    return [body.rstrip(b"\0") for body in bodies(await client.send_request(RequestCode.PULL_MESSAGE, header))]


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and path.name != "lock"}


def offset_of(broker: Broker, topic: str, queue_id: int, group: str = "billing") -> int | None:
    progress = broker.state.coordination.state.progress.get((group, topic, queue_id))
    return None if progress is None else progress.offset


async def start_fails(tmp_path: Path, error: type[Exception], match: str, **options: Any) -> None:
    """Assert that a start fails, with words, and changes nothing."""
    before = contents(tmp_path / "store")
    broker = Broker(settings(tmp_path, **options), Host.real())
    with pytest.raises(error, match=match):
        await broker.start()
    await broker.stop()
    assert contents(tmp_path / "store") == before


async def start_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start with --adopt, and fail before what the other broker has left is recorded."""

    def killed(*_: object) -> None:
        raise StoreCorruptError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("lockstep.broker.rocketmq_store.adoption.adopt", killed)
        broker = Broker(settings(tmp_path, adopt=True), Host.real())
        with pytest.raises(StoreCorruptError, match="killed"):
            await broker.start()
        await broker.stop()


def wrong_hosts(directory: ForeignDirectory) -> None:
    directory.overwrite(directory.positions[3] + 36, SYS_IPV6_MASK.to_bytes(4, "big"))

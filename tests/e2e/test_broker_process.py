"""The broker as a process: it starts, stops cleanly, survives kill -9, and its exit code is the reason why it does not start."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest

from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader
from lockstep.protocol.headers.routes import CreateTopicHeader
from lockstep.protocol.headers.send import SendRecordsHeader
from lockstep.protocol.messages.record import RecordView, encode_record, split_records
from lockstep.protocol.messages.sequence import FrameSequence, seal_frame
from lockstep.protocol.native import implementation
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from support.processes import Program, program, run_program

pytestmark = pytest.mark.e2e

PRODUCER = "ab" * 16


def serving(store: Path, *flags: str) -> AbstractContextManager[Program]:
    return program(*command(store, *flags), event="broker.started")


def command(store: Path, *flags: str) -> tuple[str, ...]:
    return ("lockstep.broker", "--listen", "127.0.0.1:0", "--store", str(store), *flags)


def run_rejected(store: Path, *flags: str) -> tuple[int, str]:
    """Return (exit code, the line on stderr) of a broker that does not start."""
    ended = run_program(*command(store, *flags))
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
    return ended.returncode, ended.stderr


@asynccontextmanager
async def connected(broker: Program) -> AsyncIterator[Endpoint]:
    endpoint = await connect(Host.real(), broker.started["address"])
    try:
        yield endpoint
    finally:
        endpoint.abort("done")
        await endpoint.wait_closed()


async def create(endpoint: Endpoint) -> None:
    layout = TopicLayout("t", LayoutVersion(1, 7), (LayoutEntry("broker-a", 1, 1, 1),))
    response = await endpoint.request(
        RequestCode.UPDATE_AND_CREATE_TOPIC, to_plain(CreateTopicHeader("t")), encode_body(layout), timeout_ms=5_000
    )
    assert response.code == ResponseCode.SUCCESS, response.remark


class Stream:
    """An idempotent producer for one queue."""

    def __init__(self) -> None:
        self.next = 0
        self.crc = 0

    def frame(self, count: int) -> tuple[dict[str, object], bytes]:
        records = [encode_record(b"t", 0, b"%d" % (self.next + i), b"", born_ms=1) for i in range(count)]
        data, s = seal_frame(records, FrameSequence(PRODUCER, 0, 1, self.next, count, self.next == 0, 0), self.crc)
        self.next, self.crc = s.next, s.crc
        header = SendRecordsHeader("t", 0, count, None, None, PRODUCER, 0, 1, s.first, s.first_known, s.crc)
        return to_plain(header), data


async def send(endpoint: Endpoint, frame: tuple[dict[str, object], bytes]) -> Command:
    return await endpoint.request(RequestCode.SEND_RECORDS, *frame, timeout_ms=10_000)


async def pull_all(endpoint: Endpoint) -> list[int]:
    found: list[int] = []
    while True:
        header = PullHeader("g", "t", 0, len(found), max_msg_nums=1_000, sys_flag=SUBSCRIPTION, max_msg_bytes=1 << 20)
        response = await endpoint.request(RequestCode.PULL_MESSAGE, to_plain(header), timeout_ms=10_000)
        if response.code != ResponseCode.SUCCESS:
            assert response.code == ResponseCode.PULL_NOT_FOUND, response.remark
            return found
        found += [int(RecordView(response.body, start).body) for start, _ in split_records(response.body)]


def test_sigterm_stops_the_broker_cleanly_with_exit_0(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as broker:
        assert broker.started["name"] == "broker-a"
        assert broker.started["kernels"] == implementation()
        assert broker.stop() == 0
    with serving(tmp_path / "s") as again:
        assert again.started["clean"] is True
        assert again.started["term"] > broker.started["term"]


async def test_broker_killed_under_load_has_every_acknowledged_message_once(tmp_path: Path) -> None:
    """The producer sends one frame after the other and repeats the one without a response after each kill of the broker."""
    stream, frames = Stream(), 0
    unanswered: tuple[dict[str, object], bytes] | None = None
    for _ in range(4):
        with serving(tmp_path / "s", "--segment-mib", "2") as broker:
            async with connected(broker) as endpoint:
                await create(endpoint)
                for number in range(60):
                    frame = unanswered or stream.frame(100)
                    unanswered = frame
                    responded = send(endpoint, frame)
                    if number == 59:
                        broker.process.kill()
                        with pytest.raises(ConnectionError):
                            await responded
                    else:
                        assert (await responded).code == ResponseCode.SUCCESS
                        unanswered, frames = None, frames + 1
            broker.process.wait()
    with serving(tmp_path / "s", "--segment-mib", "2") as broker:
        assert broker.started["clean"] is False
        async with connected(broker) as endpoint:
            assert unanswered is not None
            assert (await send(endpoint, unanswered)).code == ResponseCode.SUCCESS
            assert await pull_all(endpoint) == list(range((frames + 1) * 100))


def test_broker_without_its_nameserver_waits_and_can_be_stopped(tmp_path: Path) -> None:
    with program(*command(tmp_path / "s", "--nameserver", "127.0.0.1:1"), event="log.recovered") as waiting:
        assert waiting.stop() == 0
    with serving(tmp_path / "s") as broker:
        assert broker.started["clean"] is True


def test_exit_2_names_the_invalid_setting(tmp_path: Path) -> None:
    exit_code, errors = run_rejected(tmp_path / "s", "--advertise", "outside=host:1")
    assert exit_code == 2
    assert "outside" in errors
    exit_code, errors = run_rejected(tmp_path / "s", "--listen", "other=0.0.0.0:0")
    assert exit_code == 2
    assert "--insecure" in errors


def test_exit_3_on_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    exit_code, errors = run_rejected(tmp_path / "file" / "s")
    assert exit_code == 3
    assert "file/s" in errors


def test_exit_4_for_another_name(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as broker:
        broker.stop()
    exit_code, errors = run_rejected(tmp_path / "s", "--name", "broker-b")
    assert exit_code == 4
    assert "broker-a" in errors


async def test_exit_5_for_a_flipped_bit_below_the_synced_length(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as broker:
        async with connected(broker) as endpoint:
            await create(endpoint)
            await send(endpoint, Stream().frame(100))
        broker.stop()
    for snapshot in (tmp_path / "s" / "lockstep").glob("snapshot-*"):
        snapshot.unlink()
    log = next((tmp_path / "s" / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(5_000)
        byte = file.read(1)
        file.seek(5_000)
        file.write(bytes([byte[0] ^ 1]))
    exit_code, errors = run_rejected(tmp_path / "s")
    assert exit_code == 5
    assert "position" in errors


def test_exit_6_for_a_store_in_use(tmp_path: Path) -> None:
    with serving(tmp_path / "s"):
        assert run_rejected(tmp_path / "s")[0] == 6


def test_show_config_prints_every_value_and_its_origin(tmp_path: Path) -> None:
    shown = run_program(*command(tmp_path, "--name", "b", "--show-config")).stdout
    rows = {line.split("=")[0].strip(): line for line in shown.splitlines()}
    assert 'name = "b"' in rows["name"]
    assert rows["name"].endswith("# flag --name")
    assert rows["flush"].endswith("# default")

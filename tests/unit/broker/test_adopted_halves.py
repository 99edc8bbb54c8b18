"""Half messages of RocketMQ's broker whose transactions are not decided, in a directory that a start takes over."""

from pathlib import Path

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.offline.inspect_store import inspect_store
from lockstep.broker.rocketmq_store.export import export_store
from lockstep.broker.rocketmq_store.opening import OpenedStore
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.protocol.bodies import EndTransactionBody, HalfMessage
from lockstep.protocol.codec.fastjson import read_fastjson
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK, EndTransactionHeader
from lockstep.protocol.names import HALF_TOPIC
from lockstep.runtime.files import ReadOnlyFiles
from lockstep.runtime.host import Host
from support.adoption import pull
from support.foreign_store import STORED_MS, ForeignDirectory, topic_entry
from support.whole_broker import Client, dialled, kill, running, settings

PROGRESS = f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS"


def write(directory: ForeignDirectory, done: int = 0) -> None:
    """Write the directory. `done`: the progress of RocketMQ's broker in half messages."""
    directory.write(topic_entry("orders", 1), topic_entry(HALF_TOPIC, 1), offsets={PROGRESS: {0: done}})


@pytest.fixture
def foreign(tmp_path: Path) -> ForeignDirectory:
    directory = ForeignDirectory(tmp_path / "store")
    directory.add("orders", b"plain")
    return directory


def put_back(directory: ForeignDirectory, offset: int, body: bytes) -> int:
    """Append the copy of a half message that RocketMQ's broker stores before a check."""
    return directory.add_half(body, more=f"TRAN_PREPARED_QUEUE_OFFSET\x01{offset}\x02TRANSACTION_CHECK_TIMES\x012\x02")


async def end(client: Client, outcome: int, offset: int) -> int:
    body = encode_body(EndTransactionBody((HalfMessage(offset, "A1"),)))
    return (await client.send_request(RequestCode.END_TRANSACTION, EndTransactionHeader("shop", outcome), body)).code


def open_offsets(broker: Broker) -> list[int]:
    """Return at which offsets of RocketMQ's broker the open half messages were stored."""
    firsts = {present: first for first, present in broker.state.transactions.carried.items()}
    return [firsts[half.offset] for half in broker.state.transactions.from_offset(0, 100)]


async def test_only_undecided_messages_are_taken_over(foreign: ForeignDirectory, tmp_path: Path) -> None:
    passed = foreign.add_half(b"passed over")
    committed, rolled_back, undecided = (foreign.add_half(body) for body in (b"c", b"r", b"u"))
    foreign.end_halves(committed, rolled_back)
    write(foreign, passed + 1)
    assert (await inspect_store(ReadOnlyFiles(), str(tmp_path / "store"))).delayed_messages == 1
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        assert open_offsets(broker) == [undecided]
        for offset in (passed, committed, rolled_back):
            assert await end(client, COMMIT, offset) == ResponseCode.QUERY_NOT_FOUND
        assert await end(client, COMMIT, undecided) == ResponseCode.SUCCESS
        assert await pull(client, "orders", 0) == [b"plain", b"u"]


async def test_last_copy_of_a_message_that_was_asked_about_counts(foreign: ForeignDirectory, tmp_path: Path) -> None:
    first, ended = foreign.add_half(b"1"), foreign.add_half(b"2")
    second = put_back(foreign, first, b"1")
    put_back(foreign, ended, b"2")
    last = put_back(foreign, second, b"1")
    foreign.end_halves(ended)
    write(foreign)
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        assert open_offsets(broker) == [last]
        assert await end(client, ROLLBACK, last) == ResponseCode.SUCCESS
        assert await pull(client, "orders", 0, 1) == []


async def test_messages_wait_over_starts_and_are_delivered_once(foreign: ForeignDirectory, tmp_path: Path) -> None:
    kept, given = foreign.add_half(b"kept"), foreign.add_half(b"given")
    write(foreign)
    async with running(settings(tmp_path, adopt=True)) as broker:
        assert [broker.state.transactions.present_ms(half) for half in broker.state.transactions.from_offset(0, 9)] == [STORED_MS] * 2
        await kill(broker)
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        assert open_offsets(broker) == [kept, given]
        assert [await end(client, COMMIT, given) for _ in range(2)] == [ResponseCode.SUCCESS] * 2
        await kill(broker)
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        assert open_offsets(broker) == [kept]
        assert await end(client, ROLLBACK, given) == ResponseCode.TRANSACTION_SHOULD_COMMIT
        assert await end(client, ROLLBACK, kept) == ResponseCode.SUCCESS
        assert await pull(client, "orders", 0) == [b"plain", b"given"]
    await export_store(Host.real(), str(tmp_path / "store"))
    offsets = read_fastjson((tmp_path / "store" / "config" / "consumerOffset.json").read_bytes(), what="the offsets")["offsetTable"]
    assert offsets[PROGRESS] == {0: 4}, "RocketMQ's broker asks about none of them"


async def test_start_that_was_interrupted_takes_each_message_over_once(
    foreign: ForeignDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = [foreign.add_half(b"%d" % number) for number in range(3)]
    write(foreign)

    async def killed(self: OpenedStore) -> None:
        raise StoreCorruptError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(OpenedStore, "mark_adopted", killed)
        broker = Broker(settings(tmp_path, adopt=True), Host.real())
        with pytest.raises(StoreCorruptError, match="killed"):
            await broker.start()
        await broker.stop()
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        assert open_offsets(broker) == offsets
        for offset in offsets:
            assert await end(client, COMMIT, offset) == ResponseCode.SUCCESS
        assert await pull(client, "orders", 0, 1) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("half", [{"group": ""}, {"group": "a b"}, {"topic": "a b"}, {"queue_id": "x"}])
async def test_message_that_is_none_is_logged_and_left_behind(
    foreign: ForeignDirectory, tmp_path: Path, half: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    foreign.add_half(**half)  # type: ignore[arg-type]
    last = foreign.add_half(b"last")
    write(foreign)
    async with running(settings(tmp_path, adopt=True)) as broker:
        assert open_offsets(broker) == [last]
    assert "adoption.half_left" in caplog.text


async def test_message_of_a_topic_that_is_gone_is_rolled_back_by_its_commit(foreign: ForeignDirectory, tmp_path: Path) -> None:
    gone = foreign.add_half(topic="gone")
    write(foreign)
    async with running(settings(tmp_path, adopt=True)) as broker, dialled(broker) as client:
        assert open_offsets(broker) == [gone]
        assert await end(client, COMMIT, gone) == ResponseCode.TRANSACTION_SHOULD_ROLLBACK
        assert open_offsets(broker) == []

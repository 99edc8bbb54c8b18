"""Copies of parked messages to the dead-letter topic: of keys that are dropped, and before retention removes them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.app import Broker
from lockstep.broker.delivery import parked_copies
from lockstep.broker.delivery.parked_copies import ParkedCopies
from lockstep.broker.groups.tables.park_table import ParkTable
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerGroup,
    HeartbeatBody,
    LockItem,
    LockVerdict,
    ParkAction,
    ParkControlBody,
    ParkControlReply,
    ParkedKey,
    ParkState,
    SessionLockBody,
    Subscription,
)
from lockstep.protocol.codec.msgpack_body import decode_body, encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.park import ParkEndHeader, ParkEndReply, ParkHeader
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.messages.properties import decode_properties
from lockstep.protocol.messages.record import RecordView, split_records
from support.until import until
from support.whole_broker import TOPIC, Client, dialled, kill, reconcile, running, settings, stored

S, A = ParkState, ParkAction
QUEUE = ("g", TOPIC, 0)
LETTERS = "%DLQ%g"


@pytest.fixture(autouse=True)
def _check_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_copies, "DROP_CHECK_S", 0.001)


class Owner:
    """A member that holds queue 0, with its broker."""

    def __init__(self, broker: Broker, client: Client, epoch: int) -> None:
        self.broker = broker
        self.client = client
        self.epoch = epoch
        self.sent = 0

    @property
    def table(self) -> ParkTable:
        return self.broker.state.coordination.state.parks

    @property
    def copies(self) -> ParkedCopies:
        return self.broker.running.copies

    async def send(self, *keys: str, size: int = 0, tags: str = "") -> None:
        """Send a message for each key; each has its offset as its body, and `size` bytes more."""
        for key in keys:
            properties = f"__SHARDINGKEY\x01{key}" + (f"\x02TAGS\x01{tags}" if tags else "")
            body = b"%d %b" % (self.sent, b"x" * size)
            await self.client.done(RequestCode.SEND_MESSAGE, SendMessageHeader("p", TOPIC, 0, properties=properties), body)
            self.sent += 1

    async def park(self, key: str, offset: int) -> None:
        await self.client.done(RequestCode.PARK, ParkHeader("g", TOPIC, 0, self.epoch, offset, 3, "poisoned"))
        assert self.table.get(QUEUE, key) is not None

    async def control(self, action: ParkAction, key: str | None = None) -> tuple[ParkedKey, ...]:
        body = encode_body(ParkControlBody(action, "g", TOPIC, key))
        return decode_body(ParkControlReply, (await self.client.done(RequestCode.PARK_CONTROL, body=body)).body).keys

    async def end(self, key: str, offset: int, pulled: int | None = 0) -> ParkEndReply:
        header = ParkEndHeader("g", TOPIC, 0, self.epoch, key, offset, pulled)
        return from_plain(ParkEndReply, (await self.client.done(RequestCode.PARK_END, header)).fields)

    async def release(self) -> None:
        """Let nobody hold the queue."""
        await self.client.done(RequestCode.LOCK_BATCH_MQ, body=encode_body(SessionLockBody(())))

    def row(self, key: str = "a") -> ParkedKey:
        row = self.table.get(QUEUE, key)
        assert row is not None
        return row

    async def until_at(self, offset: int, key: str = "a") -> None:
        await until(lambda: self.row(key).next >= offset)

    async def until_ended(self, key: str = "a") -> None:
        await until(lambda: self.row(key).state is S.ENDED)

    async def letters(self) -> list[int]:
        return [number(each) for each in await all_letters(self.client)]


async def all_letters(client: Client) -> list[RecordView]:
    found: list[RecordView] = []
    while page := await stored(client, LETTERS, offset=len(found)):
        found += page
    return found


def number(record: RecordView) -> int:
    return int(record.body.split()[0])


async def acquire(client: Client) -> int:
    """Acquire queue 0. Return the epoch."""
    result = await reconcile(client, LockItem("g", TOPIC, 0))
    assert result.verdict is LockVerdict.OK
    return int(result.epoch)


@asynccontextmanager
async def owning(path: Path, **values: Any) -> AsyncIterator[Owner]:
    async with running(settings(path, **values)) as broker, dialled(broker) as client:
        await client.create()
        group = ConsumerGroup(
            "g", (Subscription(TOPIC),), consume_from_where=ConsumeFromWhere.FIRST_OFFSET, ordered=True, retry="3 attempts, then park"
        )
        await client.done(RequestCode.HEART_BEAT, body=encode_body(HeartbeatBody("a", (group,), session="a" * 32, connection=1)))
        yield Owner(broker, client, await acquire(client))


# ------------------------------------------------------------------------------------------------------------------------ drops


async def test_dropped_key_is_copied_in_order_and_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_copies, "COUNT_PER_TURN", 3)
    async with owning(tmp_path) as owner:
        await owner.send(*"abababababab", *"ab" * 5)
        await owner.park("a", 2)
        await owner.park("b", 3)
        await owner.control(A.DROP, "a")
        await owner.until_at(22)
        assert await owner.letters() == list(range(2, 22, 2))
        assert owner.row("b").next == 3, "another key stays as it is"


async def test_copies_say_where_they_come_from_and_why(tmp_path: Path) -> None:
    async with owning(tmp_path) as owner:
        await owner.send(*"aba", tags="created")
        await owner.park("a", 0)
        await owner.control(A.DROP)
        await owner.until_at(3)
        first, second = await all_letters(owner.client)
        properties = decode_properties(first.properties)
        assert (properties["__SHARDINGKEY"], properties["TAGS"], properties["RETRY_TOPIC"]) == ("a", "created", TOPIC)
        assert properties["__LS_REASON"] == "its key was dropped: poisoned"
        assert [each.reconsume_times for each in (first, second)] == [3, 0], "only the first one has failed"


async def test_owner_ends_the_drop_and_what_comes_until_then_is_copied(tmp_path: Path) -> None:
    async with owning(tmp_path) as owner:
        await owner.send(*"abab")
        await owner.park("a", 0)
        await owner.control(A.DROP)
        await owner.until_at(4)
        await owner.send("a")
        await owner.until_at(5)
        assert owner.row().state is S.DROPPING
        assert await owner.end("a", 0, pulled=5) == ParkEndReply(upto=5)
        await owner.send("a", "b")
        assert await owner.letters() == [0, 2, 4]


async def test_owner_that_is_ahead_of_the_copies_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = asyncio.Event()
    copy_page = ParkedCopies._copy_page

    async def wait(self: ParkedCopies, known: ParkedKey, position: int | None) -> bool:
        await go.wait()
        return await copy_page(self, known, position)

    monkeypatch.setattr(ParkedCopies, "_copy_page", wait)
    async with owning(tmp_path) as owner:
        await owner.send(*"abab")
        await owner.park("a", 0)
        await owner.control(A.DROP)
        assert await owner.end("a", 4, pulled=4) == ParkEndReply(until=4), "`next` of the owner does not count"
        go.set()
        await owner.until_at(4)
        assert await owner.end("a", 0, pulled=4) == ParkEndReply(upto=4)


async def test_drop_without_an_owner_is_ended_by_the_broker(tmp_path: Path) -> None:
    async with owning(tmp_path) as owner:
        await owner.send(*"ababa")
        await owner.park("a", 2)
        await owner.release()
        await owner.control(A.DROP)
        await owner.until_ended()
        assert (owner.row().upto, await owner.letters()) == (5, [2, 4])
        await owner.send("a")
        epoch = await acquire(owner.client)
        response = await owner.client.pull(0, epoch=epoch)
        assert b"5 " in bytes(response.body), "the key is in the main flow again"


async def test_replay_that_is_dropped_is_copied_from_where_it_was(tmp_path: Path) -> None:
    async with owning(tmp_path) as owner:
        await owner.send(*"aaaa")
        await owner.park("a", 0)
        await owner.control(A.REPLAY)
        await owner.end("a", 2, pulled=None)
        await owner.control(A.DROP)
        await owner.until_at(4)
        assert await owner.letters() == [2, 3]


async def test_key_whose_page_was_read_before_its_row_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of the replay that was dropped arrives while its first page is read from the disk."""
    async with owning(tmp_path) as owner:
        await owner.send(*"aaaa")
        await owner.park("a", 0)
        reading, go = asyncio.Event(), asyncio.Event()
        read = owner.copies._read

        async def read_slowly(row: ParkedKey) -> Any:
            result = await read(row)
            reading.set()
            await go.wait()
            return result

        monkeypatch.setattr(owner.copies, "_read", read_slowly)
        await owner.control(A.REPLAY)
        copying = asyncio.ensure_future(owner.copies.copy_before(1 << 40))
        await reading.wait()
        await owner.end("a", 2, pulled=None)
        go.set()
        await copying
        assert await owner.letters() == [2, 3]


async def test_only_what_the_group_subscribes_to_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with owning(tmp_path) as owner:
        await owner.send("a", tags="created")
        await owner.send("a", tags="deleted")
        await owner.send("a", tags="created")
        await owner.park("a", 0)
        group = owner.broker.state.coordination.state.groups.get("g")
        assert group is not None
        (contract,) = group.contracts.values()
        (subscription,) = contract.subscriptions
        narrow = type(subscription)(TOPIC, "created")
        group._subscriptions[contract.contract_version] = {TOPIC: narrow}
        await owner.control(A.DROP)
        await owner.until_at(3)
        assert await owner.letters() == [0, 2]


# ------------------------------------------------------------------------------------------------------------ crashes, refusals


async def test_broker_that_is_killed_between_two_pages_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_copies, "COUNT_PER_TURN", 4)
    copy_page, pages = ParkedCopies._copy_page, 0
    third = asyncio.Event()

    async def stop_at_the_third(self: ParkedCopies, known: ParkedKey, position: int | None) -> bool:
        nonlocal pages
        pages += 1
        if pages > 2:
            third.set()
            await until(lambda: self._stopping)
            return False
        return await copy_page(self, known, position)

    async with owning(tmp_path) as owner:
        await owner.send(*"a" * 20)
        await owner.park("a", 0)
        monkeypatch.setattr(ParkedCopies, "_copy_page", stop_at_the_third)
        await owner.control(A.DROP)
        await third.wait()
        await kill(owner.broker)
    monkeypatch.setattr(ParkedCopies, "_copy_page", copy_page)
    async with running(settings(tmp_path)) as broker, dialled(broker) as client:
        again = Owner(broker, client, 0)
        await again.until_at(20)
        letters = await again.letters()
        assert list(dict.fromkeys(letters)) == list(range(20))
        assert len(letters) <= 20 + 4, "at most the last page comes again"


@pytest.mark.parametrize("refused_by", ["the disk", "the gate"])
async def test_refused_copy_is_logged_and_tried_again(
    refused_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with owning(tmp_path) as owner:
        await owner.send(*"aaa")
        await owner.park("a", 0)
        tries: list[ParkedKey] = []
        read = owner.copies._read

        async def note(row: ParkedKey) -> Any:
            tries.append(row)
            return await read(row)

        def refuse(size: int) -> None:
            raise ServiceNotAvailableError("the disk is full")

        monkeypatch.setattr(owner.copies, "_read", note)
        with monkeypatch.context() as full:
            if refused_by == "the disk":
                full.setattr(owner.broker._store, "check_append", refuse)
            else:
                full.setattr(owner.broker._gate, "closed_because", "the disk is full")
            await owner.control(A.DROP)
            await until(lambda: len(tries) >= 3)
            assert (owner.row().state, owner.row().next) == (S.DROPPING, 0)
        await owner.until_at(3)
        assert await owner.letters() == [0, 1, 2]
        lines = [record.getMessage() for record in caplog.records if "park.copy_failed" in record.getMessage()]
        assert "key=a" in lines[0]
        assert "the disk is full" in lines[0]


async def test_refusal_in_the_middle_of_a_page_repeats_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with owning(tmp_path) as owner:
        await owner.send(*"aaaa")
        await owner.park("a", 0)
        store, left = owner.broker._store, 2
        assert store is not None
        check: Callable[[int], None] = store.check_append

        def check_twice(size: int) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise ServiceNotAvailableError("the disk is full")
            check(size)

        monkeypatch.setattr(store, "check_append", check_twice)
        await owner.control(A.DROP)
        await owner.until_at(4)
        assert await owner.letters() == [0, 1, 2, 3]


# ------------------------------------------------------------------------------------------------------------------- retention


async def position_of(owner: Owner, offset: int) -> int:
    assert owner.broker._store is not None
    entry = await owner.broker._store.queue_entry(TOPIC, 0, offset)
    assert entry is not None
    return entry[0]


@pytest.mark.parametrize("state", [S.PARKED, S.REPLAYING, S.DROPPING])
async def test_waiting_messages_below_a_position_are_copied_before_they_are_removed(
    state: ParkState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with owning(tmp_path) as owner:
        await owner.send(*"abacabab")
        await owner.park("a", 2)
        await owner.park("b", 1)
        position = await position_of(owner, 6)
        if state is not S.PARKED:
            owner.table.set_state(owner.row("a"), state)
        await owner.copies.copy_before(position)
        assert sorted(await owner.letters()) == [1, 2, 4, 5]
        by_key = [decode_properties(each.properties)["__SHARDINGKEY"] for each in await all_letters(owner.client)]
        assert sorted(by_key) == ["a", "a", "b", "b"]
        assert (owner.row("a").state, owner.row("a").next) == (state, 5)
        assert (owner.row("b").state, owner.row("b").next) == (S.PARKED, 6)
        first = (await all_letters(owner.client))[0]
        reason = decode_properties(first.properties)["__LS_REASON"]
        assert reason == "retention would have removed it while its key was parked: poisoned"
        await owner.copies.copy_before(position)
        assert len(await owner.letters()) == 4, "each once"


async def test_key_whose_replay_has_ended_is_not_copied(tmp_path: Path) -> None:
    async with owning(tmp_path) as owner:
        await owner.send(*"aaaa")
        await owner.park("a", 0)
        await owner.control(A.REPLAY)
        assert await owner.end("a", 2, pulled=0) == ParkEndReply(upto=2)
        await owner.copies.copy_before(await position_of(owner, 3))
        assert await owner.letters() == []


async def test_nothing_above_the_position_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each parked key would cost a read of all that its queue has, whenever retention removes a file."""
    monkeypatch.setattr(parked_copies, "BYTES_PER_TURN", 4_000)
    monkeypatch.setattr(parked_copies, "COUNT_PER_TURN", 4)
    async with owning(tmp_path) as owner:
        await owner.send("a", *"b" * 60, size=1_000)
        await owner.park("a", 0)
        store = owner.broker._store
        assert store is not None
        ends: list[int] = []
        read = owner.copies._read

        async def note(row: ParkedKey) -> Any:
            result = await read(row)
            ends.append(result.next_offset)
            return result

        monkeypatch.setattr(owner.copies, "_read", note)
        await owner.copies.copy_before(await position_of(owner, 1))
        assert await owner.letters() == [0]
        await owner.copies.copy_before(await position_of(owner, 1))
        assert len(ends) == 1


def fill(owner: Owner, count: int) -> Any:
    """Send messages of 100 KiB, of the keys a, b, a, b, …"""
    return owner.send(*("ab"[each % 2] for each in range(count)), size=100 << 10)


async def remove_old(owner: Owner) -> list[tuple[str, int, int]]:
    """Run retention as if a year had passed. Return the new minimums."""
    broker = owner.broker
    assert broker._store is not None
    await broker.running.maintenance.snapshot()
    moved = await broker._store.retention(broker._store.now_ms() + 366 * 24 * 3_600_000, broker.running._before_removal)
    await broker.running.maintenance.move_groups(moved)
    return [each for each in moved if each[0] == TOPIC]


async def test_parked_messages_outlive_their_log_file_in_the_dead_letter_topic(tmp_path: Path) -> None:
    async with owning(tmp_path, segment_mib=1) as owner:
        await fill(owner, 24)
        await owner.park("a", 2)
        await owner.control(A.REPLAY)
        ((_, _, minimum),) = await remove_old(owner)
        assert 9 < minimum < 24
        copied = list(range(2, minimum, 2))
        assert await owner.letters() == copied
        assert (owner.row().state, owner.row().next) == (S.REPLAYING, minimum), "its next message is not before it"
        response = await owner.client.pull(owner.row().next, epoch=owner.epoch, key="a")
        rest = [number(RecordView(response.body, start)) for start, _ in split_records(response.body)]
        assert [*copied, *rest][-1] == 22
        assert [*copied, *rest] == list(range(2, 2 * len([*copied, *rest]) + 2, 2)), "the replay goes on where the copies end"


async def test_rows_move_to_the_new_minimum_if_their_messages_could_not_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with owning(tmp_path, segment_mib=1) as owner:
        await fill(owner, 24)
        await owner.park("a", 2)
        monkeypatch.setattr(owner.broker._gate, "closed_because", "the broker is stopping")
        ((_, _, minimum),) = await remove_old(owner)
        assert owner.row().next == minimum
        assert await owner.letters() == []
        assert any("park.copy_failed" in record.getMessage() for record in caplog.records)

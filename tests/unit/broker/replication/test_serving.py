"""What a master does after it was suspended, and when it stops.

A replica may have been promoted while it was suspended, so nobody leaves its set before the replicas were asked.
"""

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.broker.replication.asking import RoleError
from lockstep.broker.replication.copy_identity import CopyIdentity, Role
from lockstep.broker.replication.replica_set import BEAT_MS, LOST_MS, STUCK_MS
from lockstep.broker.replication.serving import SUSPENDED_MS, ReplicaServer, _Session
from lockstep.protocol.headers.replication import ReplicaAckHeader, ReplicaFetchHeader, ReplicaFetchReply, ReplicaFollowHeader
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.requests.request import NO_RESPONSE
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import append, open_store


class Master:
    """A master with one member in its set, whose clock the test sets."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.saved: list[dict[str, Any]] = []
        self.answers: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.failures: list[BaseException] = []
        self.asked_count = 0
        directory = SimpleNamespace(own="", replace=lambda _, data: self.saved.append(json.loads(data)["members"]))

        async def change_directory(change: Any) -> None:
            change(directory)

        async def ask() -> None:
            self.asked_count += 1
            await self.answers

        async def confirmed() -> None:
            """Everything is."""

        writer = SimpleNamespace(copies_advanced=lambda: None, copies=None, confirmed=7, wait_confirmed=confirmed, proves_office=False)
        store = {"written": 7, "log_bounds": (0, 7), "recent_log": lambda *_: b""}
        parts: Any = (
            SimpleNamespace(clock=SimpleNamespace(boot_ms=lambda: self.now_ms)),
            Tasks(self.failures.append),
            SimpleNamespace(change_directory=change_directory, writer=writer, now_ms=lambda: 0, **store),
            SimpleNamespace(record_replicas=self.record, coordination=SimpleNamespace(state=SimpleNamespace(term=5))),
        )
        self.recorded: dict[str, str] = {}
        """What the log has of the copies."""
        self.server = ReplicaServer(*parts, lambda: "here", CopyIdentity("m", Role.MASTER, {"a": "there"}, {"a": "there"}), ask)

    def record(self, known: dict[str, str]) -> bool:
        changed, self.recorded = known != self.recorded, known
        return changed

    async def ticks(self, pause_ms: int) -> None:
        """Let time pass since the last tick, and then some, with ticks: the member is lost."""
        for step_ms in (pause_ms, *[50] * (2 * LOST_MS // 50)):
            self.now_ms += step_ms
            self.server._tick()
            await asyncio.sleep(0)
        self.server._timer.cancel()

    @property
    def waits_for_member(self) -> bool:
        return bool(self.server.replicas.counted)


async def test_lost_member_leaves_at_once_unless_the_master_was_suspended() -> None:
    master = Master()
    await master.ticks(SUSPENDED_MS - 1)
    assert (master.saved, master.waits_for_member, master.asked_count, master.server.is_in_doubt) == ([{}], False, 0, False)


async def test_lost_member_leaves_after_a_suspension_when_the_replicas_have_answered() -> None:
    master = Master()
    await master.ticks(SUSPENDED_MS)
    assert (master.saved, master.waits_for_member, master.asked_count, master.server.is_in_doubt) == ([], True, 1, True)
    master.answers.set_result(None)
    await master.ticks(50)
    assert (master.saved, master.waits_for_member, master.asked_count, master.server.is_in_doubt) == ([{}], False, 1, False)


async def test_suspended_master_fails_with_the_set_as_it_was_if_a_replica_was_promoted() -> None:
    master = Master()
    await master.ticks(SUSPENDED_MS)
    master.answers.set_exception(refusal := RoleError("promoted"))
    await master.ticks(50)
    assert master.failures == [refusal]
    assert (master.saved, master.waits_for_member) == ([], True)
    await cast(Any, master.server._tasks).cancel_all()


async def test_suspension_while_the_set_is_being_stored_is_noticed_before_the_member_counts_no_more() -> None:
    master = Master()
    master.server.replicas.forget("a", 0)
    change_directory = master.server._store.change_directory

    async def suspended(change: Any) -> None:
        await change_directory(change)
        master.now_ms += SUSPENDED_MS

    master.server._store.change_directory = suspended  # type: ignore[method-assign]
    await master.ticks(0)
    assert (master.waits_for_member, master.server.is_in_doubt) == (True, True)
    await cast(Any, master.server._tasks).cancel_all()


async def test_replica_whose_request_is_on_its_way_when_the_master_stops_learns_that_the_log_is_complete() -> None:
    server = Master().server
    server._sessions[1] = _Session(cast(Any, None), "a", 7)
    server._store.writer.copies = server

    def fetched() -> Any:
        header = ReplicaFetchHeader(7, 1, 7, 7, 7, 0)
        return server.fetch(cast(Any, SimpleNamespace(endpoint=SimpleNamespace(id=1), header=header, reply=lambda reply, _: reply)))

    stopping = asyncio.ensure_future(server.complete())
    await asyncio.sleep(0)
    assert not stopping.done()
    reply: ReplicaFetchReply = fetched()
    assert reply.complete
    assert fetched() is NO_RESPONSE, "it knows now"
    await stopping


async def test_replica_joins_when_it_has_all_of_a_new_masters_log_confirmed_or_not() -> None:
    """An earlier master may have confirmed it: with less, this replica could be elected and lack that."""
    master = Master()
    master.server._store.writer.confirmed = 0  # type: ignore[misc]
    endpoint: Any = SimpleNamespace(id=1, peer="p", on_close=[])
    master.server._connect(endpoint, ReplicaFollowHeader("broker-a", "c", "store", "b", "elsewhere", 3, 0, "1"), 3)
    for has, joins in ((3, False), (6, False), (7, True)):
        header = ReplicaAckHeader(has, has, has, 0)
        master.server.ack(cast(Any, SimpleNamespace(endpoint=endpoint, header=header)))
        await asyncio.sleep(0)
        assert [sorted(members) for members in master.saved] == ([["a", "b"]] if joins else []), has


async def test_replica_with_another_id_replaces_the_member_that_it_was_also_in_the_list() -> None:
    master = Master()
    endpoint = SimpleNamespace(id=1, peer="p", on_close=[])
    master.server._connect(cast(Any, endpoint), ReplicaFollowHeader("broker-a", "c", "store", "b", "there", 7, 7, "1"), 7)
    assert [each.member for each in master.server.standings()] == ["a", "b"], "the set has it still"
    await master.ticks(50)
    assert master.saved == [{}]
    assert [each.member for each in master.server.standings()] == ["b"]


@pytest.mark.parametrize("joins", [False, True])
async def test_forgotten_replica_is_neither_listed_nor_recorded_also_if_it_was_joining_the_set(joins: bool) -> None:
    master = Master()
    endpoint: Any = SimpleNamespace(id=1, peer="p", on_close=[])
    master.server._connect(endpoint, ReplicaFollowHeader("broker-a", "c", "store", "b", "elsewhere", 7, 7, "1"), 7)
    assert master.recorded == {"a": "there", "b": "elsewhere", "m": "here"}
    if joins:
        master.server.ack(cast(Any, SimpleNamespace(endpoint=endpoint, header=ReplicaAckHeader(7, 7, 7, 0))))
    master.server._closed(endpoint, "it ended")
    assert await master.server.forget("b")
    for _ in range(10):
        await asyncio.sleep(0)
    assert any("b" in members for members in master.saved) is joins
    assert [each.member for each in master.server.standings()] == ["a"]
    assert master.recorded == {"a": "there", "m": "here"}
    assert not await master.server.forget("b")


async def test_connection_of_a_replica_that_another_one_of_it_replaces_is_cut_so_that_it_does_not_wait_there() -> None:
    """While packets were lost it has tried in vain. Now its attempts arrive, and the last one may have followed already."""
    master, cut = Master(), list[int]()

    def connect(number: int, member: str = "a") -> None:
        endpoint = SimpleNamespace(id=number, peer="p", on_close=[], abort=lambda _: cut.append(number))
        master.server._connect(cast(Any, endpoint), ReplicaFollowHeader("broker-a", "c", "store", member, "there", 7, 7, "1"), 7)

    connect(2)
    connect(1)
    assert (cut, list(master.server._sessions)) == ([2], [1])
    connect(3)
    assert (cut, list(master.server._sessions)) == ([2, 1], [3])
    connect(4, "b")
    assert (cut, list(master.server._sessions)) == ([2, 1, 3], [4]), "it has lost its power, and is another member"


async def test_snapshot_that_waits_for_a_lost_replica_does_not_hold_up_the_end_of_its_master() -> None:
    server, store = Master().server, await open_store(SimFiles())
    store.writer.copies = server
    append(store, b"what the replica lacks")
    writing = asyncio.ensure_future(store.write_snapshot(["tables"]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not writing.done()
    server._store = store
    server.stop()
    for _ in range(50):
        await asyncio.sleep(0)
    assert writing.done()
    await store.close()


@pytest.mark.parametrize("proves_office", [False, True])
async def test_member_that_connects_and_is_cut_off_in_turn_leaves_where_responses_wait_for_what_it_hears(
    proves_office: bool,
) -> None:
    master = Master()
    server = master.server
    server._store.writer.proves_office = proves_office  # type: ignore[misc]
    server.written()
    for number in range(2 * STUCK_MS // BEAT_MS):
        endpoint: Any = SimpleNamespace(id=number, peer="p", on_close=[])
        server._connect(endpoint, ReplicaFollowHeader("broker-a", "c", "store", "a", "there", 7, 7, "1"), 7)
        fetch = SimpleNamespace(endpoint=endpoint, header=ReplicaFetchHeader(7, 1, 7, 7, 7, 0), reply=lambda reply, _: reply)
        server.fetch(cast(Any, fetch))
        server._closed(endpoint, "cut off")
        master.now_ms += BEAT_MS
        server._tick()
        await asyncio.sleep(0)
    server._timer.cancel()
    assert master.saved == ([{}] if proves_office else [])

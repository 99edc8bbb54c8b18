"""One turn of the loop processes a slice of queues or groups, regardless of their number: counted by items, never by time."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from lockstep.broker.groups.effect_runner import NOTICES_PER_TURN_MIN, STEPS_PER_TURN, EffectRunner
from lockstep.broker.groups.effects import Notify, PushQueueFree, StalePulls
from lockstep.broker.groups.group_admin import GroupAdmin
from lockstep.broker.groups.group_status import GroupStatusReader
from lockstep.broker.groups.tables.lock_table import LockTable, QueueKey
from lockstep.broker.groups.tables.progress_table import Progress, ProgressTable
from lockstep.broker.maintenance import MOVES_PER_SLICE, StoreMaintenance
from lockstep.broker.processors import client
from lockstep.broker.tables.sequence_table import IDLE_MS, LastFrame, Scope, SequenceTable, StoredFrame
from lockstep.protocol.bodies import GroupStatus, GroupStatusReply, ListVersion
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codec.plain import PackedList
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import MSGPACK, Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import GroupStatusHeader
from lockstep.protocol.messages.sequence import FrameSequence
from lockstep.protocol.topics.allocate import AVERAGE
from lockstep.runtime.metrics import SLICE_ITEMS
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import LANE_ITEMS_PER_TURN, LaneLimits
from lockstep.runtime.requests.packed_rows import PART
from lockstep.runtime.requests.request import Request
from lockstep.runtime.turn import TurnBudget
from support.broker_fakes import FakeEndpoint, FakeHost, at_once, client_processor
from support.coordination_kit import GROUP, TOPIC, Bench, Client, joined, layout, ordered

QUEUES = 6 * STEPS_PER_TURN


class TurnCounter:
    """Counts calls of a function by turn of the loop."""

    def __init__(self) -> None:
        self.turns = [0]

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            self.turns[-1] += 1
            return function(*args, **named)

        return counted

    async def until(self, condition: Callable[[], bool]) -> None:
        """Count turns until the condition holds; fail after 1,000 turns."""
        for _ in range(1_000):
            if condition():
                return
            self.turns.append(0)
            await asyncio.sleep(0)
        raise AssertionError("not done after 1,000 turns")


class Peer:
    """An endpoint that counts its frames."""

    def __init__(self, counted: TurnCounter) -> None:
        self.sent: list[int] = []
        self.codec = MSGPACK
        self.unsent_bytes = 0
        self.oneway = counted.of(lambda code, fields=None, body=b"": self.sent.append(code))


async def test_free_queues_of_a_new_member_are_computed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = TurnCounter()
    bench = Bench(layout(queues=QUEUES))
    monkeypatch.setattr(LockTable, "holder", counted.of(LockTable.holder))
    drained: list[Any] = []
    drain = bench.c.state.pending.drain
    bench.c.state.pending.drain = lambda count_max=None, **named: [drained.append(effect) or effect for effect in drain(count_max, **named)]  # type: ignore[method-assign, func-returns-value]
    EffectRunner(bench.c.state.pending, {}, cast(Any, None), when_confirmed=at_once)
    joined(bench, "a")
    await counted.until(lambda: sum(len(each.queues) for each in drained if isinstance(each, PushQueueFree)) == QUEUES)
    assert max(counted.turns) <= STEPS_PER_TURN
    reported = [queue.queue_id for each in drained if isinstance(each, PushQueueFree) for queue in each.queues]
    assert reported == list(range(QUEUES))
    assert [each.group for each in drained if isinstance(each, Notify)] == [GROUP]


def test_group_with_a_changing_list_leaves_slices_to_others_and_gets_all_its_queues() -> None:
    bench = Bench(layout(queues=40))
    Client(bench, "a").connect()
    Client(bench, "other", replace(ordered(), group="other")).connect()
    flapping = joined(bench, "b")
    reported: dict[str, set[int]] = {GROUP: set(), "other": set()}
    slices = 0
    while (len(reported[GROUP]), len(reported["other"])) != (40, 40):
        slices += 1
        assert slices < 100, {group: len(queues) for group, queues in reported.items()}
        for each in bench.c.state.pending.drain(10):
            for queue in each.queues if isinstance(each, PushQueueFree) else ():
                reported[queue.group].add(queue.queue_id)
        if slices % 2:
            bench.c.membership.unregister(flapping.connection, "b", GROUP, bench.now_ms)
        else:
            flapping.beat()
    assert slices <= 2 * 40 * 2 // 10, "each of the two groups has every other slice; a queue and its notification count one each"


def test_slice_counts_each_notified_connection() -> None:
    """If no allocation rule of this broker names an owner, every member is notified of each queue."""
    bench = Bench(layout())
    members = [Client(bench, f"m{number}", ordered(allocate=AVERAGE)) for number in range(20)]
    for member in members:
        member.connect()
    bench.c.state.pending.drain()
    bench.layouts.adopt(layout(queues=100, counter=2))
    bench.c.layout_changed(TOPIC)
    pushes = [len(each.queues) for each in bench.c.state.pending.drain(40) if isinstance(each, PushQueueFree)]
    assert pushes == [2] * 20


def test_queue_granted_between_two_slices_is_not_reported_as_free() -> None:
    bench = Bench(layout(queues=10))
    a = joined(bench, "a")
    first = [queue.queue_id for each in bench.c.state.pending.drain(4) if isinstance(each, PushQueueFree) for queue in each.queues]
    a.lock(*range(2, 6))
    rest = [queue.queue_id for each in bench.c.state.pending.drain() if isinstance(each, PushQueueFree) for queue in each.queues]
    assert (len(first), rest) == (2, [6, 7, 8, 9])


async def test_effects_are_executed_in_slices_and_in_order_for_each_kind() -> None:
    """Other effects are executed in each turn while notices wait."""
    counted = TurnCounter()
    peers = {number: Peer(counted) for number in range(2 * STEPS_PER_TURN)}
    stale: list[StalePulls] = []

    class State:
        def __init__(self) -> None:
            self.on_effects: Callable[[], None] | None = None
            self.effects: list[Any] = [Notify(GROUP, tuple(peers), ListVersion(1, 1))]
            self.effects += [StalePulls(GROUP, TOPIC, number) for number in range(4 * STEPS_PER_TURN)]

        def drain(self, count_max: int, *, notices: bool) -> list[Any]:
            effects, self.effects = self.effects, []
            return effects

    state = State()
    EffectRunner(cast(Any, state), cast(Any, peers), counted.of(stale.append), when_confirmed=at_once)
    assert state.on_effects is not None
    state.on_effects()
    await counted.until(lambda: len(stale) == 4 * STEPS_PER_TURN)
    first = sum(len(peer.sent) for peer in peers.values())
    assert NOTICES_PER_TURN_MIN <= first < STEPS_PER_TURN, "the other effects come first, and notices do not wait for all of them"
    await counted.until(lambda: all(peer.sent for peer in peers.values()))
    assert [each.queue_id for each in stale] == list(range(4 * STEPS_PER_TURN))
    assert all(len(peer.sent) == 1 for peer in peers.values())
    assert max(counted.turns) <= STEPS_PER_TURN


async def test_close_stale_pull_and_free_queue_do_not_wait_for_pending_notices() -> None:
    counted = TurnCounter()
    done: list[tuple[int, int, str]] = []

    class Peer:
        peer = "p"
        codec = MSGPACK
        unsent_bytes = 0

        def __init__(self, connection: int) -> None:
            self._connection = connection

        def oneway(self, code: int, fields: Any = None, body: bytes = b"") -> None:
            done.append((len(counted.turns), self._connection, RequestCode(code).name))

        def abort(self, reason: str) -> None:
            done.append((len(counted.turns), self._connection, "closed"))

    class Ends(dict[int, Any]):
        def get(self, connection: int, default: Any = None) -> Any:
            return Peer(connection)

    def note_stale(effect: StalePulls) -> None:
        done.append((len(counted.turns), effect.queue_id, "stale"))

    bench = Bench(layout(queues=4))
    a, b = joined(bench, "a"), joined(bench, "b")
    bench.c.state.pending.drain()
    a.lock(0, 1, 2, 3)
    bench.c.state.pending.drain()
    state = bench.c.state
    EffectRunner(bench.c.state.pending, Ends(), note_stale, when_confirmed=at_once)
    groups = tuple(ordered(f"g{number}", expression="*") for number in range(100))
    members = [Client(bench, f"m{number}", *groups) for number in range(50)]
    for each in members:
        each.connect()
    await counted.until(lambda: len(done) >= 2 * STEPS_PER_TURN)
    begun = len(counted.turns)
    held = next(key for key, lock in state.locks if lock.held)
    state.end_grant(held, "a reset")
    state.pending.close_connection(b.connection, "its session is over")
    await counted.until(lambda: sum(1 for each in done if each[2] == "NOTIFY_CONSUMER_IDS_CHANGED") >= 100 * 50)
    ended = {what: turn for turn, _, what in done if turn > begun and what != "NOTIFY_CONSUMER_IDS_CHANGED"}
    assert ended == {"closed": begun + 1, "stale": begun + 1, "QUEUE_FREE": begun + 1}
    assert max(turn for turn, _, _ in done) > begun + 5, "notices were waiting"


async def read_status(bench: Bench, counted: TurnCounter) -> GroupStatus | None:
    """Return the status of GROUP by a request whose turns are counted."""
    requested = Request(Command(RequestCode.GROUP_STATUS, 1), cast(Any, None), GroupStatusHeader(GROUP), None)
    answering = asyncio.ensure_future(client_processor(bench).group_status(requested))
    await counted.until(answering.done)
    return decode_body(GroupStatusReply, cast(Command, answering.result()).body).status


async def test_queue_status_of_a_group_is_built_and_packed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a group with many topics and queues, no turn collects, computes or packs the status of more queues than a slice."""
    counted = TurnCounter()
    topics = [f"t{number:02}" for number in range(12)]
    bench = Bench(*(layout(topic, LANE_ITEMS_PER_TURN // 2) for topic in topics))
    Client(bench, "a", ordered(topics=topics)).connect()
    expected = bench.c.status.read(GROUP, bench.now_ms, lambda connection: "")
    keys: Callable[[str], Iterator[QueueKey]] = bench.c.status.queue_keys_of

    def each_key(group: str) -> Iterator[QueueKey]:
        for key in keys(group):
            counted.turns[-1] += 1
            yield key

    monkeypatch.setattr(GroupStatusReader, "queue_keys_of", lambda self, group: each_key(group))
    monkeypatch.setattr(PackedList, "append", counted.of(PackedList.append))
    assert await read_status(bench, counted) == expected
    assert max(counted.turns) <= 2 * LANE_ITEMS_PER_TURN + PART, "a key and a status each, and the keys before which the turn ends"
    assert sum(counted.turns) == 2 * 12 * (LANE_ITEMS_PER_TURN // 2) + 1, "and the member"


async def test_concurrent_status_requests_share_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these requests suspends, and each is smaller than the limit of a turn."""
    counted = TurnCounter()
    bench = Bench(layout(TOPIC, LANE_ITEMS_PER_TURN - 2))
    groups = [f"g{number}" for number in range(20)]
    Client(bench, "a", *(ordered(name) for name in groups)).connect()
    monkeypatch.setattr(GroupStatusReader, "read_queue", counted.of(GroupStatusReader.read_queue))
    budget = TurnBudget(LANE_ITEMS_PER_TURN)
    dispatcher = Dispatcher([client_processor(bench, budget)], None, {client.QUERY_LANE: LaneLimits(2, 100)}, None, budget)
    endpoint = FakeEndpoint()
    for number, name in enumerate(groups):
        command = Command(RequestCode.GROUP_STATUS, number, fields=to_plain(GroupStatusHeader(name)))
        dispatcher(command, cast(Any, endpoint))
    await counted.until(lambda: len(endpoint.sent) == len(groups))
    replies = [decode_body(GroupStatusReply, response.body).status for response in endpoint.sent]
    assert sorted(reply.group for reply in replies if reply is not None) == sorted(groups)
    assert max(counted.turns) <= LANE_ITEMS_PER_TURN
    assert sum(counted.turns) == len(groups) * (LANE_ITEMS_PER_TURN - 2)


async def test_member_status_of_a_group_is_built_and_packed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = TurnCounter()
    bench = Bench(layout())
    for number in range(3 * LANE_ITEMS_PER_TURN):
        Client(bench, f"c{number:04}").connect()
    expected = bench.c.status.read(GROUP, bench.now_ms, lambda connection: "")
    monkeypatch.setattr(GroupStatusReader, "read_member", counted.of(GroupStatusReader.read_member))
    assert await read_status(bench, counted) == expected
    assert max(counted.turns) <= LANE_ITEMS_PER_TURN
    assert sum(counted.turns) == 3 * LANE_ITEMS_PER_TURN


async def test_progress_moved_by_retention_is_updated_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = TurnCounter()
    bench = Bench(layout(queues=QUEUES))
    generations = [Progress(number + 1, 5) for number in range(QUEUES)]
    progress = bench.c.state.progress
    for queue_id, each in enumerate(generations):
        progress.set_progress((GROUP, TOPIC, queue_id), each)
    monkeypatch.setattr(ProgressTable, "set_progress", counted.of(ProgressTable.set_progress))

    class State:
        coordination = bench.c

    keeper = StoreMaintenance(cast(Any, FakeHost()), cast(Any, None), cast(Any, State()))
    moving = asyncio.ensure_future(keeper.move_groups([(TOPIC, queue_id, 9) for queue_id in range(QUEUES)]))
    await asyncio.sleep(0)
    progress.record_commit((GROUP, TOPIC, QUEUES - 1), 12, 0, bench.now_ms)
    await counted.until(moving.done)
    assert max(counted.turns) <= MOVES_PER_SLICE
    assert sum(counted.turns) == QUEUES - 1
    moved = [each for _, each in bench.c.state.progress]
    assert {(each.offset, each.gap) for each in moved[:-1]} == {(9, (5, 9))}
    assert (moved[-1].offset, moved[-1].gap) == (12, None), "a commit in between is not undone"


async def test_forgetting_idle_groups_and_sequences_scans_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = TurnCounter()
    bench = Bench()
    for number in range(3 * SLICE_ITEMS):
        bench.c.state.activity.record_activity(f"g{number}")
    sequences = SequenceTable()
    for number in range(3 * SLICE_ITEMS):
        scope = Scope("ab" * 16, 0, TOPIC, number)
        sequences.record_frame(scope, FrameSequence("ab" * 16, 0, 1, 0, 1, False, 0), StoredFrame(0, 0, 1_000 * IDLE_MS * (number % 2)))
    monkeypatch.setattr(GroupAdmin, "is_idle", counted.of(GroupAdmin.is_idle))
    monkeypatch.setattr(LastFrame, "idle_ms_max", property(counted.of(lambda self: IDLE_MS)))

    class State:
        coordination = bench.c

    state = State()
    state.sequences = sequences  # type: ignore[attr-defined]
    keeper = StoreMaintenance(cast(Any, FakeHost()), cast(Any, None), cast(Any, state))
    work = asyncio.ensure_future(keeper._forget_groups())
    await counted.until(work.done)
    assert (max(counted.turns), sum(counted.turns)) == (SLICE_ITEMS, 3 * SLICE_ITEMS)
    counted.turns = [0]
    work = asyncio.ensure_future(keeper._forget_sequences(2_000 * IDLE_MS))
    await counted.until(work.done)
    assert (max(counted.turns), sum(counted.turns)) == (SLICE_ITEMS, 3 * SLICE_ITEMS)
    assert len(sequences) == 0

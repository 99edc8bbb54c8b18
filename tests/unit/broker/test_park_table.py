"""The table of parked keys: its rows and limits, what they hide, and the rules by which no message is in neither flow, and none in both."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lockstep.broker.journal import Journal, decode_changes
from lockstep.broker.tables import park_table
from lockstep.broker.tables.park_table import KeyFilter, ParkTable, WaitingFilter, sharding_key_in
from lockstep.protocol.bodies import ParkedKey, ParkState, ReplayKey
from lockstep.protocol.bodies.parks import KEY_BYTES_MAX, KEYS_PER_QUEUE_MAX, REPLAYS_MAX
from lockstep.protocol.errors import ParkRefusedError, StoreError
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.properties import decode_properties
from support.effort import examples
from support.park_flows import PAGE, QUEUE, RULES, Fate, Flows, stored

S = ParkState
OTHER_QUEUE = ("billing", "orders", 1)


def table_of(*states: tuple[str, int, ParkState]) -> ParkTable:
    """Return a table with rows of (key, next, state) in QUEUE. An ended one has ended at its `next`."""
    table = ParkTable(Journal())
    for key, offset, state in states:
        put(table, key, offset, state)
    return table


def put(table: ParkTable, key: str, offset: int, state: ParkState = S.PARKED, queue: tuple[str, str, int] = QUEUE) -> ParkedKey:
    table.park(queue, key, offset, 3, "poisoned", 1_000)
    row = got(table, key, queue)
    if state is S.ENDED:
        table.set_state(row, S.REPLAYING)
        table.end_replay(queue, key, 0)
    elif state is not S.PARKED:
        table.set_state(row, state)
    return got(table, key, queue)


def got(table: ParkTable, key: str, queue: tuple[str, str, int] = QUEUE) -> ParkedKey:
    row = table.get(queue, key)
    assert row is not None
    return row


def replayed(journal: Journal) -> ParkTable:
    """Return the table that the records of a journal make."""
    table = ParkTable(Journal())
    for record in journal.encode(1 << 30):
        for change in decode_changes(record):
            table.apply(change)
    return table


# -------------------------------------------------------------------------------------------------------------- sharding keys


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ("", None),
        ("a\x01b", None),
        ("__SHARDINGKEY\x01k", "k"),
        ("__SHARDINGKEY\x01k\x02", "k"),
        ("__SHARDINGKEY\x01k\x02a\x01b", "k"),
        ("a\x01b\x02__SHARDINGKEY\x01k", "k"),
        ("a\x01b\x02__SHARDINGKEY\x01k\x02", "k"),
        ("a\x01b\x02__SHARDINGKEY\x01k\x02c\x01d\x02", "k"),
        ("__SHARDINGKEY\x01one\x02__SHARDINGKEY\x01two", "two"),
        ("__SHARDINGKEY\x01one\x02a\x01b\x02__SHARDINGKEY\x01two\x02c\x01d", "two"),
        ("__SHARDINGKEY\x01", None),
        ("__SHARDINGKEY\x01\x02", None),
        ("__SHARDINGKEY\x01one\x02__SHARDINGKEY\x01", "one"),
        ("__SHARDINGKEY\x01one\x02__SHARDINGKEY\x01\x02", "one"),
        ("__SHARDINGKEY\x01\x02__SHARDINGKEY\x01two", "two"),
        ("X__SHARDINGKEY\x01k", None),
        ("__SHARDINGKEYX\x01k", None),
        ("a\x01__SHARDINGKEY\x01k", None),
        ("__SHARDINGKEY", None),
        ("__SHARDINGKEY\x01ä/é 日本", "ä/é 日本"),
        ("__SHARDINGKEY\x01a\x01b", "a\x01b"),
    ],
)
def test_sharding_key_is_found_where_the_stored_properties_have_it(properties: str, key: str | None) -> None:
    assert sharding_key_in(b"\x02" + properties.encode()) == (None if key is None else key.encode())
    assert decode_properties(properties).get("__SHARDINGKEY") == key, "members read the same key"


@given(
    st.lists(
        st.tuples(st.sampled_from(["__SHARDINGKEY", "_SHARDINGKEY", "a", ""]), st.sampled_from(["", "k", "kk", "\x01", "__SHARDINGKEY"]))
    )
)
def test_broker_and_members_find_the_same_sharding_key(pairs: list[tuple[str, str]]) -> None:
    for end in ("", "\x02"):
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + end
        key = decode_properties(text).get("__SHARDINGKEY")
        assert sharding_key_in(b"\x02" + text.encode()) == (None if key is None else key.encode())


# --------------------------------------------------------------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("state", "kept"),
    [(S.PARKED, []), (S.REPLAYING, []), (S.DROPPING, []), (S.ENDED, [10, 11, 99])],
)
def test_row_hides_every_message_of_its_key_until_its_end(state: ParkState, kept: list[int]) -> None:
    hidden = table_of(("a", 10, state)).filter(QUEUE)
    assert hidden is not None
    assert [offset for offset in (0, 9, 10, 11, 99) if hidden.keep(stored("a"), offset)] == kept
    for other in (None, "", "b", "aa", "A"):
        assert hidden.keep(stored(other or None), 10)


@pytest.mark.parametrize("state", [S.PARKED, S.REPLAYING, S.DROPPING])
def test_what_waits_begins_where_the_key_was_parked(state: ParkState) -> None:
    table = table_of(("a", 10, state), ("b", 12, S.ENDED))
    waiting = WaitingFilter(table.rows(QUEUE))
    assert [offset for offset in (9, 10, 11) if waiting.keep(stored("a"), offset)] == [10, 11]
    assert not any(waiting.keep(stored(key), 99) for key in ("b", "c", None))


def test_key_filter_passes_one_key() -> None:
    keep = KeyFilter("ä").keep
    assert [key for key in (None, "a", "ä", "ää") if keep(stored(key), 0)] == ["ä"]


def test_other_queues_are_not_touched() -> None:
    table = table_of(("a", 10, S.PARKED))
    for other in (OTHER_QUEUE, ("billing", "events", 0), ("shipping", "orders", 0)):
        assert table.filter(other) is None
        assert other not in table
        assert not table.rows(other)
        table.note_passed(other, 100)
    assert QUEUE in table


def test_filter_is_another_object_only_when_something_else_is_hidden() -> None:
    """A pull is read again if the filter has changed: a replay that moves on must not repeat the reads of the main flow."""
    table = table_of(("a", 10, S.PARKED))
    first = table.filter(QUEUE)
    assert table.filter(QUEUE) is first
    table.advance(table.set_state(got(table, "a"), S.REPLAYING), 12)
    table.commit_replay(QUEUE, "a", 15)
    table.park(QUEUE, "a", 15, 3, "again", 2_000)
    table.move_within(QUEUE, 20, 100)
    assert table.filter(QUEUE) is first
    for change in (
        lambda: put(table, "b", 30),
        lambda: put(table, "b", 30, S.ENDED),
        lambda: put(table, "b", 40),
        lambda: table.clear(QUEUE),
    ):
        before = table.filter(QUEUE)
        change()
        assert table.filter(QUEUE) is not before


# ------------------------------------------------------------------------------------------------------------------------ PARK


@pytest.mark.parametrize(
    ("state", "offset", "expected"),
    [
        (S.PARKED, 9, (S.PARKED, 10)),
        (S.PARKED, 10, (S.PARKED, 10)),
        (S.PARKED, 11, (S.PARKED, 10)),
        (S.REPLAYING, 9, (S.REPLAYING, 10)),
        (S.REPLAYING, 10, (S.PARKED, 10)),
        (S.REPLAYING, 11, (S.PARKED, 11)),
        (S.DROPPING, 9, (S.DROPPING, 10)),
        (S.DROPPING, 10, (S.DROPPING, 10)),
        (S.DROPPING, 11, (S.DROPPING, 10)),
        (S.ENDED, 9, (S.ENDED, 10)),
        (S.ENDED, 10, (S.PARKED, 10)),
        (S.ENDED, 11, (S.PARKED, 11)),
    ],
)
def test_repeated_park_changes_nothing_unless_the_key_has_moved_on(state: ParkState, offset: int, expected: tuple[ParkState, int]) -> None:
    table = table_of(("a", 10, state))
    table.park(QUEUE, "a", offset, 7, "again", 2_000)
    row = got(table, "a")
    assert (row.state, row.next) == expected
    again = expected != (state, 10) or (state, offset) == (S.ENDED, 10)
    assert (row.attempts, row.error, row.since_ms) == ((7, "again", 2_000) if again else (3, "poisoned", 1_000))
    assert row.upto == (10 if row.state is S.ENDED else 0)
    assert table.count == 1


def test_thousand_keys_of_a_queue_can_be_parked_and_no_more() -> None:
    table = ParkTable(Journal())
    for number in range(KEYS_PER_QUEUE_MAX):
        put(table, f"k{number}", number)
    with pytest.raises(
        ParkRefusedError, match="1000 keys of group billing are parked in orders queue 0, which is the limit: replay or drop"
    ):
        put(table, "one more", 5_000)
    assert table.count == KEYS_PER_QUEUE_MAX
    table.park(QUEUE, "k7", 7, 3, "repeated", 1_000)
    put(table, "one more", 5_000, queue=OTHER_QUEUE)
    table.set_state(got(table, "k0"), S.REPLAYING)
    table.end_replay(QUEUE, "k0", 0)
    assert table.filter(QUEUE, progress=0) is not None, "its end, 0, is passed: it makes room"
    put(table, "one more", 5_000)


def test_broker_has_a_limit_over_all_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(park_table, "KEYS_MAX", 3)
    table = table_of(("a", 0, S.PARKED), ("b", 0, S.PARKED))
    put(table, "c", 0, queue=OTHER_QUEUE)
    for queue in (QUEUE, OTHER_QUEUE, ("shipping", "orders", 0)):
        with pytest.raises(ParkRefusedError, match="3 keys are parked at this broker, which is the limit: replay or drop some"):
            put(table, "d", 0, queue=queue)
    table.clear(OTHER_QUEUE)
    put(table, "d", 0)


@pytest.mark.parametrize("key", ["k" * KEY_BYTES_MAX, "ä" * (KEY_BYTES_MAX // 2)])
def test_key_of_a_kibibyte_can_be_parked_and_a_longer_one_cannot(key: str) -> None:
    table = ParkTable(Journal())
    put(table, key, 0)
    with pytest.raises(ParkRefusedError, match=f"has {KEY_BYTES_MAX + 1} bytes: at most 1024 can be parked"):
        put(table, key + "x", 0)
    assert table.count == 1


# ------------------------------------------------------------------------------------------------------------- replay and drop


def test_replays_are_the_sixteen_keys_that_wait_longest() -> None:
    table = ParkTable(Journal())
    for number in range(20):
        put(table, f"k{number}", 100 - number, (S.REPLAYING, S.DROPPING)[number % 2])
    put(table, "parked", 1)
    put(table, "ended", 2, S.ENDED)
    found = table.replays(QUEUE)
    assert found == tuple(ReplayKey(f"k{19 - n}", 81 + n, (19 - n) % 2 == 1) for n in range(REPLAYS_MAX))
    assert table.replays(OTHER_QUEUE) == ()
    assert table.waiting_count(QUEUE) == 21
    assert table.waiting_count(OTHER_QUEUE) == 0


@pytest.mark.parametrize(("offset", "expected"), [(9, 10), (10, 10), (11, 11)])
def test_commit_of_a_replay_moves_forward_only(offset: int, expected: int) -> None:
    table = table_of(("a", 10, S.REPLAYING))
    table.commit_replay(QUEUE, "a", offset)
    assert got(table, "a").next == expected


def test_commit_and_end_without_a_replay() -> None:
    table = table_of(("a", 10, S.PARKED), ("b", 10, S.DROPPING), ("c", 10, S.ENDED))
    for request in (lambda: table.commit_replay(QUEUE, "a", 11), lambda: table.end_replay(QUEUE, "a", 0)):
        with pytest.raises(ParkRefusedError, match="key 'a' of group billing in orders queue 0 is parked: it is not replayed"):
            request()
    for key in ("b", "c", "unknown"):
        table.commit_replay(QUEUE, key, 11)
    assert [got(table, key).next for key in "abc"] == [10, 10, 10], "the broker itself moves a key that is dropped"
    assert table.end_replay(QUEUE, "c", 99) == ParkEndReply(upto=10)
    assert table.end_replay(QUEUE, "unknown", 99) == ParkEndReply(upto=0)


def test_key_that_is_dropped_is_not_replayed_and_a_replay_can_be_dropped() -> None:
    table = table_of(("a", 10, S.DROPPING), ("b", 10, S.REPLAYING), ("c", 10, S.PARKED))
    with pytest.raises(ParkRefusedError, match="key 'a' of group billing in orders queue 0 is being dropped already"):
        table.check_state(got(table, "a"), S.REPLAYING)
    for key, state in (("a", S.DROPPING), ("b", S.REPLAYING), ("b", S.DROPPING), ("c", S.REPLAYING), ("c", S.DROPPING)):
        table.check_state(got(table, key), state)
    unchanged = got(table, "b")
    assert table.set_state(unchanged, S.REPLAYING) is unchanged
    assert table.set_state(unchanged, S.DROPPING) == replace(unchanged, state=S.DROPPING)


@pytest.mark.parametrize("state", [S.REPLAYING, S.DROPPING])
@pytest.mark.parametrize("by", ["the request", "a pull"])
@pytest.mark.parametrize(("reached", "reply"), [(9, ParkEndReply(until=10)), (10, ParkEndReply(upto=10)), (11, ParkEndReply(upto=11))])
def test_replay_ends_only_where_nothing_has_passed_its_key(state: ParkState, by: str, reached: int, reply: ParkEndReply) -> None:
    """U = S − 1, S and S + 1, where S = 10 is named by the request, or known from pulls."""
    table = table_of(("a", reached, state))
    if by == "a pull":
        table.note_passed(QUEUE, 10)
        table.note_passed(QUEUE, 4)
    assert table.end_replay(QUEUE, "a", 10 if by == "the request" else 0) == reply
    row = got(table, "a")
    assert (row.state, row.next, row.upto) == ((state, 9, 0) if reached == 9 else (S.ENDED, reached, reached))
    assert table.end_replay(QUEUE, "a", 10) == reply, "a repeated request has the same response"


@pytest.mark.parametrize(("state", "least", "until"), [(S.DROPPING, 1_010, 1_010), (S.DROPPING, 1_011, None), (S.REPLAYING, 1_011, 1_011)])
def test_drop_that_is_far_from_its_end_names_none(state: ParkState, least: int, until: int | None) -> None:
    """Its owner would stop to pull the main flow after three refused ends, for as long as the broker copies."""
    table = table_of(("a", 10, state))
    assert table.end_replay(QUEUE, "a", least) == ParkEndReply(until=until)
    assert got(table, "a").state is state


def test_pulls_from_before_the_first_row_do_not_count() -> None:
    """What they have passed of the key, they have returned."""
    table = ParkTable(Journal())
    table.note_passed(QUEUE, 50)
    put(table, "a", 10, S.REPLAYING)
    assert table.end_replay(QUEUE, "a", 0) == ParkEndReply(upto=10)


@pytest.mark.parametrize(("progress", "stays"), [(0, True), (9, True), (10, False), (11, False)])
def test_row_of_an_ended_replay_stays_until_progress_has_passed_its_end(progress: int, stays: bool) -> None:
    table = table_of(("a", 10, S.ENDED))
    assert (table.filter(QUEUE, progress) is not None) is stays
    assert (QUEUE in table, table.count) == (stays, int(stays))


def test_progress_removes_no_row_that_waits() -> None:
    table = table_of(("a", 10, S.PARKED), ("b", 10, S.REPLAYING), ("c", 10, S.DROPPING), ("d", 10, S.ENDED))
    table.filter(QUEUE, 1_000)
    assert [row.key for row in table] == ["a", "b", "c"]


# --------------------------------------------------------------------------------------------------------- resets and retention


@pytest.mark.parametrize(
    ("first", "end", "state", "expected"),
    [
        (0, 100, S.PARKED, (10, 0)),
        (10, 100, S.PARKED, (10, 0)),
        (11, 100, S.PARKED, (11, 0)),
        (0, 10, S.PARKED, (10, 0)),
        (0, 9, S.PARKED, (9, 0)),
        (0, 10, S.ENDED, (10, 10)),
        (0, 9, S.ENDED, (9, 9)),
        (11, 100, S.ENDED, (11, 10)),
    ],
)
def test_rows_are_moved_into_the_bounds_of_their_queue(first: int, end: int, state: ParkState, expected: tuple[int, int]) -> None:
    table = table_of(("a", 10, state))
    put(table, "a", 10, queue=OTHER_QUEUE)
    table.move_within(QUEUE, first, end)
    row = got(table, "a")
    assert (row.state, row.next, row.upto) == (state, *expected)
    assert got(table, "a", OTHER_QUEUE).next == 10


@pytest.mark.parametrize(
    ("forget", "left"),
    [
        (lambda table: table.clear(QUEUE), ["billing orders 1", "billing events 0", "shipping orders 0"]),
        (
            lambda table: table.clear(("nobody", "orders", 0)),
            ["billing orders 0", "billing orders 1", "billing events 0", "shipping orders 0"],
        ),
        (lambda table: table.drop_topic("orders"), ["billing events 0"]),
        (lambda table: table.drop_topic("unknown"), ["billing orders 0", "billing orders 1", "billing events 0", "shipping orders 0"]),
        (lambda table: table.drop_group("billing"), ["shipping orders 0"]),
    ],
)
def test_rows_are_forgotten_with_their_queue_topic_or_group(forget: Callable[[ParkTable], None], left: list[str]) -> None:
    table = ParkTable(Journal())
    for queue in (QUEUE, OTHER_QUEUE, ("billing", "events", 0), ("shipping", "orders", 0)):
        put(table, "a", 10, queue=queue)
        put(table, "b", 10, S.REPLAYING, queue=queue)
        table.filter(queue)
        table.note_passed(queue, 500)
    forget(table)
    assert list(dict.fromkeys(f"{row.group} {row.topic} {row.queue_id}" for row in table)) == left
    assert table.count == 2 * len(left)
    if QUEUE not in table:
        assert table.filter(QUEUE) is None
        put(table, "c", 7, S.REPLAYING)
        assert table.end_replay(QUEUE, "c", 0) == ParkEndReply(upto=7), "pulls from before are forgotten too"


# --------------------------------------------------------------------------------------------------------------------- durable


def every_kind_of_change(table: ParkTable) -> None:
    for number, state in enumerate(ParkState):
        for key in range(3):
            put(table, f"{state.value}{key}", 10 * number + key, state)
    put(table, "a", 1, queue=OTHER_QUEUE)
    put(table, "b", 2, queue=("billing", "events", 0))
    put(table, "c", 3, queue=("shipping", "refunds", 0))
    table.park(QUEUE, "replaying1", 50, 9, "ä\n", 2_000)
    table.commit_replay(QUEUE, "replaying2", 60)
    table.move_within(QUEUE, 5, 40)
    table.filter(QUEUE, 31)
    table.clear(OTHER_QUEUE)
    table.drop_topic("events")


def rows_of(table: ParkTable) -> list[ParkedKey]:
    return sorted(table, key=lambda row: (row.group, row.topic, row.queue_id, row.key))


def test_replay_of_the_journal_and_a_snapshot_give_the_same_table() -> None:
    journal = Journal()
    table = ParkTable(journal)
    every_kind_of_change(table)
    from_log = replayed(journal)
    from_snapshot = ParkTable(Journal())
    from_snapshot.restore([list(row) for row in table.snapshot()])
    assert rows_of(from_log) == rows_of(from_snapshot) == rows_of(table)
    assert from_log.count == from_snapshot.count == table.count == len(rows_of(table)) > 10
    assert {row.state for row in table} == set(ParkState)


def test_changes_that_a_snapshot_has_already_can_be_applied_again() -> None:
    journal = Journal()
    table = ParkTable(journal)
    every_kind_of_change(table)
    before = rows_of(table)
    for record in journal.encode(1 << 30):
        for change in decode_changes(record):
            table.apply(change)
    assert (rows_of(table), table.count) == (before, len(before))


def test_snapshot_keeps_the_rows_of_its_time() -> None:
    table = table_of(("a", 10, S.PARKED))
    snapshot = table.snapshot()
    table.clear(QUEUE)
    assert [row[:5] for row in snapshot] == [["billing", "orders", 0, "a", 10]]


def test_unknown_change_is_an_error() -> None:
    with pytest.raises(StoreError, match=r"'park\.renamed'"):
        ParkTable(Journal()).apply(("park.renamed", "billing"))


# --------------------------------------------------------------------------------- two flows: what each of their rules is for


def parked(*without: str, before: int = 0, after: int = 8) -> Flows:
    """Return a queue with an owner, in which key "a" is parked at its first message. Every second message is of "a"."""
    flows = Flows(*without)
    flows.produce(*["b"] * before, *["a", "b"] * (after // 2))
    flows.start_owner()
    read(flows)
    for _ in range(before):
        flows.call("b")
    flows.fail("a")
    return flows


def read(flows: Flows) -> None:
    """Let the owner pull once, and receive the answer."""
    flows.pull()
    flows.answer()
    if flows.owner is not None and flows.owner.answers:
        flows.arrive()


def handle_main(flows: Flows) -> None:
    """Let the owner read the main flow to its end, and accept everything."""
    assert flows.owner is not None
    while flows.owner.queue.next_offset < flows.end and flows.held is None:
        read(flows)
        for lane in flows.callable():
            while lane in flows.callable():
                flows.call(lane)


def replay_all(flows: Flows, key: str = "a") -> None:
    """Let the owner replay a key up to the end of the queue."""
    assert flows.owner is not None
    replay = flows.owner.replays[key]
    while replay.position < flows.end:
        flows.read_replay(key)
        while replay.lane:
            flows.call_replay(key)


def finish(flows: Flows) -> None:
    flows.go_on()
    flows.check_all()


def answer_in_flight(*without: str) -> None:
    """A pull has left the key out, and its answer is on its way while the owner asks for the end where it has pulled itself."""
    flows = parked(*without, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.produce("a", "b")
    flows.pull()
    flows.answer()
    flows.end_replay("a")
    finish(flows)


def held_pull(*without: str) -> None:
    """A held pull has passed a message of the key, and found nothing for the owner."""
    flows = parked(*without, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.produce("a")
    flows.pull()
    flows.answer()
    assert flows.held == flows.end
    flows.end_replay("a")
    flows.produce("b")
    finish(flows)


def pull_read_before_the_end(*without: str) -> None:
    """A pull was read while the key was left out, and is answered after its replay has ended: such as a read from the disk."""
    flows = parked(*without, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.produce("a", "b")
    flows.pull()
    flows.end_replay("a")
    flows.answer()
    finish(flows)


def lost_response_to_the_end(*without: str) -> None:
    """The replay has ended at the broker, and the main flow brings the key again, before the owner knows."""
    flows = parked(*without, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.end_replay("a", Fate.LOST)
    flows.sync()
    flows.produce("a", "b")
    read(flows)
    flows.end_replay("a")
    finish(flows)


def end_that_never_arrived(*without: str) -> None:
    """A pull has left the key out since the end was asked for, and the broker that gets the repeated request has forgotten that."""
    flows = parked(*without, after=PAGE)
    handle_main(flows)
    flows.replay("a")
    replay_all(flows)
    flows.end_replay("a", Fate.UNDELIVERED)
    flows.produce("a", "b")
    read(flows)
    flows.crash()
    flows.end_replay("a")
    finish(flows)


def done_range_over_the_key(*without: str) -> None:
    """The next owner does not pull what the last one has finished, nor the messages of the key that were left out in between. Its replay
    has come less far, and it has pulled nothing yet."""
    flows = Flows(*without)
    flows.produce("b", "a", "c", "a", "c", "a", "c", "d")
    flows.start_owner()
    read(flows)
    flows.fail("a")
    flows.call("c")
    read(flows)
    while "c" in flows.callable():
        flows.call("c")
    flows.commit()
    assert (flows.progress, flows.done) == (0, (1, 7)), "b waits at 0"
    flows.kill_owner()
    flows.crash()
    flows.start_owner()
    flows.replay("a")
    flows.read_replay("a", examined=1)
    flows.call_replay("a")
    flows.end_replay("a")
    finish(flows)


def owner_dies_after_the_end(*without: str) -> None:
    """The next owner begins below the end of the replay: what was replayed must not come again."""
    flows = parked(*without, before=1, after=8)
    flows.replay("a")
    replay_all(flows)
    handle_main(flows)
    flows.end_replay("a")
    flows.kill_owner()
    finish(flows)


def fetched_messages_of_the_key(*without: str) -> None:
    """The owner has fetched later messages of the key when one of them is parked."""
    flows = parked(*without, after=PAGE)
    while flows.callable():
        flows.call(flows.callable()[0])
    finish(flows)


def lost_response_to_a_park(*without: str) -> None:
    """The key is parked at the broker, pulls leave it out, and the owner does not know that."""
    flows = Flows(*without)
    flows.produce("a", "b", "a", "b", "b", "b", "a", "b")
    flows.start_owner()
    read(flows)
    flows.fail("a", Fate.LOST)
    flows.sync()
    read(flows)
    while flows.callable():
        flows.call(flows.callable()[0])
    finish(flows)


def park_that_was_not_synced(*without: str) -> None:
    """A pull has left the key out, the broker forgets why, and the owner dies after it has committed what it has finished around it."""
    flows = Flows(*without)
    flows.produce("a", "b", "b", "b", "b", "a", "b", "b")
    flows.start_owner()
    read(flows)
    flows.fail("a", Fate.LOST)
    read(flows)
    while "b" in flows.callable():
        flows.call("b")
    flows.crash()
    flows.commit()
    flows.kill_owner()
    finish(flows)


SCENARIOS: list[tuple[Callable[..., None], str]] = [
    (answer_in_flight, "passed"),
    (held_pull, "held"),
    (done_range_over_the_key, "done"),
    (pull_read_before_the_end, "read again"),
    (lost_response_to_the_end, "take nothing"),
    (end_that_never_arrived, "pulled now"),
    (owner_dies_after_the_end, "row stays"),
    (fetched_messages_of_the_key, "leave out"),
    (lost_response_to_a_park, "park again"),
    (park_that_was_not_synced, "no ranges"),
]


@pytest.mark.parametrize(("scenario", "needed"), SCENARIOS)
def test_message_is_in_exactly_one_flow_by_the_rule_that_is_for_it(scenario: Callable[..., None], needed: str) -> None:
    """Without the rule one of the laws is broken."""
    scenario()
    with pytest.raises(AssertionError):
        scenario(needed)


def test_every_rule_has_a_scenario() -> None:
    assert {needed for _, needed in SCENARIOS} == set(RULES)


STORY: list[Callable[[Flows], None]] = [
    read,
    lambda flows: flows.fail("a"),
    lambda flows: flows.call("b"),
    lambda flows: flows.commit(),
    read,
    lambda flows: flows.replay("a"),
    lambda flows: flows.read_replay("a", examined=3),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.read_replay("a"),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.produce("a", "b"),
    lambda flows: flows.pull(),
    lambda flows: flows.answer(),
    lambda flows: flows.end_replay("a"),
    lambda flows: flows.arrive(),
    lambda flows: flows.read_replay("a"),
    lambda flows: flows.call_replay("a"),
    lambda flows: flows.end_replay("a"),
    lambda flows: flows.call("b"),
    lambda flows: flows.commit(),
]
"""Message by message: a key is parked, and replayed while the main flow goes on. The first end is refused."""
PARK, COMMIT, REPLAY, REFUSED_END, END = 1, 3, 5, 15, 19
"""Steps of the story."""


def story(flows: Flows, steps: int = len(STORY)) -> None:
    flows.produce(*"abababab")
    flows.start_owner()
    for step in STORY[:steps]:
        step(flows)


def test_story_comes_to_its_end() -> None:
    flows = Flows()
    story(flows)
    assert flows.owner is not None
    assert (flows.owner.hidden, flows.owner.replays) == ({"a": 10}, {})
    assert [offset for offset in flows.accepted if flows.keys[offset] == "a"] == [0, 2, 4, 6, 8]
    finish(flows)
    assert sorted(flows.accepted) == [*range(10)], "each once"


@pytest.mark.parametrize("steps", range(len(STORY) + 1))
@pytest.mark.parametrize("happens", ["owner dies", "broker dies", "broker dies after a sync", "both die", "connection ends"])
def test_nothing_is_lost_nor_accepted_twice_whatever_dies_between_two_steps(steps: int, happens: str) -> None:
    flows = Flows()
    story(flows, steps)
    if "sync" in happens:
        flows.sync()
    if "broker" in happens or "both" in happens:
        flows.crash()
    if "owner" in happens or "both" in happens:
        flows.kill_owner()
    flows.disconnect()
    finish(flows)


@pytest.mark.parametrize("steps", range(REPLAY + 1, END + 1))
@pytest.mark.parametrize("owned", [True, False])
def test_key_that_is_dropped_between_two_steps_is_accepted_or_copied_in_order(steps: int, owned: bool) -> None:
    flows = Flows()
    story(flows, steps)
    if not owned:
        flows.kill_owner()
    flows.drop("a")
    flows.copy()
    flows.crash()
    finish(flows)


@pytest.mark.parametrize(
    ("fate", "dies"), [(fate, dies) for fate in (Fate.LOST, Fate.UNDELIVERED) for dies in ("nobody", "owner", "broker")]
)
@pytest.mark.parametrize("what", ["park", "commit", "replay", "refused end", "end"])
def test_request_that_is_lost_on_its_way_or_on_its_way_back_is_made_good(what: str, fate: Fate, dies: str) -> None:
    """Each request of an owner, without a response: it is repeated, or the next owner goes on where the broker knows."""
    flows = Flows()
    story(flows, {"park": PARK, "commit": COMMIT, "replay": REPLAY + 2, "refused end": REFUSED_END, "end": END}[what])
    match what:
        case "park":
            flows.fail("a", fate)
        case "commit":
            flows.commit(fate)
        case "replay":
            flows.call_replay("a", fate)
        case _:
            flows.end_replay("a", fate)
    if dies == "owner":
        flows.kill_owner()
    elif dies == "broker":
        flows.crash()
    finish(flows)


FATES = st.sampled_from([Fate.ANSWERED, Fate.ANSWERED, Fate.LOST, Fate.UNDELIVERED])


class BothFlows(RuleBasedStateMachine):
    """Any interleaving of messages, pulls, calls, parks, replays, drops and deaths: each message of a key in one flow, and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = Flows()

    @initialize(steps=st.integers(0, len(STORY)))
    def begin(self, steps: int) -> None:
        story(self.flows, steps)

    # ------------------------------------------------------------------------------------------------------ the main flow

    @rule(keys=st.lists(st.sampled_from(["a", "a", "b", None]), min_size=1, max_size=4))
    def store(self, keys: list[str | None]) -> None:
        self.flows.produce(*keys)

    @precondition(lambda self: self.flows.owner is not None and self.flows.reading is None and not self.flows.owner.answers)
    @rule(answered=st.booleans(), arrives=st.booleans())
    def pull(self, answered: bool, arrives: bool) -> None:
        self.flows.pull()
        if answered:
            self.flows.answer()
            if arrives and self.flows.owner is not None and self.flows.owner.answers:
                self.flows.arrive()

    @precondition(lambda self: self.flows.reading is not None)
    @rule()
    def answer(self) -> None:
        self.flows.answer()

    @precondition(lambda self: self.flows.held is not None and self.flows.reading is None)
    @rule()
    def expire(self) -> None:
        self.flows.expire()

    @precondition(lambda self: self.flows.owner is not None and self.flows.owner.answers)
    @rule()
    def arrive(self) -> None:
        self.flows.arrive()

    @precondition(lambda self: self.flows.owner is not None and self.flows.callable())
    @rule(data=st.data(), count=st.integers(1, 4))
    def call(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            if lanes := self.flows.callable():
                self.flows.call(data.draw(st.sampled_from(lanes)))

    @precondition(lambda self: self.keyed_lanes())
    @rule(data=st.data(), fate=FATES)
    def fail(self, data: st.DataObject, fate: Fate) -> None:
        self.flows.fail(data.draw(st.sampled_from(self.keyed_lanes())), fate)

    def keyed_lanes(self) -> list[str]:
        return [] if self.flows.owner is None else [lane for lane in self.flows.callable() if isinstance(lane, str)]

    @precondition(lambda self: self.flows.owner is not None)
    @rule(fate=FATES)
    def commit(self, fate: Fate) -> None:
        self.flows.commit(fate)

    @precondition(lambda self: self.flows.owner is not None and self.flows.owner.unsure)
    @rule(data=st.data(), fate=FATES)
    def park_again(self, data: st.DataObject, fate: Fate) -> None:
        assert self.flows.owner is not None
        self.flows.park_again(data.draw(st.sampled_from(list(self.flows.owner.unsure))), fate)

    # ------------------------------------------------------------------------------------------------------------ replays

    @precondition(lambda self: any(row.state is S.PARKED for row in self.flows.table))
    @rule(key=st.sampled_from("aab"))
    def replay(self, key: str) -> None:
        self.flows.replay(key)

    @precondition(lambda self: self.flows.table.waiting_count(QUEUE))
    @rule(key=st.sampled_from("ab"), copied=st.booleans())
    def drop(self, key: str, copied: bool) -> None:
        self.flows.drop(key)
        if copied:
            self.flows.copy()

    @precondition(lambda self: any(row.state is S.DROPPING for row in self.flows.table))
    @rule()
    def copy(self) -> None:
        self.flows.copy()

    @precondition(lambda self: self.replays())
    @rule(data=st.data(), examined=st.integers(1, 6), calls=st.integers(0, 4), fate=FATES)
    def go_on_with_a_replay(self, data: st.DataObject, examined: int, calls: int, fate: Fate) -> None:
        flows, key = self.flows, data.draw(st.sampled_from(self.replays()))
        assert flows.owner is not None
        replay = flows.owner.replays[key]
        if not replay.lane and not replay.drop:
            flows.read_replay(key, examined)
        for number in range(min(calls, len(replay.lane))):
            flows.call_replay(key, fate if number == calls - 1 else Fate.ANSWERED)

    @precondition(lambda self: any(self.flows.owner.replays[key].lane for key in self.replays()))
    @rule(data=st.data(), fate=FATES)
    def fail_in_a_replay(self, data: st.DataObject, fate: Fate) -> None:
        owner = self.flows.owner
        assert owner is not None
        self.flows.fail_replay(data.draw(st.sampled_from([key for key in self.replays() if owner.replays[key].lane])), fate)

    @precondition(lambda self: any(self.flows.may_end(key) for key in self.replays()))
    @rule(data=st.data(), fate=FATES)
    def end(self, data: st.DataObject, fate: Fate) -> None:
        self.flows.end_replay(data.draw(st.sampled_from([key for key in self.replays() if self.flows.may_end(key)])), fate)

    @precondition(lambda self: self.flows.owner is not None and self.flows.owner.ending)
    @rule(data=st.data(), fate=FATES)
    def end_again(self, data: st.DataObject, fate: Fate) -> None:
        assert self.flows.owner is not None
        self.flows.end_replay(data.draw(st.sampled_from(list(self.flows.owner.ending))), fate)

    def replays(self) -> list[str]:
        """Return the keys whose replay may go on."""
        owner = self.flows.owner
        return [] if owner is None else [key for key in owner.replays if key not in owner.unsure and key not in owner.ending]

    # ------------------------------------------------------------------------------------------------------------- deaths

    @rule()
    def sync(self) -> None:
        self.flows.sync()

    @rule(synced=st.booleans())
    def crash(self, synced: bool) -> None:
        if synced:
            self.flows.sync()
        self.flows.crash()

    @rule(starts=st.booleans())
    def kill_owner(self, starts: bool) -> None:
        self.flows.kill_owner()
        if starts:
            self.flows.start_owner()

    @precondition(lambda self: self.flows.owner is None)
    @rule()
    def start_owner(self) -> None:
        self.flows.start_owner()

    @invariant()
    def rows_are_counted_and_have_a_valid_state(self) -> None:
        rows = list(self.flows.table)
        assert self.flows.table.count == len(rows)
        for row in rows:
            assert 0 <= row.next <= self.flows.end
            assert (row.upto == row.next) if row.state is S.ENDED else row.upto == 0

    def teardown(self) -> None:
        self.flows.go_on()
        self.flows.check_all()


TestBothFlows = BothFlows.TestCase
TestBothFlows.settings = examples(600)

"""The table of parked keys: its rows, their limits, and what they hide."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.groups.tables import park_table
from lockstep.broker.groups.tables.park_table import KeyFilter, ParkTable, WaitingFilter, sharding_key_in
from lockstep.broker.journal import Journal, decode_changes
from lockstep.protocol.bodies import ParkedKey, ParkState, ReplayKey
from lockstep.protocol.bodies.parks import KEY_BYTES_MAX, KEYS_PER_QUEUE_MAX, REPLAYS_MAX
from lockstep.protocol.errors import ParkRefusedError, StoreError
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.messages.properties import decode_properties
from support.park_flows import QUEUE, stored

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

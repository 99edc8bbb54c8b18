"""Half messages over restarts, power cuts and retention: committed once or never, and an outcome never changes."""

from typing import Any

import pytest

from lockstep.broker.store import FlushMode
from lockstep.broker.tables.transaction_table import OUTCOMES_KEPT_MS
from lockstep.protocol.bodies import HalfMessage
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK, UNKNOWN
from lockstep.protocol.messages.record import pack_host
from lockstep.protocol.names import HALF_TOPIC
from support.effort import seeds
from support.store_kit import confirmed
from support.timer_machine import TimerMachine

OK, NOT_FOUND, BUSY = ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND, ResponseCode.SYSTEM_BUSY
COMMITTED, ROLLED_BACK = ResponseCode.TRANSACTION_SHOULD_COMMIT, ResponseCode.TRANSACTION_SHOULD_ROLLBACK
RESTARTS = ["", "log", "snapshot"]


async def again(machine: TimerMachine, restarts: str) -> None:
    """Start the broker again after a kill: from the log alone, from a snapshot, or not."""
    if restarts:
        await machine.restart(snapshot=restarts == "snapshot")


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_committed_messages_are_stored_once_in_their_order_whatever_is_repeated(restarts: str) -> None:
    machine = await TimerMachine().start()
    halves = [await machine.half(b"m%d" % number) for number in range(3)]
    assert await machine.arrived() == []
    await again(machine, restarts)
    assert len(machine.state.transactions) == 3
    places = [(2, 0), (2, 1), (2, 2)]
    assert await machine.end(COMMIT, *halves) == (OK, places)
    assert await machine.arrived() == [b"m0", b"m1", b"m2"]
    for _ in range(2):
        await again(machine, restarts)
        assert await machine.end(COMMIT, *halves) == (OK, places), "the first answer"
        assert await machine.end(ROLLBACK, halves[1]) == (COMMITTED, [])
        assert (await machine.arrived(), len(machine.state.transactions)) == ([b"m0", b"m1", b"m2"], 0)
    records = await machine.records()
    assert {record.properties for record in records} == {
        f"__LS_FROM\x01h{half_code(record)}:{each.offset}\x02UNIQ_KEY\x01{each.message_id}".encode()
        for record, each in zip(records, halves, strict=True)
    }
    await machine.stop()


def half_code(record: Any) -> str:
    """Return the due code in the first property of a committed message."""
    return bytes(record.properties).partition(b"\x01h")[2].partition(b":")[0].decode()


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_message_that_is_rolled_back_is_never_stored(restarts: str) -> None:
    machine = await TimerMachine().start()
    half = await machine.half(b"never")
    assert await machine.end(ROLLBACK, half) == (OK, [(-1, -1)])
    for _ in range(2):
        await again(machine, restarts)
        assert await machine.end(COMMIT, half) == (ROLLED_BACK, [])
        assert await machine.end(ROLLBACK, half) == (OK, [(-1, -1)])
        assert (await machine.arrived(), len(machine.state.transactions)) == ([], 0)
    await machine.stop()


async def test_end_of_another_message_changes_nothing() -> None:
    machine = await TimerMachine().start()
    half = await machine.half(b"m")
    assert await machine.end(COMMIT, half, group="other") == (ResponseCode.TRANSACTION_STATE_GROUP_WRONG, [])
    assert await machine.end(COMMIT, HalfMessage(half.offset, "ID999999")) == (NOT_FOUND, [])
    assert await machine.end(COMMIT, HalfMessage(half.offset + 1, half.message_id)) == (NOT_FOUND, [])
    assert await machine.end(5, half) == (ResponseCode.MESSAGE_ILLEGAL, [])
    assert await machine.end(COMMIT) == (ResponseCode.MESSAGE_ILLEGAL, [])
    assert await machine.end(UNKNOWN, half) == (OK, [])
    assert (await machine.arrived(), machine.asked_soon, len(machine.state.transactions)) == ([], [half.offset], 1)
    await machine.stop()


@pytest.mark.parametrize("seed", seeds(8, 100))
async def test_power_cut_after_a_commit_leaves_the_message_once_or_open(seed: int) -> None:
    """The half message is on the disk, its copy may not be: then it is committed again."""
    machine = await TimerMachine(seed).start()
    halves = [await machine.half(b"m%d" % number) for number in range(4)]
    assert (await machine.end(COMMIT, *halves[:3]))[0] == OK
    await machine.restart(power=True)
    stored = await machine.arrived()
    assert stored == [b"m0", b"m1", b"m2"][: len(stored)]
    assert len(machine.state.transactions) == 4 - len(stored)
    assert (await machine.end(COMMIT, *halves))[0] == OK
    assert await machine.arrived() == [b"m0", b"m1", b"m2", b"m3"]
    await machine.stop()


@pytest.mark.parametrize("outcome", [COMMIT, ROLLBACK])
async def test_answered_decision_of_an_operator_is_on_the_disk_with_any_flush(outcome: int) -> None:
    machine = await TimerMachine(flush=FlushMode.ASYNC).start()
    half = await machine.half(b"m")
    assert (await machine.end(outcome, half, reason="by phone"))[0] == OK
    await machine.lose_power()
    await machine.start()
    assert len(machine.state.transactions) == 0
    assert await machine.arrived() == ([b"m"] if outcome == COMMIT else [])
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
@pytest.mark.parametrize("rounds", [1, 3])
async def test_half_message_is_carried_past_retention_and_ended_by_its_first_offset(rounds: int, restarts: str) -> None:
    machine = await TimerMachine(segment_bytes=32 << 10, retention_ms=60_000, tail_bytes=8 << 10).start()
    halves = [await machine.half(b"m%d" % number) for number in range(3)]
    for _ in range(rounds):
        await machine.fill(2)
        await machine.pass_ms(100_000, step_ms=10_000)
        await machine.fill(1)
        before, _ = machine.store.log_bounds
        await machine.remove_old()
        assert machine.store.log_bounds[0] > before
        await again(machine, restarts)
    assert machine.store.bounds(HALF_TOPIC, 0) == (3 * rounds, 3 * rounds + 3)
    assert len(machine.state.transactions) == 3
    for _ in range(2):
        assert await machine.end(COMMIT, *halves[:2]) == (OK, [(2, 0), (2, 1)])
        assert await machine.end(ROLLBACK, halves[2]) == (OK, [(-1, -1)])
    assert (await machine.arrived(), len(machine.state.transactions)) == ([b"m0", b"m1"], 0)
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_commit_to_a_topic_that_was_deleted_is_rolled_back_for_good(restarts: str) -> None:
    """Also if it was created again."""
    machine = await TimerMachine().start()
    gone, created_again = await machine.half(b"gone"), await machine.half(b"again")
    machine.create_topic("orders", 2, queues=0)
    await again(machine, restarts)
    assert await machine.end(COMMIT, gone) == (ROLLED_BACK, [])
    machine.create_topic("orders", 3)
    new = await machine.half(b"new")
    for _ in range(2):
        await again(machine, restarts)
        assert await machine.end(COMMIT, gone) == (ROLLED_BACK, [])
        assert await machine.end(COMMIT, created_again) == (ROLLED_BACK, [])
        assert await machine.end(ROLLBACK, gone, created_again) == (OK, [(-1, -1)] * 2)
        assert await machine.end(COMMIT, new) == (OK, [(2, 0)])
        assert (await machine.arrived(), len(machine.state.transactions)) == ([b"new"], 0)
    await machine.stop()


async def test_held_writes_hold_new_half_messages_and_no_decision() -> None:
    """A move of queues waits until no transaction of the topic is open."""
    machine = await TimerMachine().start()
    halves = await machine.halves(b"m0", b"m1")
    machine.holds.hold("orders", "mover", 10_000, machine.clock.boot_ms())
    assert (await machine.send_halves(b"m2"))[0].code == BUSY
    assert await machine.end(COMMIT, halves[0]) == (OK, [(2, 0)])
    assert await machine.end(ROLLBACK, halves[1]) == (OK, [(-1, -1)])
    assert len(machine.state.transactions) == 0
    await machine.pass_ms(11_000, step_ms=11_000)
    assert (await machine.send_halves(b"m2"))[0].code == OK
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_messages_of_one_frame_are_ended_one_by_one_and_in_any_order(restarts: str) -> None:
    machine = await TimerMachine().start()
    halves = await machine.halves(b"m0", b"m1", b"m2")
    assert [half.offset for half in halves] == [0, 1, 2]
    await again(machine, restarts)
    assert await machine.end(COMMIT, halves[2], halves[0]) == (OK, [(2, 0), (2, 1)])
    await again(machine, restarts)
    assert await machine.end(ROLLBACK, halves[1]) == (OK, [(-1, -1)])
    assert await machine.arrived() == [b"m2", b"m0"]
    await machine.stop()


async def test_message_that_names_another_client_than_its_connection_is_not_stored() -> None:
    """The client that it names would be asked, and would say of a transaction of which it knows nothing that it is rolled back."""
    machine = await TimerMachine().start()
    for told_id in ("", "10.0.0.7@1#b"):
        response, _ = await machine.send_halves(b"m", client_id="10.0.0.7@1#a", told_id=told_id)
        assert response.code == ResponseCode.MESSAGE_ILLEGAL
    response, _ = await machine.send_halves(b"m", group="not a group")
    assert response.code == ResponseCode.MESSAGE_ILLEGAL
    assert (machine.store.end_offset(HALF_TOPIC, 0), len(machine.state.transactions)) == (0, 0)
    await machine.stop()


async def test_half_message_to_a_topic_of_retries_is_refused() -> None:
    machine = await TimerMachine().start()
    machine.create_topic("%RETRY%g")
    response, _ = await machine.send_halves(b"m", topic="%RETRY%g")
    assert (response.code, response.remark) == (ResponseCode.MESSAGE_ILLEGAL, "a message of a transaction goes to no topic of retries")
    assert len(machine.state.transactions) == 0
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_more_open_half_messages_than_the_limit_are_refused_until_others_have_ended(restarts: str) -> None:
    machine = TimerMachine()
    machine.halves_max = 3
    await machine.start()
    halves = await machine.halves(b"m0", b"m1")
    await again(machine, restarts)
    response, _ = await machine.send_halves(b"a", b"b")
    assert (response.code, response.remark and "at most 3 (transactions_open_max)" in response.remark) == (BUSY, True)
    await machine.half(b"m2")
    assert (await machine.send_halves(b"a"))[0].code == BUSY
    await machine.end(ROLLBACK, halves[0])
    await again(machine, restarts)
    await machine.half(b"m3")
    assert (await machine.send_halves(b"a"))[0].code == BUSY
    assert (machine.store.end_offset(HALF_TOPIC, 0), len(machine.state.transactions)) == (4, 3)
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_request_whose_later_message_cannot_be_ended_ends_those_before_it_and_may_be_repeated(restarts: str) -> None:
    machine = await TimerMachine().start()
    halves = [
        await machine.half(b"free", topic="bills", queue_id=0),
        await machine.half(b"gone"),
        await machine.half(b"behind", topic="bills", queue_id=0),
    ]
    machine.create_topic("orders", 2, queues=0)
    for _ in range(2):
        assert await machine.end(COMMIT, *halves) == (ROLLED_BACK, [])
        await confirmed(machine.store)
        assert (await machine.arrived("bills", 0), len(machine.state.transactions)) == ([b"free"], 1)
        await again(machine, restarts)
    assert await machine.end(COMMIT, halves[0], halves[2]) == (OK, [(0, 0), (0, 1)])
    assert (await machine.arrived("bills", 0), await machine.arrived()) == ([b"free", b"behind"], [])
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
@pytest.mark.parametrize(("outcome", "opposite", "refusal"), [(COMMIT, ROLLBACK, ROLLED_BACK), (ROLLBACK, COMMIT, COMMITTED)])
async def test_request_with_a_message_that_has_ended_the_other_way_ends_none(
    outcome: int, opposite: int, refusal: int, restarts: str
) -> None:
    """At any place in the request."""
    machine = await TimerMachine().start()
    ended, *left = await machine.halves(b"ended", b"a", b"b")
    assert (await machine.end(opposite, ended))[0] == OK
    stored = [b"ended"] if opposite == COMMIT else []
    for halves in ([ended, *left], [left[0], ended, left[1]], [*left, ended], [left[0], left[0], ended]):
        assert await machine.end(outcome, *halves) == (refusal, [])
        await confirmed(machine.store)
        await again(machine, restarts)
        assert (await machine.arrived(), len(machine.state.transactions)) == (stored, 2)
        assert [machine.state.transactions.outcome(half.offset) for half in left] == [None, None]
    assert (await machine.end(outcome, *left))[0] == OK
    assert await machine.arrived() == (stored or [b"a", b"b"])
    await machine.stop()


async def test_request_with_a_message_whose_outcome_is_not_known_any_more_ends_none() -> None:
    machine = await TimerMachine().start()
    ended, left = await machine.halves(b"ended", b"left")
    assert (await machine.end(COMMIT, ended))[0] == OK
    machine.state.transactions.forget_outcomes(machine.store.now_ms() + OUTCOMES_KEPT_MS)
    for outcome in (COMMIT, ROLLBACK):
        assert await machine.end(outcome, left, ended) == (NOT_FOUND, [])
    await confirmed(machine.store)
    assert (await machine.arrived(), len(machine.state.transactions)) == ([b"ended"], 1)
    await machine.stop()


@pytest.mark.parametrize(
    ("outcome", "places", "stored"), [(COMMIT, [(2, 0), (2, 1), (2, 0)], [b"a", b"b"]), (ROLLBACK, [(-1, -1)] * 3, [])]
)
async def test_message_that_a_request_names_twice_ends_once(outcome: int, places: list[tuple[int, int]], stored: list[bytes]) -> None:
    machine = await TimerMachine().start()
    first, second = await machine.halves(b"a", b"b")
    for _ in range(2):
        assert await machine.end(outcome, first, second, first) == (OK, places)
        assert (machine.ends.committed_count, machine.ends.rolled_back_count) == ((2, 0) if outcome == COMMIT else (0, 2))
    assert (await machine.arrived(), len(machine.state.transactions)) == (stored, 0)
    await machine.stop()


@pytest.mark.parametrize("restarts", RESTARTS)
async def test_producer_of_frames_of_half_messages_goes_on_after_a_start(restarts: str) -> None:
    """A start that found another running CRC than the sender's would refuse the next frame."""
    machine, producer = await TimerMachine().start(), "ab" * 16
    halves = await machine.halves(b"a", b"b", b"c", producer=producer)
    for number in range(3):
        await again(machine, restarts)
        assert len(machine.state.transactions) == len(halves)
        halves += await machine.halves(b"%d" % number, b"%d again" % number, producer=producer)
    assert [half.offset for half in halves] == list(range(9))
    await machine.stop()


async def test_committed_message_has_what_was_sent_and_nothing_of_the_wait() -> None:
    machine = await TimerMachine().start()
    sent = b"TAGS\x01paid\x02KEYS\x01k1 k2\x02__SHARDINGKEY\x01customer 7"
    half = await machine.half(b"body", client_id="10.0.0.7@1#a", properties=sent)
    assert (await machine.end(COMMIT, half))[0] == OK
    (copy,) = await machine.records()
    assert copy.properties == f"__LS_FROM\x01h{half_code(copy)}:0\x02UNIQ_KEY\x01{half.message_id}\x02".encode() + sent
    assert (copy.topic, copy.body, copy.sys_flag, copy.prepared_offset) == (b"orders", b"body", 0, 0)
    assert copy.born_host == pack_host("10.0.0.7:5000")
    await machine.stop()


async def test_decisions_are_counted_once() -> None:
    machine = await TimerMachine().start()
    halves = [await machine.half(b"m%d" % number) for number in range(3)]
    for _ in range(2):
        await machine.end(COMMIT, *halves[:2])
        await machine.end(ROLLBACK, halves[2])
    assert (machine.ends.committed_count, machine.ends.rolled_back_count) == (2, 1)
    await machine.stop()

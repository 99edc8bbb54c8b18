"""PULL_MESSAGE of a group with parked keys: what is left out, pulls of one key, and keys that change while a pull is under way."""

import asyncio
from collections.abc import Callable

import pytest

from lockstep.broker.groups.tables.park_table import ParkTable
from lockstep.broker.processors import pull
from lockstep.broker.processors.pull_request import EXAMINE_BYTES
from lockstep.broker.store import ReadResult
from lockstep.protocol.bodies import ParkState, Subscription
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.headers.pull import PullReply
from lockstep.protocol.messages.message import decode_messages
from lockstep.protocol.messages.properties import encode_properties
from lockstep.protocol.messages.record import encode_record
from lockstep.runtime.requests.dispatch import Dispatcher
from support.pull_kit import LONG, Broker, turn

QUEUE = ("g", "t", 0)
S = ParkState


def stored(number: int, key: str | None = None, **properties: str) -> bytes:
    named = properties if key is None else {"__SHARDINGKEY": key, **properties}
    return encode_record(b"t", 0, b"%d" % number, encode_properties(named), born_ms=1)


def broker_with(*keys: str | None) -> Broker:
    """Return a broker whose queue has one message for each key."""
    broker = Broker()
    broker.store.append("t", 0, [stored(number, key) for number, key in enumerate(keys)])
    return broker


def park(broker: Broker, key: str, offset: int, state: ParkState = S.PARKED) -> None:
    parks = broker.coordination.parks
    parks.park(QUEUE, key, offset, 3, "poisoned", 0)
    row = parks.get(QUEUE, key)
    assert row is not None
    if state is S.ENDED:
        parks.set_state(row, S.REPLAYING)
        parks.end_replay(QUEUE, key, 0)
    elif state is not S.PARKED:
        parks.set_state(row, state)


def read(response: Command) -> tuple[list[int], int]:
    """Return the numbers of the messages in a response, and the next offset."""
    body = bytes(response.body)
    numbers = [int(message.body) for message in decode_messages(body, "broker-a")] if body else []
    return numbers, from_plain(PullReply, response.fields).next_begin_offset


def passed(broker: Broker) -> int:
    """Return the end of what pulls have left hidden keys out of, as the end of a replay shows it."""
    parks = broker.coordination.parks
    park(broker, "probe", 0, S.REPLAYING)
    reply = parks.end_replay(QUEUE, "probe", 0)
    parks.apply(("park.removed", *QUEUE, "probe"))
    return reply.until or 0


# --------------------------------------------------------------------------------------------------------------- the main flow


@pytest.mark.parametrize(
    ("state", "offset", "expected"),
    [
        (S.PARKED, 2, [1, 3]),
        (S.PARKED, 4, [1, 3]),
        (S.REPLAYING, 2, [1, 3]),
        (S.DROPPING, 2, [1, 3]),
        (S.ENDED, 0, [0, 1, 2, 3, 4]),
        (S.ENDED, 2, [1, 2, 3, 4]),
        (S.ENDED, 3, [1, 3, 4]),
        (S.ENDED, 5, [1, 3]),
    ],
)
async def test_messages_of_a_parked_key_are_left_out_and_passed(state: ParkState, offset: int, expected: list[int]) -> None:
    broker = broker_with("a", "b", "a", None, "a")
    park(broker, "a", offset, state)
    response = await broker.pulled(0)
    assert response.code == ResponseCode.SUCCESS
    assert read(response) == (expected, 5)


async def test_page_of_hidden_messages_alone_is_answered_with_the_next_offset() -> None:
    broker = broker_with("a", "a", "b")
    park(broker, "a", 0)
    assert read(await broker.pulled(0, max_msg_nums=32)) == ([2], 3)
    broker = broker_with("a", "a")
    park(broker, "a", 0)
    response = await broker.pulled(0)
    assert response.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert read(response) == ([], 2)


async def test_page_has_as_many_messages_as_it_may_have_besides_the_hidden_ones() -> None:
    broker = broker_with(*"abababab")
    park(broker, "a", 0)
    assert read(await broker.pulled(0, max_msg_nums=3)) == ([1, 3, 5], 6)


async def test_other_groups_and_queues_get_every_message() -> None:
    broker = broker_with("a", "b")
    broker.store.append("t", 1, [stored(9, "a")])
    park(broker, "a", 0)
    assert read(await broker.pulled(0, consumer_group="h")) == ([0, 1], 2)
    assert read(await broker.pulled(0, queue_id=1)) == ([9], 1)
    assert passed(broker) == 0, "they pass nothing of this group"


async def test_hidden_messages_are_counted_as_filtered_and_those_of_a_key_are_not() -> None:
    broker = broker_with(*"abaab")
    park(broker, "a", 0)
    await broker.pulled(0)
    assert broker.pulls.delivered["t", "g"].filtered == 3
    assert read(await broker.pulled(0, key="a", epoch=4))[0] == [0, 2, 3]
    assert broker.pulls.delivered["t", "g"].filtered == 3


async def test_tags_and_hidden_keys_filter_together() -> None:
    broker = Broker()
    broker.store.append("t", 0, [stored(n, key) for n, key in enumerate("ababab")], tags=["x", "x", "y", "y", "x", "x"])
    park(broker, "a", 0)
    assert read(await broker.pulled(0, subscription="x")) == ([1, 5], 6)
    assert read(await broker.pulled(0, subscription="x", key="a", epoch=4)) == ([0, 4], 6)


async def test_sql_and_hidden_keys_filter_together() -> None:
    broker = Broker()
    broker.store.append("t", 0, [stored(n, key, size=str(n)) for n, key in enumerate("ababab")])
    broker.coordination.subscriptions["g", "t"] = Subscription("t", "size > 1", expression_type="SQL92")
    park(broker, "a", 2)
    assert read(await broker.pulled(0, sys_flag=0)) == ([3, 5], 6)
    assert read(await broker.pulled(0, sys_flag=0, key="a", epoch=4)) == ([2, 4], 6)
    assert read(await broker.pulled(0, sys_flag=0, key="", epoch=4)) == ([2, 4], 6)


# ----------------------------------------------------------------------------------------------------------------- key pulls


@pytest.mark.parametrize("state", list(S))
async def test_pull_of_a_key_returns_its_messages_whatever_its_row_says(state: ParkState) -> None:
    broker = broker_with("a", "b", "a", None, "ab")
    park(broker, "a", 1, state)
    assert read(await broker.pulled(0, key="a", epoch=4)) == ([0, 2], 5)
    response = await broker.pulled(3, key="a", epoch=4)
    assert (response.code, read(response)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, ([], 5))
    response = await broker.pulled(5, key="a", epoch=4)
    assert (response.code, read(response)) == (ResponseCode.PULL_NOT_FOUND, ([], 5))
    assert passed(broker) == 0, "these pulls leave nothing out"


async def test_pull_of_what_waits_returns_every_waiting_message() -> None:
    broker = broker_with(*"abcdabcd", None)
    assert read(await broker.pulled(0, key="", epoch=4)) == ([], 9), "nothing is parked"
    park(broker, "a", 0)
    park(broker, "b", 5, S.REPLAYING)
    park(broker, "c", 2, S.DROPPING)
    park(broker, "d", 3, S.ENDED)
    assert read(await broker.pulled(0, key="", epoch=4)) == ([0, 2, 4, 5, 6], 9)
    assert passed(broker) == 0


# ------------------------------------------------------------------------------------------------------ changes under way


class SlowDisk:
    """The disk of a broker whose reads wait until `go` is called. `reads`: their number so far."""

    def __init__(self, broker: Broker) -> None:
        self.reads = 0
        self._go = asyncio.Event()
        self._read = broker.store.read_cold
        broker.store.cold = True
        broker.store.read_cold = self._wait  # type: ignore[method-assign]

    async def _wait(self, *place: object, **limits: object) -> ReadResult:
        self.reads += 1
        result = await self._read(*place, **limits)
        await self._go.wait()
        return result

    async def go(self) -> None:
        """Let all reads end that have begun, and those that follow."""
        self._go.set()
        await turn()
        await turn()


def forget(parks: ParkTable) -> None:
    parks.clear(QUEUE)


def end(parks: ParkTable) -> None:
    assert parks.end_replay(QUEUE, "a", 0).upto is not None


CHANGES: dict[str, tuple[ParkState | None, Callable[[ParkTable], object], list[int]]] = {
    "a key is parked": (None, lambda parks: parks.park(QUEUE, "a", 0, 3, "poisoned", 0), [1, 3]),
    "another key is parked": (S.PARKED, lambda parks: parks.park(QUEUE, "b", 1, 3, "poisoned", 0), []),
    "a replay ends": (S.REPLAYING, end, [0, 1, 2, 3]),
    "a drop ends": (S.DROPPING, end, [0, 1, 2, 3]),
    "an ended key is parked again": (S.ENDED, lambda parks: parks.park(QUEUE, "a", 2, 3, "poisoned", 0), [1, 3]),
    "the keys are forgotten": (S.PARKED, forget, [0, 1, 2, 3]),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_pull_is_read_again_if_something_else_is_hidden_by_then(change: str) -> None:
    """What it has left out has come back, or what it has found is not to be delivered."""
    before, happens, expected = CHANGES[change]
    broker = broker_with(*"abab")
    if before is not None:
        park(broker, "a", 0, before)
    disk = SlowDisk(broker)
    broker.pull(0)
    await turn()
    assert disk.reads == 1
    happens(broker.coordination.parks)
    broker.coordination.any_parked = broker.coordination.parks.count > 0
    await disk.go()
    assert disk.reads == 2
    (response,) = broker.endpoint.take()
    assert read(response) == (expected, 4)


async def test_pull_is_read_again_if_the_last_row_of_the_broker_was_removed_by_another_pull() -> None:
    """The progress has passed the end of the replay, which another pull has found."""
    broker = broker_with(*"abab")
    park(broker, "a", 0, S.REPLAYING)
    disk = SlowDisk(broker)
    broker.pull(0)
    await turn()
    parks = broker.coordination.parks
    end(parks)
    assert parks.filter(QUEUE, progress=0) is None
    broker.coordination.any_parked = False
    await disk.go()
    (response,) = broker.endpoint.take()
    assert (disk.reads, read(response)) == (2, ([0, 1, 2, 3], 4))


@pytest.mark.parametrize("kind", ["advance", "replay", "drop", "repeated park"])
async def test_pull_is_not_read_again_if_the_same_is_hidden(kind: str) -> None:
    """Else a replay that commits message by message would hold up every pull that reads from the disk."""
    broker = broker_with(*"abab")
    park(broker, "a", 0, S.REPLAYING if kind == "advance" else S.PARKED)
    disk = SlowDisk(broker)
    broker.pull(0)
    await turn()
    parks = broker.coordination.parks
    row = parks.get(QUEUE, "a")
    assert row is not None
    match kind:
        case "advance":
            parks.commit_replay(QUEUE, "a", 2)
        case "replay":
            parks.set_state(row, S.REPLAYING)
        case "drop":
            parks.set_state(row, S.DROPPING)
        case _:
            parks.park(QUEUE, "a", 0, 3, "poisoned", 0)
    await disk.go()
    (response,) = broker.endpoint.take()
    assert (disk.reads, read(response)) == (1, ([1, 3], 4))


async def test_pull_of_a_key_is_not_read_again() -> None:
    broker = broker_with(*"abab")
    park(broker, "a", 0, S.REPLAYING)
    disk = SlowDisk(broker)
    broker.pull(0, key="a", epoch=4)
    await turn()
    end(broker.coordination.parks)
    await disk.go()
    (response,) = broker.endpoint.take()
    assert (disk.reads, read(response)) == (1, ([0, 2], 4))


# -------------------------------------------------------------------------------------------------------------- held pulls


async def test_held_pull_passes_hidden_messages_and_is_woken_by_others() -> None:
    broker = broker_with("b")
    park(broker, "a", 0, S.REPLAYING)
    broker.pull(1, **LONG)
    await turn()
    for number in (1, 2):
        broker.arrive(stored(number, "a"))
        await turn()
        assert not broker.endpoint.take(), "it is held, and was not answered with nothing"
        assert passed(broker) == number + 1
    assert broker.pulls.held_count == 1
    broker.arrive(stored(3, "b"))
    assert read(await broker.response()) == ([3], 4)
    assert passed(broker) == 4


async def test_held_pull_returns_the_key_from_the_end_of_its_replay_on() -> None:
    broker = broker_with("b")
    park(broker, "a", 0, S.REPLAYING)
    broker.pull(1, **LONG)
    await turn()
    broker.arrive(stored(1, "a"))
    await turn()
    parks = broker.coordination.parks
    assert parks.end_replay(QUEUE, "a", 1) == ParkEndReply(until=2), "the held pull has passed 1"
    parks.commit_replay(QUEUE, "a", 2)
    assert parks.end_replay(QUEUE, "a", 1) == ParkEndReply(upto=2)
    broker.arrive(stored(2, "a"))
    assert read(await broker.response()) == ([2], 3)


async def test_pull_that_was_held_before_the_key_was_parked_leaves_it_out() -> None:
    broker = broker_with("a")
    broker.pull(1, **LONG)
    await turn()
    park(broker, "a", 0)
    broker.arrive(stored(1, "a"))
    await turn()
    assert not broker.endpoint.take()
    broker.arrive(stored(2, "b"))
    assert read(await broker.response()) == ([2], 3)


async def test_pull_that_ends_at_its_deadline_returns_what_it_has_passed() -> None:
    broker = broker_with("b")
    park(broker, "a", 0)
    broker.pull(1, **LONG)
    await turn()
    broker.arrive(stored(1, "a"))
    await turn()
    broker.pulls.stop()
    (response,) = broker.endpoint.take()
    assert read(response) == ([], 2)


# --------------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize(("parked", "per_turn"), [(False, 10), (True, 2)])
async def test_examining_records_for_hidden_keys_counts_for_the_turn(parked: bool, per_turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten records are examined for each pull."""
    monkeypatch.setattr(pull, "TURN_BYTES_MAX", 15 * EXAMINE_BYTES)
    broker = broker_with(*"a" * 10)
    if parked:
        park(broker, "a", 0)
    for opaque in range(10):
        broker.pull(0, opaque=opaque)
    await asyncio.sleep(0)
    assert len(broker.endpoint.sent) == per_turn


@pytest.mark.parametrize(
    ("offset", "expression", "hides", "code", "is_fact"),
    [
        (0, "*", False, ResponseCode.SUCCESS, True),
        (0, "other", False, ResponseCode.PULL_RETRY_IMMEDIATELY, True),
        (2, "*", False, ResponseCode.PULL_NOT_FOUND, True),
        (3, "*", False, ResponseCode.PULL_OFFSET_MOVED, False),
        (0, "*", True, ResponseCode.SUCCESS, False),
    ],
)
async def test_response_needs_proof_of_office_unless_it_is_true_at_a_former_master_too(
    offset: int, expression: str, hides: bool, code: ResponseCode, is_fact: bool
) -> None:
    """Confirmed messages stay at their offsets. Where a group goes on, and which keys are parked, may have changed since."""
    broker, proofs = broker_with("a", "b"), list[Callable[[], None]]()
    broker.dispatcher = Dispatcher([broker.pulls], in_office=proofs.append)
    if hides:
        park(broker, "a", 0)
    broker.pull(offset, subscription=expression)
    await turn()
    assert len(proofs) == (not is_fact)
    for prove in proofs:
        assert broker.endpoint.take() == []
        prove()
    assert (await broker.response()).code == code

"""PULL_MESSAGE: RocketMQ's checks and codes, pages, long polling, and fairness to a connection that does not read."""

import asyncio
from typing import Any, cast

import pytest

from lockstep.broker.groups.effects import StalePulls
from lockstep.broker.groups.pull_fence import PullCheck
from lockstep.broker.processors import cold_reads, pull
from lockstep.broker.processors.cold_reads import COLD_COUNT_MAX
from lockstep.broker.processors.pull import TURN_HELD_MAX, UNSENT_BYTES_MAX
from lockstep.broker.processors.pull_request import (
    CLASSIC_BYTES_MAX,
    COMPARISON_BYTES,
    EXAMINE_BYTES,
    NATIVE_BYTES_MAX,
    PARSE_BYTES,
    page_of,
)
from lockstep.broker.store import ReadResult, ReadStatus
from lockstep.protocol.bodies import Subscription
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, ServiceNotAvailableError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullHeader, PullReply
from lockstep.protocol.messages.record import encode_record, split_records
from lockstep.protocol.topics.queue import LayoutVersion, TopicLayout
from lockstep.runtime.connections.endpoint import Endpoint
from support.broker_fakes import FakeEndpoint
from support.pull_kit import LONG, Broker, turn


def place(response: Command) -> tuple[int, int, int]:
    reply = from_plain(PullReply, response.fields)
    return reply.next_begin_offset, reply.min_offset, reply.max_offset


async def test_pull_returns_stored_records_and_bounds() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"one", b"two", b"three"])
    response = await broker.pulled(1)
    assert (response.code, response.body, place(response)) == (ResponseCode.SUCCESS, b"twothree", (3, 0, 3))


def return_results(broker: Broker, *results: ReadResult) -> None:
    """Let the store return these results."""
    left = list(results)
    broker.store.read = lambda *place, **limits: left.pop(0)  # type: ignore[method-assign]


async def test_messages_lost_to_damage_are_skipped_with_offset_moved() -> None:
    broker = Broker()
    return_results(broker, ReadResult(ReadStatus.LOST, 5, 0, 9))
    response = await broker.pulled(3, **LONG)
    assert (response.code, response.body, place(response)) == (ResponseCode.PULL_OFFSET_MOVED, b"", (5, 0, 9))
    assert from_plain(PullReply, response.fields).gap_first is None, "the client names the gap: from what it asked for"


async def test_retention_gap_and_damage_gap_are_two_responses() -> None:
    """One response has room for one gap."""
    broker = Broker()
    broker.coordination.checks[4] = PullCheck(gap=(1, 3))
    return_results(broker, *[ReadResult(ReadStatus.LOST, 5, 3, 9)] * 2)
    response = await broker.pulled(3, epoch=4)
    reply = from_plain(PullReply, response.fields)
    assert (response.code, reply.next_begin_offset, (reply.gap_first, reply.gap_end)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 3, (1, 3))
    broker.coordination.checks[4] = PullCheck()
    response = await broker.pulled(3, epoch=4)
    assert (response.code, place(response)) == (ResponseCode.PULL_OFFSET_MOVED, (5, 3, 9))


@pytest.mark.parametrize(
    ("stored", "offset", "code", "expected"),
    [
        (None, 0, ResponseCode.PULL_NOT_FOUND, (0, 0, 0)),
        (None, 5, ResponseCode.PULL_OFFSET_MOVED, (0, 0, 0)),
        (2, 1, ResponseCode.SUCCESS, (2, 0, 2)),
        (2, 2, ResponseCode.PULL_NOT_FOUND, (2, 0, 2)),
        (2, 3, ResponseCode.PULL_OFFSET_MOVED, (2, 0, 2)),
    ],
)
async def test_offset_outside_the_queue_gets_rocketmqs_code_and_next_offset(
    stored: int | None, offset: int, code: int, expected: tuple[int, int, int]
) -> None:
    broker = Broker()
    if stored:
        broker.store.append("t", 0, [b"x"] * stored)
    response = await broker.pulled(offset)
    assert (response.code, place(response)) == (code, expected)


@pytest.mark.parametrize(
    ("header", "code", "words"),
    [
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "lockstep topic create"),
        ({"topic": "LOCKSTEP_SYS_STATE"}, ResponseCode.NO_PERMISSION, "own"),
        ({"topic": "a b"}, ResponseCode.SYSTEM_ERROR, "illegal"),
        ({"consumer_group": ""}, ResponseCode.SYSTEM_ERROR, "blank"),
        ({"queue_id": 4}, ResponseCode.SYSTEM_ERROR, "queue 4"),
        ({"queue_id": -1}, ResponseCode.SYSTEM_ERROR, "queue -1"),
        ({"subscription": "t" * 8_193}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "8192"),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "names no tag"),
        ({"expression_type": "XPATH"}, ResponseCode.SYSTEM_ERROR, "does not support filters of type XPATH: use TAG or SQL92"),
        ({"expression_type": "XPATH", "sys_flag": 0}, ResponseCode.SYSTEM_ERROR, "filters of type XPATH"),
        ({"expression_type": "SQL92", "subscription": "a >> 1"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "got '>', at character 4"),
        ({"expression_type": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "the expression is empty"),
        ({"expression_type": "SQL92", "subscription": "a" * 8_193}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "8192"),
        ({"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "HEART_BEAT"),
    ],
)
async def test_invalid_pull_is_rejected(header: dict[str, object], code: ResponseCode, words: str) -> None:
    broker = Broker()
    response = await broker.pulled(**header)
    assert response.code == code
    assert words in str(response.remark)


@pytest.mark.parametrize(
    ("requested", "code"), [(4, ResponseCode.SUCCESS), (5, ResponseCode.SUCCESS), (6, ResponseCode.SUBSCRIPTION_NOT_LATEST)]
)
async def test_pull_without_expression_uses_the_groups_subscription_unless_older(requested: int, code: int) -> None:
    broker = Broker()
    broker.coordination.subscriptions["g", "t"] = Subscription("t", "a", sub_version=5)
    broker.store.append("t", 0, [b"A", b"B", b"none"], tags=["a", "b", None])
    response = await broker.pulled(sys_flag=0, sub_version=requested)
    assert response.code == code
    assert response.body == (b"A" if code == ResponseCode.SUCCESS else b"")


async def test_page_without_a_match_returns_at_once_with_the_next_offset() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"B"] * 3, tags=["b"] * 3)
    response = await broker.pulled(subscription="a", **LONG)
    assert (response.code, place(response)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, (3, 0, 3))


@pytest.mark.parametrize(
    ("requested", "wanted_bytes", "page"),
    [
        (1, None, (1, CLASSIC_BYTES_MAX)),
        (32, None, (32, CLASSIC_BYTES_MAX)),
        (33, None, (32, CLASSIC_BYTES_MAX)),
        (0, None, (1, CLASSIC_BYTES_MAX)),
        (999, 5, (999, 5)),
        (1_000, 1 << 20, (1_000, NATIVE_BYTES_MAX)),
        (1_001, (1 << 20) + 1, (1_000, NATIVE_BYTES_MAX)),
        (-1, -1, (1, 1)),
    ],
)
def test_page_size_is_the_requested_one_up_to_the_brokers_limit(requested: int, wanted_bytes: int | None, page: tuple[int, int]) -> None:
    assert page_of(PullHeader("g", "t", 0, 0, max_msg_nums=requested, max_msg_bytes=wanted_bytes)) == page


@pytest.mark.parametrize(
    ("requested", "wanted_bytes", "page"),
    [
        (1_000, 2**31 - 1, (32, CLASSIC_BYTES_MAX)),
        (32, None, (32, CLASSIC_BYTES_MAX)),
        (4, 5, (4, 5)),
        (-1, -1, (1, 1)),
    ],
)
def test_page_of_a_rocketmq_client_is_at_most_a_classic_one(requested: int, wanted_bytes: int | None, page: tuple[int, int]) -> None:
    header = PullHeader("g", "t", 0, 0, max_msg_nums=requested, max_msg_bytes=wanted_bytes)
    assert page_of(header, native=False) == page


# ---------------------------------------------------------------------------------------------------------------- long polling


async def test_pull_without_suspend_is_not_held() -> None:
    broker = Broker()
    assert (await broker.pulled()).code == ResponseCode.PULL_NOT_FOUND
    assert (await broker.pulled(sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=0)).code == ResponseCode.PULL_NOT_FOUND


async def test_held_pull_is_served_by_the_arrival() -> None:
    broker = Broker()
    broker.pull(**LONG)
    await turn()
    assert broker.endpoint.sent == []
    assert broker.pulls.held_count == 1
    broker.arrive(b"new")
    response = await broker.response()
    assert (response.code, response.body, place(response)) == (ResponseCode.SUCCESS, b"new", (1, 0, 1))
    assert broker.pulls.held_count == 0


async def test_held_pull_continues_after_an_arrival_that_does_not_match() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"A"], tags=["a"])
    broker.pull(1, subscription="a", **LONG)
    await turn()
    broker.arrive(b"B", tag="b")
    await turn()
    assert broker.endpoint.sent == []
    broker.arrive(b"A", tag="a")
    response = await broker.response()
    assert (response.code, response.body, place(response)) == (ResponseCode.SUCCESS, b"A", (3, 0, 3))


async def test_pull_in_the_turn_of_a_send_returns_its_record() -> None:
    broker = Broker()
    broker.pull()
    broker.store.append("t", 0, [b"same turn"])
    assert (await broker.response()).body == b"same turn"


async def test_held_pull_returns_at_its_deadline_with_the_offset_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker()
    timers: list[float] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda delay, callback: timers.append(delay) or asyncio.Handle(callback, (), loop))
    broker.store.append("t", 0, [b"A"], tags=["a"])
    broker.pull(1, subscription="a", **LONG)
    await turn()
    broker.arrive(b"B", tag="b")
    await turn()
    assert timers == [15.0]
    broker.host.clock.now_ms += 14_999
    broker.pulls._expire()
    await turn()
    assert broker.endpoint.sent == []
    broker.host.clock.now_ms += 1
    broker.pulls._expire()
    response = await broker.response()
    assert (response.code, place(response)) == (ResponseCode.PULL_NOT_FOUND, (2, 0, 2))


async def test_one_timer_is_set_to_the_earliest_deadline() -> None:
    broker = Broker()
    for number, timeout_ms in enumerate([9_000, 5_000, 7_000]):
        broker.pull(queue_id=number, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=timeout_ms)
    await turn()
    assert broker.pulls._deadline_ms == broker.host.clock.now_ms + 5_000
    broker.host.clock.now_ms += 5_000
    broker.pulls._expire()
    assert (await broker.response()).code == ResponseCode.PULL_NOT_FOUND
    assert broker.pulls._deadline_ms == broker.host.clock.now_ms + 2_000
    broker.pulls.stop()


async def test_stop_responds_to_every_pull_and_holds_no_new_one() -> None:
    broker = Broker()
    broker.pull(**LONG)
    broker.pull(queue_id=1, **LONG)
    await turn()
    broker.pulls.stop()
    assert [one.code for one in broker.endpoint.take()] == [ResponseCode.PULL_NOT_FOUND] * 2
    assert (await broker.pulled(**LONG)).code == ResponseCode.PULL_NOT_FOUND


async def test_closed_connection_has_no_held_pull() -> None:
    broker = Broker()
    broker.pull(**LONG)
    await turn()
    broker.endpoint.closed = True
    broker.pulls.connection_closed(broker.endpoint)  # type: ignore[arg-type]
    assert broker.pulls.held_count == 0
    broker.arrive(b"x")
    await turn()
    assert broker.endpoint.sent == []


async def test_deleted_topic_ends_its_held_pulls() -> None:
    broker = Broker()
    broker.topics.on_changed = broker.pulls.topic_changed
    broker.pull(**LONG)
    await turn()
    broker.topics.create(TopicLayout("t", LayoutVersion(2, 7), ()))
    assert (await broker.response()).code == ResponseCode.TOPIC_NOT_EXIST


# ---------------------------------------------------------------------------------------------------------- fences and commits


async def test_stale_epoch_is_rejected_and_a_held_pull_ends_when_the_epoch_rises() -> None:
    broker = Broker()
    broker.pull(epoch=5, **LONG)
    broker.pull(epoch=6, opaque=2, **LONG)
    await turn()
    assert broker.pulls.held_count == 2
    broker.coordination.checks[5] = PullCheck(stale=True)
    broker.pulls.stale(StalePulls("g", "t", 0))
    response = await broker.response()
    assert (response.code, response.opaque) == (ResponseCode.STALE_EPOCH, 1)
    assert broker.pulls.held_count == 1


async def test_gap_is_reported_at_once_even_without_messages() -> None:
    broker = Broker()
    broker.coordination.checks[5] = PullCheck(gap=(3, 9))
    reply = from_plain(PullReply, (await broker.pulled(epoch=5, **LONG)).fields)
    assert (reply.gap_first, reply.gap_end) == (3, 9)


async def test_commit_of_a_pull_is_applied_once_and_only_if_permitted() -> None:
    broker = Broker()
    flags = {"sys_flag": SUBSCRIPTION | SUSPEND | COMMIT_OFFSET, "suspend_timeout_millis": 15_000, "commit_offset": 4}
    broker.pull(**flags)  # type: ignore[arg-type]
    await turn()
    broker.arrive(b"x")
    await broker.response()
    assert broker.coordination.commits == [("g", 0, 4)]
    broker.coordination.checks[None] = PullCheck(may_commit=False)
    await broker.pulled(**flags)
    assert len(broker.coordination.commits) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        NoPermissionError("another client holds it"),
        LocalProtocolError("offset 4, the queue ends at 1"),
        ServiceNotAvailableError("disk full"),
    ],
)
async def test_rejected_commit_does_not_reject_its_pull(refusal: Exception) -> None:
    broker = Broker()
    broker.coordination.refusal = refusal
    broker.store.append("t", 0, [b"x"])
    assert (await broker.pulled(sys_flag=SUBSCRIPTION | COMMIT_OFFSET, commit_offset=4)).code == ResponseCode.SUCCESS


# ------------------------------------------------------------------------------------------------------------ disk and fairness


async def test_cold_records_are_read_outside_the_loop() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"old"])
    broker.store.cold = True
    for opaque in range(10):
        broker.pull(opaque=opaque)
    for _ in range(10):
        await turn()
    assert sorted(one.opaque for one in broker.endpoint.take()) == list(range(10))
    assert len(broker.tasks) == 0


async def test_pulls_that_wait_for_the_disk_are_counted_until_they_are_read_or_their_connection_is_closed() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"old"])
    reads = HeldReads(broker)
    other = FakeEndpoint(2)
    for opaque in range(COLD_COUNT_MAX + 3):
        broker.pull(opaque=opaque)
    await turn()
    broker.pull(opaque=99, endpoint=other)
    await turn()
    assert broker.pulls.disk_count(("g", "t", 0)) == COLD_COUNT_MAX + 4
    assert broker.pulls.disk_count(("other", "t", 0)) == 0
    other.closed = True
    broker.pulls.connection_closed(cast(Endpoint, other))
    assert broker.pulls.disk_count(("g", "t", 0)) == COLD_COUNT_MAX + 3
    reads.go.set()
    for _ in range(10):
        await turn()
    assert len(broker.endpoint.take()) == COLD_COUNT_MAX + 3
    assert broker.pulls.disk_count(("g", "t", 0)) == 0
    assert broker.pulls._cold._queues == {}


async def test_disk_error_in_a_read_is_returned_and_not_fatal() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"old"])

    async def fail(*_: object, **__: object) -> ReadResult:
        raise OSError(5, "Input/output error")

    broker.store.cold = True
    broker.store.read_cold = fail  # type: ignore[method-assign]
    response = await broker.pulled()
    assert (response.code, "Input/output" in str(response.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.tasks.failure is None


def priced(amount: int) -> bytes:
    return encode_record(b"t", 0, b"x" * 100, b"amount\x01%d" % amount, born_ms=1)


async def test_sql_expression_of_the_pull_or_of_the_group_filters_by_properties() -> None:
    broker = Broker()
    broker.store.append("t", 0, [priced(1), priced(200), priced(3), priced(400)])
    given = await broker.pulled(subscription="amount > 100", expression_type="SQL92")
    assert (given.code, bytes(given.body), place(given)) == (ResponseCode.SUCCESS, priced(200) + priced(400), (4, 0, 4))
    broker.coordination.subscriptions["g", "t"] = Subscription("t", "amount < 100", "SQL92")
    assert (await broker.pulled(sys_flag=0)).body == priced(1) + priced(3)
    assert (await broker.pulled(sys_flag=0, expression_type="SQL92", offset=3)).code == ResponseCode.PULL_RETRY_IMMEDIATELY
    broker.coordination.subscriptions["g", "t"] = Subscription("t", "amount >> 1", "SQL92")
    assert (await broker.pulled(sys_flag=0)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_held_pull_with_an_sql_expression_waits_for_a_message_that_passes() -> None:
    broker = Broker()
    broker.pull(subscription="amount > 100", expression_type="SQL92", **{**LONG, "sys_flag": SUBSCRIPTION | SUSPEND})
    await turn()
    broker.arrive(priced(1), priced(2))
    await turn()
    assert not broker.endpoint.take()
    broker.arrive(priced(300))
    assert (await broker.response()).body == priced(300)


async def test_messages_that_a_subscription_does_not_match_are_counted_by_group() -> None:
    broker = Broker()
    broker.store.append("t", 0, [priced(1), priced(200), priced(3)])
    await broker.pulled(subscription="amount > 100", expression_type="SQL92")
    await broker.pulled(subscription="amount > 100", expression_type="SQL92", offset=2)
    await broker.pulled(offset=3)
    (found,) = broker.pulls.delivered.values()
    assert (found.messages, found.filtered) == (1, 3), "0 and 2 beside the match, and 2 once more"


async def test_what_a_filter_examines_counts_for_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter that lets nothing pass must not keep the loop for itself."""
    record, condition = priced(1), "amount > 100"
    cost = PARSE_BYTES * len(condition) + 2 * (len(record) + EXAMINE_BYTES + COMPARISON_BYTES)
    monkeypatch.setattr(pull, "TURN_BYTES_MAX", 2 * cost)
    broker = Broker()
    broker.store.append("t", 0, [record, record])
    for opaque in range(6):
        broker.pull(0, opaque=opaque, subscription=condition, expression_type="SQL92")
    served = []
    for _ in range(5):
        served.append(len(broker.endpoint.sent))
        await asyncio.sleep(0)
    assert served == [0, 2, 4, 6, 6]


class HeldReads:
    """Cold reads of a broker's store that wait until the test releases them; `begun` has their callers."""

    def __init__(self, broker: Broker) -> None:
        self.begun: list[int] = []
        self.go = asyncio.Event()
        self._read = broker.store.read_cold
        broker.store.cold = True
        broker.store.read_cold = self._wait  # type: ignore[method-assign]

    async def _wait(self, topic: str, queue_id: int, *args: Any, **limits: Any) -> ReadResult:
        self.begun.append(queue_id)
        await self.go.wait()
        return await self._read(topic, queue_id, *args, **limits)


async def test_concurrent_catch_up_pulls_are_served_up_to_a_byte_limit_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "TURN_BYTES_MAX", 250)
    broker = Broker()
    broker.store.append("t", 0, [b"x" * 100])
    for opaque in range(1, 11):
        broker.pull(0, opaque=opaque)
    served = []
    for _ in range(6):
        served.append(len(broker.endpoint.sent))
        await asyncio.sleep(0)
    assert served == [0, 3, 6, 9, 10, 10]
    assert [response.opaque for response in broker.endpoint.take()] == list(range(1, 11))


async def test_stop_responds_to_every_pull_regardless_of_the_byte_limit_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull, "TURN_BYTES_MAX", 250)
    broker = Broker()
    broker.store.append("t", 0, [b"x" * 100])
    for opaque in range(1, 11):
        broker.pull(0, opaque=opaque)
    broker.pulls.stop()
    assert len(broker.endpoint.take()) == 10


async def test_cold_reads_are_scheduled_round_robin_over_connections() -> None:
    """One connection that requests everything at once delays the others by one read, not by all of its reads."""
    broker = Broker()
    reads = HeldReads(broker)
    greedy, modest = FakeEndpoint(1), FakeEndpoint(2)
    for opaque in range(50):
        broker.pull(endpoint=greedy, opaque=opaque, queue_id=0)
    broker.pull(endpoint=modest, queue_id=3)
    await turn()
    reads.go.set()
    await turn()
    assert 3 in reads.begun[: COLD_COUNT_MAX + 2]


async def test_cold_reads_waiting_per_connection_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "COLD_PER_CONNECTION_MAX", 3)
    broker = Broker()
    reads = HeldReads(broker)
    for opaque in range(5):
        broker.pull(opaque=opaque)
    await turn()
    reads.go.set()
    assert [(one.opaque, one.code, one.fields) for one in broker.endpoint.take()] == [
        (opaque, ResponseCode.SYSTEM_BUSY, {"retryAfterMs": 200}) for opaque in (3, 4)
    ]
    await turn()


async def test_connection_that_does_not_read_gets_no_cold_reads() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"old"])
    reads = HeldReads(broker)
    for opaque in range(20):
        broker.pull(opaque=opaque)
    await turn()
    broker.endpoint.unsent_bytes = UNSENT_BYTES_MAX + 1
    broker.endpoint.drained = asyncio.get_running_loop().create_future()
    reads.go.set()
    await turn()
    assert len(reads.begun) == len(broker.endpoint.take()) == COLD_COUNT_MAX
    broker.endpoint.unsent_bytes = 0
    broker.endpoint.drained.set_result(None)
    for _ in range(10):
        await turn()
    assert len(broker.endpoint.take()) == 20 - COLD_COUNT_MAX


async def test_cold_read_of_a_closed_connection_leaves_no_state() -> None:
    broker = Broker()
    reads = HeldReads(broker)
    for opaque in range(10):
        broker.pull(opaque=opaque, **LONG)
    await turn()
    broker.endpoint.closed = True
    broker.pulls.connection_closed(broker.endpoint)  # type: ignore[arg-type]
    reads.go.set()
    await turn()
    assert (len(reads.begun), broker.endpoint.take(), broker.pulls.held_count) == (COLD_COUNT_MAX, [], 0)


async def test_epoch_that_rose_during_a_cold_read_rejects_the_pull() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"old"])
    broker.store.cold = True
    broker.pull(epoch=5)
    await asyncio.sleep(0)
    broker.coordination.checks[5] = PullCheck(stale=True)
    assert (await broker.response()).code == ResponseCode.STALE_EPOCH


async def test_connection_that_does_not_read_does_not_block_others() -> None:
    broker = Broker()
    broker.store.append("t", 0, [b"x"])
    slow, quick = FakeEndpoint(1), FakeEndpoint(2)
    slow.unsent_bytes = UNSENT_BYTES_MAX + 1
    slow.drained = asyncio.get_running_loop().create_future()
    broker.pull(endpoint=slow)
    broker.pull(endpoint=slow, opaque=2)
    broker.pull(endpoint=quick)
    await turn()
    assert (len(slow.sent), len(quick.sent)) == (0, 1)
    slow.unsent_bytes = 0
    slow.drained.set_result(None)
    await turn()
    assert [one.opaque for one in slow.sent] == [1, 2]


async def test_blocked_connection_is_forgotten_when_it_closes() -> None:
    broker = Broker()
    slow = FakeEndpoint()
    slow.unsent_bytes = UNSENT_BYTES_MAX + 1
    slow.drained = asyncio.get_running_loop().create_future()
    broker.pull(endpoint=slow)
    await turn()
    slow.closed = True
    slow.drained.set_result(None)
    broker.pulls.connection_closed(slow)  # type: ignore[arg-type]
    await turn()
    assert slow.sent == []
    assert len(broker.tasks) == 0


async def test_pulls_woken_by_one_message_are_served_in_order_up_to_a_limit_per_turn() -> None:
    broker = Broker()
    for number in range(3 * TURN_HELD_MAX):
        broker.pull(0, opaque=number, consumer_group=f"g{number % 7}", **LONG)
    await turn()
    assert (broker.pulls.held_count, broker.endpoint.take()) == (3 * TURN_HELD_MAX, [])
    broker.arrive(b"x")
    given: list[int] = []
    turns = 0
    while len(given) < 3 * TURN_HELD_MAX:
        await asyncio.sleep(0)
        responses = broker.endpoint.take()
        assert len(responses) <= TURN_HELD_MAX
        given += [response.opaque for response in responses]
        turns += bool(responses)
    assert (given, turns) == (list(range(3 * TURN_HELD_MAX)), 3)


async def test_expired_pulls_are_served_up_to_a_limit_per_turn() -> None:
    broker = Broker()
    for number in range(TURN_HELD_MAX + 1):
        broker.pull(0, opaque=number, consumer_group=f"g{number % 7}", **LONG)
    await turn()
    broker.host.clock.now_ms += 15_000
    broker.pulls._expire()
    await asyncio.sleep(0)
    assert len(broker.endpoint.take()) == TURN_HELD_MAX
    broker.pulls._expire()
    await asyncio.sleep(0)
    assert [response.opaque for response in broker.endpoint.take()] == [TURN_HELD_MAX]
    broker.pulls.stop()


@pytest.mark.parametrize("sums", [{"held_per_group_max": 2}, {"held_max": 2}])
async def test_oldest_held_pull_above_the_limit_is_ended_as_at_its_deadline(sums: dict[str, int]) -> None:
    broker = Broker(**sums)
    for number in range(4):
        broker.pull(0, opaque=number, **LONG)
        await turn()
    responses = broker.endpoint.take()
    assert [(response.opaque, response.code) for response in responses] == [
        (0, ResponseCode.PULL_NOT_FOUND),
        (1, ResponseCode.PULL_NOT_FOUND),
    ]
    assert (broker.pulls.held_count, broker.pulls.excess_count) == (2, 2)
    broker.arrive(b"x")
    await turn()
    assert [response.opaque for response in broker.endpoint.take()] == [2, 3]


async def test_pulls_above_a_lowered_limit_end_in_several_turns_the_oldest_first() -> None:
    broker = Broker()
    for number in range(2 * TURN_HELD_MAX + 2):
        broker.pull(0, opaque=number, consumer_group=f"g{number % 7}", **LONG)
    await turn()
    broker.pulls.limit_held(1, 1_024)
    given: list[int] = []
    while broker.pulls.held_count > 1 or len(given) <= 2 * TURN_HELD_MAX:
        before = broker.pulls.held_count
        await asyncio.sleep(0)
        assert before - broker.pulls.held_count <= TURN_HELD_MAX
        given += [response.opaque for response in broker.endpoint.take()]
    assert (given, broker.pulls.excess_count) == (list(range(2 * TURN_HELD_MAX + 1)), 2 * TURN_HELD_MAX + 1)
    broker.pulls.stop()


@pytest.mark.parametrize("key", ["", "k3"])
@pytest.mark.parametrize(
    "check", [PullCheck(stale=True), PullCheck(moved_to=7), PullCheck(may_commit=True)], ids=["stale", "moved", "free"]
)
async def test_pull_of_parked_messages_without_an_epoch_is_an_operator_s(key: str, check: PullCheck) -> None:
    """It is neither fenced nor counted, commits nothing, and is told of no reset, of which a member would not learn then."""
    broker = Broker()
    broker.coordination.checks[None] = broker.coordination.checks[5] = check
    broker.coordination.parks.park(("g", "t", 0), "k3", 0, 3, "failed", 1)
    broker.store.append("t", 0, [encode_record(b"t", 0, b"x", b"__SHARDINGKEY\x01" + each, born_ms=1) for each in (b"k2", b"k3")])
    response = await broker.pulled(0, key=key, sys_flag=SUBSCRIPTION | COMMIT_OFFSET, commit_offset=1)
    assert (response.code, len(split_records(response.body))) == (ResponseCode.SUCCESS, 1)
    assert (broker.coordination.commits, broker.pulls.delivered) == ([], {})
    broker.pull(0, key=key, epoch=5)
    expected = ResponseCode.STALE_EPOCH if check.stale else ResponseCode.PULL_OFFSET_MOVED if check.moved_to else ResponseCode.SUCCESS
    assert (await broker.response()).code == expected, "that of an owner is checked"
    assert bool(broker.pulls.delivered) is (expected is ResponseCode.SUCCESS)

"""Who is asked how a transaction has ended, when, and with what."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from lockstep.broker.processors.rooms import check_back
from lockstep.broker.processors.rooms.check_back import HOUR_MS, PER_CONNECTION, UNSENT_BYTES_MAX, immunity_ms
from lockstep.broker.tables.check_schedule import FIRST_PAUSE_MS, PAUSE_MS_MAX
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.transactions import COMMIT
from lockstep.protocol.messages.properties import decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.names import HALF_TOPIC
from support.check_bench import CHECK_MS, SENDER, Bench, NoRights
from support.timer_machine import ReadGate, TimerMachine


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    machine = await TimerMachine().start()
    yield Bench(machine)
    await machine.stop()


async def test_sender_is_asked_first_at_its_time_and_then_after_longer_and_longer_pauses(bench: Bench) -> None:
    sender, other = bench.connect(SENDER), bench.connect("other")
    half = await bench.half(b"body")
    await bench.checks.look()
    await bench.after(CHECK_MS - 1)
    assert sender.got == []
    await bench.after(1)
    ((fields, data),) = sender.got
    assert (fields["tranStateTableOffset"], fields["msgId"], fields["transactionId"]) == (half.offset, half.message_id, half.message_id)
    record = RecordView(data)
    assert (record.topic, record.queue_id, record.body, record.queue_offset) == (b"orders", 2, b"body", half.offset)
    assert decode_properties(record.properties) == {"TRAN_MSG": "true", "PGROUP": "shop", "UNIQ_KEY": half.message_id}
    for pause_ms in (FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS):
        before = len(sender.got)
        await bench.after(pause_ms - 1)
        assert len(sender.got) == before
        await bench.after(1)
        assert len(sender.got) == before + 1
    await bench.machine.end(COMMIT, half)
    await bench.after(10 * FIRST_PAUSE_MS)
    assert (len(sender.got), other.got, bench.checks.asked_count) == (3, [], 3)


async def test_another_producer_is_asked_only_when_the_sender_is_gone_for_good(bench: Bench) -> None:
    other = bench.connect("other")
    bench.returning.add(SENDER)
    half = await bench.half()
    await bench.checks.look()
    await bench.after(CHECK_MS)
    await bench.after(60_000)
    assert other.got == []
    bench.returning.clear()
    await bench.after(1_000)
    assert other.offsets == [half.offset]


async def test_who_does_not_answer_or_may_not_know_is_never_asked(bench: Bench) -> None:
    silent = bench.connect("plain", checks=False)
    elsewhere = bench.connect("elsewhere", group="other")
    guest = bench.connect(SENDER, rights=NoRights())
    half = await bench.half()
    await bench.checks.look()
    await bench.after(CHECK_MS)
    await bench.after(60_000)
    assert silent.got == elsewhere.got == guest.got == []
    java = bench.connect("java", native=False)
    await bench.after(1_000)
    assert java.offsets == [half.offset]


async def test_client_of_rocketmq_that_has_sent_half_messages_comes_before_another(bench: Bench) -> None:
    plain, sends = bench.connect("plain", native=False), bench.connect("sends", native=False, is_sender=True)
    for _ in range(5):
        await bench.half(client_id="")
    await bench.checks.look()
    await bench.after(CHECK_MS)
    assert (plain.offsets, sends.offsets) == ([], [0, 1, 2, 3, 4])


async def test_client_is_asked_a_hundred_questions_in_a_second(bench: Bench) -> None:
    sender = bench.connect(SENDER)
    for _ in range(PER_CONNECTION + 20):
        await bench.half()
    await bench.checks.look()
    await bench.after(CHECK_MS)
    assert len(sender.got) == PER_CONNECTION
    await bench.after(999)
    assert len(sender.got) == PER_CONNECTION
    await bench.after(1)
    assert sorted(sender.offsets) == list(range(PER_CONNECTION + 20))


async def test_arrivals_do_not_raise_the_questions_in_a_second(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new half message wakes the task that asks. The limits are of all connections, and of each."""
    monkeypatch.setattr(check_back, "PER_SECOND", 5)
    monkeypatch.setattr(check_back, "PER_CONNECTION", 3)
    first, second = bench.connect(SENDER), bench.connect("b")
    for number in range(12):
        await bench.half(client_id=(SENDER, "b")[number % 2])
    await bench.checks.look()
    await bench.after(CHECK_MS)
    for _ in range(4):
        await bench.half()
        await bench.checks.look()
        assert (len(first.got), len(second.got)) == (3, 2)
    for _ in range(3):
        await bench.after(1_000)
    assert sorted(first.offsets + second.offsets) == list(range(12))
    assert first.offsets == list(range(0, 12, 2))


async def test_message_that_is_too_old_is_asked_about_no_more(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    sender = bench.connect(SENDER)
    bench.returning.add(SENDER)
    bench.leave(sender)
    await bench.half()
    await bench.checks.look()
    await bench.after(24 * HOUR_MS - 1)
    (half,) = bench.machine.state.transactions.from_offset(0, 9)
    assert not bench.checks.is_expired(half)
    await bench.after(1)
    assert not bench.checks.is_expired(half)
    bench.machine.clock.now_ms += 1
    assert bench.checks.is_expired(half)
    await bench.after(1_000)
    sender = bench.connect(SENDER)
    for _ in range(3):
        await bench.after(HOUR_MS)
    assert (sender.got, bench.checks.is_expired(half), len(bench.machine.state.transactions)) == ([], True, 1)
    assert sum("transaction.expired" in record.getMessage() for record in caplog.records) == 1


async def test_message_that_is_not_too_old_any_more_is_asked_about_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The limit was raised in the running broker."""
    sender = bench.connect(SENDER)
    half = await bench.half()
    await bench.checks.look()
    for hours, ms in ((24.0, 24 * HOUR_MS - 1), (48.0, 21 * HOUR_MS + HOUR_MS // 2)):
        bench.terms = CHECK_MS, hours
        sender.got.clear()
        await bench.after(ms)
        assert sender.offsets == [half.offset]
        sender.got.clear()
        await bench.after(HOUR_MS)
        await bench.after(HOUR_MS)
        assert sender.got == []
    assert sum("transaction.expired" in record.getMessage() for record in caplog.records) == 2
    await bench.machine.end(COMMIT, half)
    bench.terms = CHECK_MS, 1_000.0
    await bench.after(PAUSE_MS_MAX)
    assert sender.got == []


@pytest.mark.parametrize("age_ms", [0, 25 * HOUR_MS], ids=["young", "too old"])
@pytest.mark.parametrize("created_again", [False, True])
async def test_message_whose_topic_was_deleted_is_rolled_back(
    bench: Bench, age_ms: int, created_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is asked about it, and nothing waits for its decision any more."""
    half = await bench.half()
    await bench.checks.look()
    if age_ms:
        await bench.after(age_ms)
        await bench.after(1_000)
    bench.machine.create_topic("orders", 2, queues=0)
    if created_again:
        bench.machine.create_topic("orders", 3)
    sender = bench.connect(SENDER)
    await bench.after(PAUSE_MS_MAX)
    assert (sender.got, len(bench.machine.state.transactions)) == ([], 0)
    assert (await bench.machine.end(COMMIT, half))[0] == ResponseCode.TRANSACTION_SHOULD_ROLLBACK
    assert "transaction.rolled_back" in caplog.text


@pytest.mark.parametrize(("seconds", "asked_ms"), [(b"3", CHECK_MS), (b"6", CHECK_MS), (b"10", 10_000), (b"x", CHECK_MS), (b"90000", None)])
async def test_message_with_an_immunity_is_asked_about_when_that_ends(bench: Bench, seconds: bytes, asked_ms: int | None) -> None:
    """An immunity longer than the limit of the questions is no way to be never too old."""
    sender = bench.connect(SENDER)
    await bench.half(properties=b"CHECK_IMMUNITY_TIME_IN_SECONDS\x01" + seconds)
    await bench.checks.look()
    if asked_ms is None:
        for _ in range(30):
            await bench.after(HOUR_MS)
        assert sender.got == []
        return
    passed_ms = 0
    for at_ms in sorted({CHECK_MS, asked_ms}):
        await bench.after(at_ms - 1 - passed_ms)
        assert sender.got == []
        await bench.after(1)
        passed_ms = at_ms
        assert len(sender.got) == (at_ms == asked_ms)


async def test_connection_that_is_closed_or_does_not_read_is_not_asked(bench: Bench) -> None:
    sender, other = bench.connect(SENDER), bench.connect("other")
    half = await bench.half()
    await bench.checks.look()
    sender.unsent_bytes = UNSENT_BYTES_MAX + 1
    await bench.after(CHECK_MS)
    assert (sender.got, other.got) == ([], []), "the sender is there, and is asked when it reads"
    sender.unsent_bytes = UNSENT_BYTES_MAX
    await bench.after(1_000)
    assert sender.offsets == [half.offset]
    sender.closed = True
    await bench.after(FIRST_PAUSE_MS)
    assert (len(sender.got), other.offsets) == (1, [half.offset])


async def test_questions_go_to_several_producers_of_the_group(bench: Bench) -> None:
    """So that each one answers some when the sender is gone."""
    producers = [bench.connect(f"p{number}") for number in range(3)]
    for _ in range(2 * PER_CONNECTION):
        await bench.half(client_id="gone")
    await bench.checks.look()
    await bench.after(CHECK_MS)
    assert sorted(offset for each in producers for offset in each.offsets) == list(range(2 * PER_CONNECTION))
    assert all(0 < len(each.got) <= PER_CONNECTION for each in producers)


async def test_message_that_ends_while_it_is_read_is_not_asked_about(bench: Bench) -> None:
    sender = bench.connect(SENDER)
    half = await bench.half()
    await bench.checks.look()
    gate = ReadGate(bench.machine.store, room=HALF_TOPIC)
    looking = asyncio.ensure_future(bench.after(CHECK_MS))
    await gate.reached.wait()
    assert (await bench.machine.end(COMMIT, half))[0] == ResponseCode.SUCCESS
    gate.go.set()
    await looking
    assert sender.got == []


async def test_sender_who_does_not_know_the_outcome_is_asked_at_once(bench: Bench) -> None:
    sender = bench.connect(SENDER)
    half = await bench.half()
    await bench.checks.look()
    bench.checks.ask_soon(half.offset)
    bench.checks.ask_soon(half.offset + 1)
    await bench.checks.look()
    assert sender.offsets == [half.offset]


@pytest.mark.parametrize(("text", "ms"), [("", 0), ("10", 10_000), ("-1", 0), ("x", 0), ("9" * 10, 0), ("٥", 0)])
def test_immunity_of_a_message_is_a_number_of_seconds(text: str, ms: int) -> None:
    assert immunity_ms(text) == ms

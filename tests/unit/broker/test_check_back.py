"""Who is asked how a transaction has ended, when, and with what."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.broker.classic.connections import ClassicConnection, ClientConnections
from lockstep.broker.processors.rooms.check_back import HOUR_MS, PER_CONNECTION, CheckBack, immunity_ms
from lockstep.broker.tables.check_schedule import FIRST_PAUSE_MS
from lockstep.protocol.bodies import HalfMessage
from lockstep.protocol.command import MSGPACK
from lockstep.protocol.headers.transactions import COMMIT
from lockstep.protocol.messages.properties import decode_properties
from lockstep.protocol.messages.record import RecordView
from lockstep.runtime.security.authenticated_user import ANYBODY, RequestUser
from support.timer_machine import TimerMachine

CHECK_MS = 6_000
SENDER = "10.0.0.7@1#a"


class Asked:
    """An endpoint that keeps the questions."""

    codec = MSGPACK
    closed = False
    unsent_bytes = 0

    def __init__(self, number: int) -> None:
        self.id = number
        self.got: list[tuple[Mapping[str, Any], bytes]] = []

    def oneway(self, code: int, fields: Mapping[str, Any], body: bytes) -> None:
        assert code == 39
        self.got.append((fields, body))

    @property
    def offsets(self) -> list[int]:
        return [fields["tranStateTableOffset"] for fields, _ in self.got]


class NoRights(RequestUser):
    name = "guest"

    def may(self, *_: object) -> bool:
        return False


class Bench:
    """A broker with clients that are connected, and the questions to them."""

    def __init__(self, machine: TimerMachine) -> None:
        self.machine = machine
        self.returning: set[str] = set()
        state = SimpleNamespace(sessions=SimpleNamespace(may_return=lambda client_id, _: client_id in self.returning))
        self.connections = ClientConnections(cast(Any, SimpleNamespace(state=state)))
        self.terms = (CHECK_MS, 24.0)
        facts = machine.host, machine.store, machine.state.transactions
        self.checks = CheckBack(*facts, self.connections, lambda: self.terms)

    def connect(self, client_id: str, *, native: bool = True, checks: bool = True, group: str = "shop", **given: Any) -> Asked:
        endpoint = Asked(len(self.connections._clients) + 1)
        facts = frozenset({group} if checks and native else ()), bool(given.get("is_sender"))
        client = ClassicConnection(cast(Any, endpoint), client_id, native, "PYTHON", 1, 0, (group,))
        client = replace(client, checks=facts[0], is_sender=facts[1], rights=given.get("rights", ANYBODY))
        self.connections._clients[endpoint.id] = client
        self.connections._by_id.setdefault(client_id, {})[endpoint.id] = None
        return endpoint

    def leave(self, endpoint: Asked) -> None:
        self.connections._remove(endpoint.id)

    async def half(self, body: bytes = b"m", client_id: str = SENDER) -> HalfMessage:
        return await self.machine.half(body, client_id=client_id)

    async def after(self, ms: int) -> None:
        self.machine.clock.now_ms += ms
        await self.checks.look()


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
    await bench.after(1_000)
    assert sorted(sender.offsets) == list(range(PER_CONNECTION + 20))


async def test_message_that_is_too_old_is_asked_about_no_more(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    sender = bench.connect(SENDER)
    bench.returning.add(SENDER)
    bench.leave(sender)
    await bench.half()
    await bench.checks.look()
    await bench.after(24 * HOUR_MS)
    (half,) = bench.machine.state.transactions.from_offset(0, 9)
    assert not bench.checks.is_expired(half)
    await bench.after(1_000)
    sender = bench.connect(SENDER)
    for _ in range(3):
        await bench.after(HOUR_MS)
    assert (sender.got, bench.checks.is_expired(half), len(bench.machine.state.transactions)) == ([], True, 1)
    assert sum("transaction.expired" in record.getMessage() for record in caplog.records) == 1


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

"""The NameserverRegistration against real nameservers over loopback sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from lockstep.broker.nameserver_registration import (
    ROUNDS_MAX,
    BrokerIdentity,
    NameserverRegistration,
    RegistrationRefusedError,
    RegistrationState,
)
from lockstep.broker.store.errors import StoreDiskError
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.nameserver.route_table import REFUSED_MAX
from lockstep.protocol.bodies import RegisterReply
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.topics.layouts import PART_LAYOUTS_MAX, LayoutTable
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.connections.server import Server
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.requests.dispatch import Dispatcher, handles
from lockstep.runtime.requests.needs import ANY_USER
from lockstep.runtime.requests.request import NO_RESPONSE, HandlerResult, Request
from support.until import until

HOST = Host.real()


def layout(topic: str, counter: int = 1, broker: str = "broker-a") -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(counter, 7), (LayoutEntry(broker, 4, 4, 1),))


class Broker:
    """The part of a broker that NameserverRegistration needs: its layouts and its identity."""

    def __init__(
        self,
        nameservers: Sequence[str],
        *layouts: TopicLayout,
        name: str = "broker-a",
        store: str = "a" * 32,
        term: int = 5,
        port: int = 1,
        topics_max: int = 1 << 20,
        office: bool = False,
    ) -> None:
        self.table = LayoutTable(layouts)
        self.tasks = Tasks()
        self.adoptions = 0
        self.unconfirmed: list[Callable[[], None]] | None = None
        """What waits for the log; None: it confirms at once."""
        identity = BrokerIdentity(
            name, "DefaultCluster", store, term, {"internal": f"10.0.0.{port}:10911"}, "c" * 32, term - 1, office=office
        )
        self.superseded_by: list[int] = []
        self.topics_max = topics_max
        self.registration = NameserverRegistration(
            HOST,
            self.tasks,
            lambda: identity,
            nameservers,
            when_confirmed=self.when_confirmed,
            layouts=self.table.all,
            adopt=self.adopt,
            full=lambda: self.full,
            replicas=lambda: ["10.0.0.9:10911"],
            superseded=self.superseded_by.append,
            period_ms=60_000,
        )

    def when_confirmed(self, callback: Callable[[], None]) -> None:
        if self.unconfirmed is None:
            callback()
        else:
            self.unconfirmed.append(callback)

    def adopt(self, layouts: Sequence[TopicLayout]) -> int:
        self.adoptions += 1
        return sum(self.table.adopt(one) for one in layouts if self.table.get(one.topic) is not None or not self.full)

    @property
    def full(self) -> bool:
        return len(self.table) >= self.topics_max

    async def stop(self) -> None:
        await self.registration.stop()
        await self.tasks.cancel_all()


@asynccontextmanager
async def nameserver(port: int = 0) -> AsyncIterator[Nameserver]:
    served = Nameserver(NameserverConfig(listen=(f"127.0.0.1:{port}",)), HOST)
    await served.start()
    try:
        yield served
    finally:
        await served.stop()


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Broker]:
    broker.registration.start()
    try:
        async with asyncio.timeout(10):
            yield broker
    finally:
        await broker.stop()


async def wait_for_state(broker: Broker, address: str, wanted: RegistrationState) -> None:
    await until(lambda: broker.registration.states()[address] is wanted)


async def unused_address() -> str:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return f"127.0.0.1:{port}"


async def test_broker_registers_with_every_nameserver() -> None:
    async with nameserver() as one, nameserver() as other, running(Broker([one.address, other.address], layout("orders"))) as broker:
        await broker.registration.wait_until_accepted()
        for served in (one, other):
            assert served.table.registered() == ("broker-a",)
            assert served.table.layouts.get("orders") == layout("orders")
        assert broker.registration.states() == {one.address: RegistrationState.ACCEPTED, other.address: RegistrationState.ACCEPTED}


async def test_layouts_beyond_one_frame_are_not_fatal(caplog: pytest.LogCaptureFixture) -> None:
    async with nameserver() as served, running(Broker([served.address], layout("orders"))) as broker:
        await broker.registration.wait_until_accepted()
        broker.table.adopt(layout("orders", counter=2, broker="b" * (17 << 20)))
        broker.registration.register_soon()
        await until(lambda: "registration.failed" in caplog.text)
        broker.table.adopt(layout("orders", counter=3))
        broker.registration.register_soon()
        await until(lambda: served.table.layouts.get("orders") == layout("orders", counter=3))
        assert broker.tasks.failure is None


async def test_missing_layouts_are_adopted_before_the_broker_is_accepted_and_routed() -> None:
    async with nameserver() as served, running(Broker([served.address], layout("orders"))) as first:
        await first.registration.wait_until_accepted()
        async with running(Broker([served.address], name="broker-b", store="b" * 32, port=2)) as second:
            await second.registration.wait_until_accepted()
            assert second.table.get("orders") == layout("orders")
            assert [(b.name, b.registered) for b in served.table.brokers("internal")] == [("broker-a", True), ("broker-b", True)]


async def test_layout_of_another_broker_is_adopted_at_once() -> None:
    async with nameserver() as served, running(Broker([served.address], layout("orders"))) as first:
        await first.registration.wait_until_accepted()
        async with running(Broker([served.address], layout("orders"), name="broker-b", store="b" * 32, port=2)) as second:
            await second.registration.wait_until_accepted()
            second.table.adopt(layout("orders", counter=2))
            second.registration.register_soon()
            await until(lambda: first.table.get("orders") == layout("orders", counter=2))


async def test_store_error_while_adopting_a_layout_ends_this_broker(caplog: pytest.LogCaptureFixture) -> None:
    async with nameserver() as served, running(Broker([served.address], layout("orders"))) as first:
        await first.registration.wait_until_accepted()

        def broken(_layouts: Sequence[TopicLayout]) -> None:
            raise StoreDiskError("no space")

        first.registration.adopt = broken  # type: ignore[method-assign]
        async with running(Broker([served.address], layout("orders", counter=2), name="broker-b", store="b" * 32, port=2)):
            await until(lambda: first.tasks.failure is not None)
        assert isinstance(first.tasks.failure, StoreDiskError)
        assert "Exception in callback" not in caplog.text


async def test_invalid_frame_of_a_nameserver_closes_only_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with nameserver() as served, running(Broker([served.address], layout("orders"))) as broker:
        await broker.registration.wait_until_accepted()
        (speaker,) = served._processor._connections.values()
        speaker.oneway(RequestCode.LAYOUTS_CHANGED, body=b"no layouts")
        await until(lambda: served._processor._connections and speaker not in served._processor._connections.values())
        await wait_for_state(broker, served.address, RegistrationState.ACCEPTED)
        assert broker.tasks.failure is None


async def test_layouts_learned_from_one_nameserver_are_sent_to_the_others() -> None:
    known = layout("orders"), layout("bills", broker="broker-b")
    async with nameserver() as one, nameserver() as other, running(Broker([one.address], *known)) as first:
        await first.registration.wait_until_accepted()
        async with running(Broker([one.address, other.address], name="broker-b", store="b" * 32, port=2)) as second:
            await second.registration.wait_until_accepted()
            await until(lambda: other.table.layouts.get("orders") is not None)
            assert other.table.layouts.all() == one.table.layouts.all()


async def test_registered_name_is_rejected_at_the_start_with_exit_code_4() -> None:
    async with nameserver() as served, running(Broker([served.address])) as first:
        await first.registration.wait_until_accepted()
        async with running(Broker([served.address], store="b" * 32, port=2)) as second:
            with pytest.raises(RegistrationRefusedError) as refused:
                await second.registration.wait_until_accepted()
    assert refused.value.exit_code == 4
    for word in (served.address, "10.0.0.1:10911", "10.0.0.2:10911"):
        assert word in str(refused.value)


async def test_one_rejection_outweighs_the_acceptance_of_another_nameserver() -> None:
    async with nameserver() as empty, nameserver() as taken, running(Broker([taken.address])) as first:
        await first.registration.wait_until_accepted()
        async with running(Broker([empty.address, taken.address], store="b" * 32, port=2)) as second:
            with pytest.raises(RegistrationRefusedError, match=taken.address):
                await second.registration.wait_until_accepted()


class SlowNameserver:
    """A nameserver that responds to registrations when the test lets it."""

    def __init__(self) -> None:
        self.requested: list[Request] = []

    @handles(RequestCode.REGISTER_BROKER, needs=ANY_USER)
    def register(self, request: Request) -> HandlerResult:
        self.requested.append(request)
        return NO_RESPONSE


@pytest.mark.parametrize("refuses", [True, False])
async def test_start_waits_for_a_pending_registration(refuses: bool) -> None:
    slow = SlowNameserver()
    server = Server(HOST, {"internal": ("127.0.0.1", 0)}, Dispatcher([slow]))
    await server.start()
    address = server.addresses["internal"]
    async with nameserver() as quick, running(Broker([quick.address, address])) as broker:
        accepted = broker.tasks.spawn(broker.registration.wait_until_accepted(), "accepted")
        await wait_for_state(broker, quick.address, RegistrationState.ACCEPTED)
        await until(lambda: len(slow.requested) == 1)
        assert not accepted.done()
        request = slow.requested[0]
        code = ResponseCode.BROKER_NAME_TAKEN if refuses else ResponseCode.SUCCESS
        request.respond(request.reply(body=RegisterReply(()), code=code, remark="taken"))
        await asyncio.wait([accepted])
        assert isinstance(accepted.exception(), RegistrationRefusedError) == refuses
    await server.close()


async def test_nameserver_that_never_responds_delays_the_start_by_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.broker.nameserver_registration.SETTLE_MS", 1)
    server = Server(HOST, {"internal": ("127.0.0.1", 0)}, Dispatcher([SlowNameserver()]))
    await server.start()
    address = server.addresses["internal"]
    async with nameserver() as quick, running(Broker([quick.address, address])) as broker:
        await broker.registration.wait_until_accepted()
        assert broker.registration.states() == {quick.address: RegistrationState.ACCEPTED, address: RegistrationState.PENDING}
    await server.close()


async def test_cancelled_registration_tasks_close_their_connections() -> None:
    async with nameserver() as served:
        broker = Broker([served.address])
        broker.registration.start()
        await broker.registration.wait_until_accepted()
        await broker.tasks.cancel_all()
        await until(lambda: served.table.registered() == ())


async def test_unreachable_nameserver_does_not_prevent_the_start() -> None:
    down = await unused_address()
    async with nameserver() as served, running(Broker([down, served.address])) as broker:
        await broker.registration.wait_until_accepted()
        assert broker.registration.states()[served.address] is RegistrationState.ACCEPTED
        await wait_for_state(broker, down, RegistrationState.UNREACHABLE)


async def test_broker_waits_for_its_first_nameserver_and_logs_it_once(caplog: pytest.LogCaptureFixture) -> None:
    address = await unused_address()
    async with running(Broker([address])) as broker:
        await wait_for_state(broker, address, RegistrationState.UNREACHABLE)
        accepted = broker.tasks.spawn(broker.registration.wait_until_accepted(), "accepted")
        await until(lambda: "registration.awaited" in caplog.text)
        async with nameserver(int(address.rpartition(":")[2])):
            await accepted
            assert broker.registration.states() == {address: RegistrationState.ACCEPTED}
    warned = [record.getMessage() for record in caplog.records if record.name == "lockstep.broker" and record.levelname == "WARNING"]
    assert [text.split()[0] for text in warned] == ["registration.changed", "registration.awaited"]
    assert "connection refused" in warned[0]


async def test_broker_without_nameservers_starts_at_once() -> None:
    async with running(Broker([])) as broker:
        await broker.registration.wait_until_accepted()


async def test_layout_change_is_registered_at_once() -> None:
    async with nameserver() as served, running(Broker([served.address], layout("orders"))) as broker:
        await broker.registration.wait_until_accepted()
        broker.table.adopt(layout("bills"))
        broker.registration.register_soon()
        await until(lambda: served.table.layouts.get("bills") is not None)


async def test_start_is_accepted_while_the_log_waits_for_copies_that_connect_to_its_port() -> None:
    async with nameserver() as served:
        broker = Broker([served.address], layout("orders"))
        broker.unconfirmed = []
        async with running(broker):
            await broker.registration.wait_until_accepted()
            assert served.table.layouts.get("orders") is not None


@pytest.mark.parametrize("why", ["change", "connection"])
async def test_layouts_are_registered_when_the_log_has_confirmed_them_whatever_the_reason(why: str) -> None:
    async with nameserver() as served, running(Broker([served.address], layout("orders"))) as broker:
        await broker.registration.wait_until_accepted()
        broker.unconfirmed = []
        broker.table.adopt(layout("bills"))
        if why == "change":
            broker.registration.register_soon()
        else:
            (peer,) = broker.registration._peers
            cast(Endpoint, peer.endpoint).abort("cut by the test")
        await until(lambda: bool(broker.unconfirmed))
        for _ in range(50):
            await asyncio.sleep(0)
        assert served.table.layouts.get("bills") is None
        (confirm,) = broker.unconfirmed
        confirm()
        await until(lambda: served.table.layouts.get("bills") is not None)


async def test_broker_registers_again_every_period() -> None:
    async with nameserver() as served:
        broker = Broker([served.address])
        broker.registration.period_ms = 1
        async with running(broker):
            await broker.registration.wait_until_accepted()
            broker.table.adopt(layout("silently-added"))
            await until(lambda: served.table.layouts.get("silently-added") is not None)


async def test_restarted_empty_nameserver_relearns_all_layouts_from_one_broker() -> None:
    async with nameserver() as served:
        port = int(served.address.rpartition(":")[2])
        broker = Broker([served.address], layout("orders"), layout("bills", broker="broker-b"))
        broker.registration.start()
        await broker.registration.wait_until_accepted()
    try:
        async with asyncio.timeout(10), nameserver(port) as again:
            await until(lambda: again.table.ready)
            assert again.table.layouts.all() == (layout("bills", broker="broker-b"), layout("orders"))
            assert again.table.registered() == ("broker-a",)
    finally:
        await broker.stop()


async def test_rejection_while_serving_is_only_logged() -> None:
    async with nameserver() as served, running(Broker([served.address], term=5)) as first:
        await first.registration.wait_until_accepted()
        (connection,) = served._processor._connections
        served.table.connection_closed(connection, 0)  # as after a partition
        async with running(Broker([served.address], term=6, port=2)) as newer:
            await newer.registration.wait_until_accepted()
            first.registration.register_soon()
            await wait_for_state(first, served.address, RegistrationState.REFUSED)
            assert first.tasks.failure is None
            assert [(b.address, b.registered) for b in served.table.brokers("internal")] == [("10.0.0.2:10911", True)]


async def test_deposed_master_learns_the_term_that_has_replaced_it_and_goes_on() -> None:
    async with nameserver() as served, running(Broker([served.address], term=5, office=True)) as old:
        await old.registration.wait_until_accepted()
        async with running(Broker([served.address], term=6, port=2, office=True)) as new:
            await new.registration.wait_until_accepted()
            await until(lambda: old.superseded_by == [6])
            assert old.registration.states() == {served.address: RegistrationState.SUPERSEDED}
            (routed,) = served.table.brokers("internal")
            assert (routed.address, routed.term, routed.registered, routed.replicas) == ("10.0.0.2:10911", 6, True, ("10.0.0.9:10911",))
        assert old.tasks.failure is None
        assert new.superseded_by == []


async def test_stop_unregisters_before_the_connection_closes() -> None:
    async with nameserver() as served, running(Broker([served.address])) as broker:
        await broker.registration.wait_until_accepted()
        await broker.registration.stop()
        assert served.table.registered() == ()


async def test_rejected_copy_of_a_store_does_not_unregister_the_original() -> None:
    """Its UNREGISTER_BROKER would name the store and term with which the original is registered."""
    async with nameserver() as served, running(Broker([served.address], term=5)) as first:
        await first.registration.wait_until_accepted()
        async with running(Broker([served.address], term=5, port=2)) as copy:
            with pytest.raises(RegistrationRefusedError, match="two copies of one store"):
                await copy.registration.wait_until_accepted()
        assert [(b.address, b.registered) for b in served.table.brokers("internal")] == [("10.0.0.1:10911", True)]


async def test_layouts_that_are_not_stored_do_not_cause_an_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with nameserver() as served, running(Broker([served.address], layout("orders"))) as first:
        await first.registration.wait_until_accepted()
        forgetful = Broker([served.address], name="broker-b", store="b" * 32, port=2)
        registrations = 0
        plain_word = forgetful.registration.registration_part

        def word(*part: Any) -> tuple[dict[str, object], bytes]:
            nonlocal registrations
            registrations += 1
            return plain_word(*part)

        monkeypatch.setattr(forgetful.registration, "registration_part", word)

        def adopt(_layouts: Sequence[TopicLayout]) -> int:
            forgetful.adoptions += 1
            return 0

        forgetful.registration.adopt = adopt
        forgetful.registration.layouts = tuple
        async with running(forgetful):
            await until(lambda: forgetful.adoptions > ROUNDS_MAX)
            assert forgetful.registration.states() == {served.address: RegistrationState.LEARNING}
        assert registrations == ROUNDS_MAX + 1
        assert forgetful.adoptions == ROUNDS_MAX + 1


async def test_broker_with_a_vanished_predecessor_is_accepted_after_the_challenge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The nameserver still has a connection to a machine that is gone and never responds."""
    monkeypatch.setattr("lockstep.nameserver.route_table.CHALLENGE_MS", 1)
    monkeypatch.setattr("lockstep.broker.nameserver_registration.PENDING_FIRST_MS", 2)
    async with nameserver() as served:
        vanished = await connect(HOST, served.address, handler=lambda command, endpoint: None)
        fields, body = Broker([served.address], term=5).registration.registration_part()
        assert (await vanished.request(RequestCode.REGISTER_BROKER, fields, body, timeout_ms=5_000)).code == ResponseCode.SUCCESS
        async with running(Broker([served.address], term=6)) as again:
            await again.registration.wait_until_accepted()
            assert [(b.term, b.registered) for b in served.table.brokers("internal")] == [(6, True)]
        await vanished.wait_closed()


async def test_challenge_at_one_nameserver_is_awaited_although_another_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.broker.nameserver_registration.SETTLE_MS", 1)
    async with nameserver() as empty, nameserver() as taken, running(Broker([taken.address])) as first:
        await first.registration.wait_until_accepted()
        async with running(Broker([empty.address, taken.address], store="b" * 32, port=2)) as second:
            await wait_for_state(second, taken.address, RegistrationState.CONTESTED)
            with pytest.raises(RegistrationRefusedError, match=taken.address):
                await second.registration.wait_until_accepted()


async def test_layouts_beyond_one_body_are_registered_and_learned_in_parts() -> None:
    many = [layout(f"t-{number}") for number in range(PART_LAYOUTS_MAX + 1)]
    async with nameserver() as served, running(Broker([served.address], *many)) as first:
        await first.registration.wait_until_accepted()
        assert len(served.table.layouts) == len(many)
        async with running(Broker([served.address], name="broker-b", store="b" * 32, port=2)) as second:
            await second.registration.wait_until_accepted()
            assert len(second.table) == len(many)


async def test_layout_rejected_by_the_nameserver_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    wrong = TopicLayout("wrong", LayoutVersion(1 << 54, 7), layout("orders").entries)
    async with nameserver() as served, running(Broker([served.address], layout("orders"), wrong)) as broker:
        await broker.registration.wait_until_accepted()
        broker.table.adopt(layout("bills"))
        broker.registration.register_soon()
        await until(lambda: served.table.layouts.get("bills") is not None)
        reported = [record for record in caplog.records if record.name == "lockstep.broker" and "layout.refused" in record.getMessage()]
        assert len(reported) == 1
        assert "topic=wrong" in reported[0].getMessage()


async def test_count_of_rejected_layouts_beyond_those_named_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong = [TopicLayout(f"t-{number}", LayoutVersion(1 << 54, 7), ()) for number in range(REFUSED_MAX + 76)]
    async with nameserver() as served, running(Broker([served.address], layout("orders"), *wrong)) as broker:
        await broker.registration.wait_until_accepted()
        assert served.table.layouts.all() == (layout("orders"),)
        messages = [record.getMessage() for record in caplog.records if record.name == "lockstep.broker"]
        assert len([each for each in messages if each.startswith("layouts.refused") and "count=1100" in each]) == 1


async def test_broker_at_its_topic_limit_is_accepted_without_the_nameservers_topics() -> None:
    async with nameserver() as served, running(Broker([served.address], *(layout(f"t-{number}") for number in range(9)))) as first:
        await first.registration.wait_until_accepted()
        second = Broker([served.address], layout("own"), name="broker-b", store="b" * 32, port=2, topics_max=5)
        async with running(second):
            await second.registration.wait_until_accepted()
            assert (len(second.table), second.adoptions) == (5, 1)
            assert served.table.layouts.get("own") == layout("own")
            first.table.adopt(layout("own", counter=2))
            first.registration.register_soon()
            await until(lambda: second.table.get("own") == layout("own", counter=2))


def test_invalid_nameserver_address_is_rejected_at_once() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        Broker(["nowhere"])

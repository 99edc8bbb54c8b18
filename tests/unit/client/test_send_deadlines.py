"""A send ends by its deadline, which counts from the call, whatever it waits for. A send that was never written is not stored."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict

import pytest

from lockstep.client import (
    BatchSendError,
    LockstepError,
    Message,
    MessageQueue,
    Outcome,
    PrecedingSendError,
    Producer,
    QueueUnavailableError,
    SendTimeoutError,
    StateError,
)
from lockstep.client.errors import SendError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines import queue_machine
from lockstep.client.producer.machines.pending import PendingSend
from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.sequencer import GivenId
from lockstep.protocol.command import Command
from lockstep.protocol.messages.message import encode_message
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.testing import TestCluster
from support.counting import Steps
from support.fake_broker import FakeCluster, fake_cluster, ignore, respond_later
from support.loops import until
from support.producing import hold_frame, ignored, keyed, message, producing, send, stop_and_wait_for_link_down

pytestmark = pytest.mark.simulated

TIMEOUT_MS = 700
LATE_MS = 60
"""Tolerance for the resolution of the loop's timers and for the turns over which many failures are spread."""
LIMITED = ProducerConfig(send_timeout_ms=20_000, keyed_send_timeout_ms=20_000, in_flight_count_max=2, attempt_timeout_ms=2_000)

QUEUE = MessageQueue("t", "a", 0)
RECORD = encode_message(message(), 0, "A" * 32, 1)

Send = Callable[[Producer], Awaitable[object]]
WAYS: dict[str, Send] = {
    "unkeyed": lambda producer: producer.send(message(), timeout_ms=TIMEOUT_MS),
    "keyed": lambda producer: producer.send(message(sharding_key="k"), timeout_ms=TIMEOUT_MS),
    "queue": lambda producer: producer.send(message(), queue=QUEUE, timeout_ms=TIMEOUT_MS),
    "batch": lambda producer: producer.send_batch([message()] * 3, timeout_ms=TIMEOUT_MS),
    "keyed batch": lambda producer: producer.send_batch(keyed("xx", "kj"), timeout_ms=TIMEOUT_MS),
    "records": lambda producer: producer.send_records(QUEUE, RECORD, [len(RECORD)], timeout_ms=TIMEOUT_MS),
    "delayed": lambda producer: producer.send(message(), delay_level=3, timeout_ms=TIMEOUT_MS),
    "delayed keyed": lambda producer: producer.send(message(sharding_key="k"), delay_level=3, timeout_ms=TIMEOUT_MS),
}


@asynccontextmanager
async def one_queue() -> AsyncIterator[tuple[FakeCluster, Producer]]:
    async with fake_cluster("a", topics={"t": 1, "u": 1}) as cluster, producing(cluster, LIMITED) as producer:
        await producer.send(message())
        yield cluster, producer


async def the_in_flight_limit(cluster: FakeCluster, producer: Producer) -> None:
    cluster.brokers["a"].script.extend([ignore] * 1_000)
    producer_sends.extend([asyncio.ensure_future(producer.send(message("first", sharding_key="other"))) for _ in range(2)])
    await until(lambda: producer.in_flight_count == 2)


async def a_frame_in_flight(cluster: FakeCluster, producer: Producer) -> None:
    producer_sends.append(await ignored(cluster.brokers["a"], send(producer, "first", "other")))


async def the_link(cluster: FakeCluster, producer: Producer) -> None:
    await stop_and_wait_for_link_down(cluster.brokers["a"], producer)


async def a_nameserver_without_brokers(cluster: FakeCluster, producer: Producer) -> None:
    cluster.ready = False
    producer._topics.open_topics.clear()
    assert producer._shell is not None
    producer._shell.instance.routes._layouts.clear()


async def a_nameserver_that_is_silent(cluster: FakeCluster, producer: Producer) -> None:
    def silent(command: Command, endpoint: Endpoint) -> None:
        """Never respond."""

    await a_nameserver_without_brokers(cluster, producer)
    cluster.ready = True
    assert cluster.server is not None
    for endpoint in cluster.server.endpoints.values():
        endpoint._handler = silent


OBSTACLES = [the_in_flight_limit, a_frame_in_flight, the_link, a_nameserver_without_brokers, a_nameserver_that_is_silent]
producer_sends: list["asyncio.Future[object]"] = []
"""Sends that make others wait."""


def outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, BatchSendError):
        assert all(isinstance(each, SendError) for each in error.results)
        (outcome,) = {outcome_of(each) for each in error.results if isinstance(each, Exception)}
        return outcome
    assert isinstance(error, SendError), error
    return error.outcome


# A delayed send has a frame of its own: it does not wait for one in flight.
TRIED = [(way, obstacle) for way in WAYS for obstacle in OBSTACLES if not (obstacle is a_frame_in_flight and "delayed" in way)]


@pytest.mark.parametrize(("way", "obstacle"), TRIED)
async def test_send_ends_by_its_deadline_whatever_it_waits_for(
    way: str, obstacle: Callable[[FakeCluster, Producer], Awaitable[None]]
) -> None:
    loop = asyncio.get_running_loop()
    producer_sends.clear()
    async with one_queue() as (cluster, producer):
        await obstacle(cluster, producer)
        begun = loop.time()
        with pytest.raises(LockstepError) as raised:
            async with asyncio.timeout(10 * TIMEOUT_MS / 1_000):  # a send without an end fails this test and does not hang it
                await WAYS[way](producer)
        took_ms = (loop.time() - begun) * 1_000
        assert took_ms <= TIMEOUT_MS + LATE_MS
        assert took_ms >= TIMEOUT_MS - 110, "a delayed send may end when no further try fits"
        if "delayed" not in way:  # tried again by itself, without a sequence
            assert outcome_of(raised.value) is Outcome.NOT_STORED
        for send in producer_sends:
            send.cancel()
        await asyncio.wait(producer_sends or [asyncio.ensure_future(asyncio.sleep(0))])
        producer._limit.count = producer._limit.byte_count = 0  # cancelled sends that were written stay in flight until their own deadlines


@asynccontextmanager
async def broker_down(count_max: int = 100) -> AsyncIterator[Producer]:
    config = ProducerConfig(send_timeout_ms=3_000, keyed_send_timeout_ms=3_000, in_flight_count_max=count_max)
    async with fake_cluster("a", topics={"t": 4}) as cluster, Producer("g", nameserver=cluster.nameserver, **asdict(config)) as producer:
        await producer.send(message())
        await stop_and_wait_for_link_down(cluster.brokers["a"], producer)
        yield producer


async def flood(producer: Producer, seconds: float, per_second: int, keys: int = 0) -> list[tuple[float, BaseException]]:
    """Send at this rate. Return for each send its duration (s) and its error."""
    loop = asyncio.get_running_loop()

    async def one(number: int) -> tuple[float, BaseException]:
        begun = loop.time()
        try:
            await producer.send(message(sharding_key=str(number % keys) if keys else None))
        except SendError as error:
            return loop.time() - begun, error
        raise AssertionError("the only broker is down")

    sending = []
    for tick in range(round(seconds * 20)):
        sending += [asyncio.ensure_future(one(tick * per_second // 20 + number)) for number in range(per_second // 20)]
        await asyncio.sleep(0.05)
    return await asyncio.gather(*sending)


async def test_each_of_many_sends_fails_at_its_own_deadline_as_not_stored_if_the_only_broker_is_down() -> None:
    async with broker_down() as producer:
        ended = await flood(producer, 12, 400)
        assert len(ended) == 4_800
        assert all(2.99 <= took <= 3.06 for took, _ in ended)
        assert {type(error) for _, error in ended} == {SendTimeoutError}
        assert {outcome_of(error) for _, error in ended} == {Outcome.NOT_STORED}
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_each_of_many_keyed_sends_ends_by_its_deadline_or_with_an_earlier_send_of_its_key() -> None:
    async with broker_down() as producer:
        ended = await flood(producer, 9, 400, keys=40)
        assert all(took <= 3.06 for took, _ in ended)
        assert {type(error) for _, error in ended} == {QueueUnavailableError, PrecedingSendError}
        assert {outcome_of(error) for _, error in ended} == {Outcome.NOT_STORED}
        assert all(took >= 2.99 for took, error in ended if isinstance(error, QueueUnavailableError))
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


@pytest.mark.parametrize("keys", [0, 40])
async def test_cost_of_many_expiring_sends_is_linear(keys: int) -> None:
    async def steps(per_second: int) -> int:
        async with broker_down(count_max=per_second) as producer:
            with Steps("/client/producer/") as counted:
                await flood(producer, 5, per_second, keys * per_second // 100)
            return counted.count

    assert await steps(400) <= 5 * await steps(100)


async def test_expired_sends_of_a_queue_fail_with_a_limit_per_run(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[int] = []
    fail = QueueMachine._fail

    def counted(self: QueueMachine, sends: list[PendingSend], *how: object, **more: object) -> None:
        failed.append(len(sends))
        fail(self, sends, *how, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(QueueMachine, "_fail", counted)
    async with broker_down(count_max=10_000) as producer:
        sends = [asyncio.ensure_future(producer.send(message(), queue=QUEUE)) for _ in range(1_000)]
        unkeyed = [asyncio.ensure_future(producer.send(message())) for _ in range(4_000)]
        await asyncio.gather(*sends, *unkeyed, return_exceptions=True)
    assert sum(failed) >= 4_000
    assert max(failed) <= queue_machine.SENDS_PER_RUN


async def test_keyed_send_that_expires_at_the_in_flight_limit_fails_only_later_sends_of_its_key() -> None:
    async with one_queue() as (cluster, producer):
        held: list[Callable[[], None]] = []
        cluster.brokers["a"].script.extend([respond_later(held), respond_later(held)])
        first = [asyncio.ensure_future(producer.send(message(str(n), sharding_key=f"first {n}"))) for n in range(2)]
        await until(lambda: len(held) == 1)
        late = asyncio.ensure_future(producer.send(message("late", sharding_key="k"), timeout_ms=100))
        behind = asyncio.ensure_future(producer.send(message("behind", sharding_key="k")))
        other = asyncio.ensure_future(producer.send(message("other", sharding_key="j")))
        ended = await asyncio.gather(late, behind, return_exceptions=True)
        assert [type(error) for error in ended] == [QueueUnavailableError, PrecedingSendError]
        assert "in-flight limit" in str(ended[0])
        held[0]()
        await until(lambda: len(held) == 2)
        held[1]()
        await asyncio.gather(*first, other)
        assert b"late" not in cluster.brokers["a"].stored
        assert b"behind" not in cluster.brokers["a"].stored


async def test_expired_batch_of_several_frames_reports_stored_unknown_and_unsent_messages() -> None:
    config = ProducerConfig(in_flight_count_max=2, batch_count_max=2, attempt_timeout_ms=20_000, send_timeout_ms=300)
    async with fake_cluster("a", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send(message())
        broker = cluster.brokers["a"]
        broker.script.extend([type(broker).take, *[ignore] * 100])  # the first frame is stored, the second one gets no response
        with pytest.raises(BatchSendError) as raised:
            await producer.send_batch([message(str(n)) for n in range(6)])
        results = raised.value.results
        assert [isinstance(result, SendTimeoutError) for result in results] == [False, False, True, True, True, True]
        assert [result.outcome for result in results[2:]] == [Outcome.UNKNOWN] * 2 + [Outcome.NOT_STORED] * 2  # type: ignore[union-attr]


async def test_frame_of_a_given_id_that_expires_at_the_in_flight_limit_ends_its_queue() -> None:
    """No later send may take its sequence."""
    async with (
        fake_cluster("a", topics={"t": 1}) as cluster,
        Producer("g", nameserver=cluster.nameserver, given_id=GivenId("0" * 32), in_flight_count_max=1) as producer,
    ):
        first = asyncio.ensure_future(producer.send_records(QUEUE, RECORD, [len(RECORD)]))
        respond = await hold_frame(cluster.brokers["a"])
        with pytest.raises(QueueUnavailableError, match="in-flight limit"):
            await producer.send_records(QUEUE, RECORD, [len(RECORD)], timeout_ms=100)
        respond()
        await first
        with pytest.raises(QueueUnavailableError, match="begin again"):
            await producer.send_records(QUEUE, RECORD, [len(RECORD)])


@pytest.mark.parametrize("timeout_ms", [300, 600])
async def test_frame_of_a_given_id_that_fails_unsent_ends_its_queue(timeout_ms: int) -> None:
    """It expires while another frame is in flight, or has no time left when that frame's response arrives."""
    config = asdict(ProducerConfig(attempt_timeout_ms=30_000))
    async with (
        fake_cluster("a", topics={"t": 1}) as cluster,
        Producer("g", nameserver=cluster.nameserver, given_id=GivenId("0" * 32), **config) as producer,
    ):
        first = asyncio.ensure_future(producer.send_records(QUEUE, RECORD, [len(RECORD)]))
        respond = await hold_frame(cluster.brokers["a"])
        late = asyncio.ensure_future(producer.send_records(QUEUE, RECORD, [len(RECORD)], timeout_ms=timeout_ms))
        await asyncio.sleep(0.4)
        respond()
        await first
        with pytest.raises(QueueUnavailableError):
            await late
        with pytest.raises(QueueUnavailableError, match="begin again"):
            await producer.send_records(QUEUE, RECORD, [len(RECORD)])


async def test_close_fails_a_send_that_waits_for_its_route() -> None:
    async with fake_cluster("a", topics={"t": 1}) as cluster:
        producer = Producer("g", nameserver=cluster.nameserver, send_timeout_ms=60_000)
        await producer.start()
        cluster.ready = False
        sending = asyncio.ensure_future(producer.send(Message("t", b"x")))
        await asyncio.sleep(1)
        begun = asyncio.get_running_loop().time()
        await producer.close()
        with pytest.raises(StateError, match="closed"):
            await sending
        assert asyncio.get_running_loop().time() - begun < 1


async def test_first_send_to_a_topic_outlives_a_restart_of_the_nameserver(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders")
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await cluster.kill("nameserver-1")
        sending = asyncio.create_task(producer.send(Message("orders", b"1"), timeout_ms=20_000))
        await asyncio.sleep(5)
        assert not sending.done()
        await cluster.restart("nameserver-1")
        assert (await sending).queue.topic == "orders"


async def test_first_send_to_a_topic_without_a_nameserver_is_not_stored_and_names_it(lockstep_cluster: TestCluster) -> None:
    cluster = lockstep_cluster
    await cluster.create_topic("orders")
    async with Producer("shop", nameserver=cluster.nameserver) as producer:
        await cluster.kill("nameserver-1")
        began = cluster.now
        with pytest.raises(SendTimeoutError, match=rf"no nameserver responds: {cluster.nameserver}: connection refused") as caught:
            await producer.send(Message("orders", b"1"), timeout_ms=3_000)
        assert caught.value.outcome is Outcome.NOT_STORED
        assert 3 <= cluster.now - began < 3.1

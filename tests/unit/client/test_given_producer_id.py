"""A producer with a given id: frames keep their records, resent frames are stored once, and a failure ends the queue."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockstep.client import ConfigError, GivenId, LocalProtocolError, MessageQueue, Producer, QueueUnavailableError, SendResult, StateError
from lockstep.protocol.errors import NonDeterministicRetryError, OutOfSequenceError, StaleEpochError, SystemBusyError
from lockstep.protocol.messages.record import encode_record
from support.fake_broker import (
    FakeBroker,
    fake_cluster,
    ignore,
    make_layout,
    refuse,
    respond_later,
    store_and_disconnect,
    store_without_response,
)
from support.loops import turns, until

JOB = GivenId("0123456789abcdef" * 2, partition=3, epoch=7)
QUEUE = MessageQueue("t", "a", 1)


def frame(*bodies: bytes) -> tuple[bytes, list[int]]:
    records = [encode_record(b"t", QUEUE.queue_id, body, b"", born_ms=5) for body in bodies]
    return b"".join(records), [len(record) for record in records]


@asynccontextmanager
async def a_job(*, attempt_timeout_ms: int = 60_000) -> AsyncIterator[tuple[FakeBroker, Producer]]:
    async with (
        fake_cluster("a", topics={"t": 2}) as cluster,
        Producer(
            "job", nameserver=cluster.nameserver, given_id=JOB, keyed_send_timeout_ms=60_000, attempt_timeout_ms=attempt_timeout_ms
        ) as producer,
    ):
        yield cluster.brokers["a"], producer


async def test_frames_of_a_given_id_keep_their_records_and_sequences() -> None:
    async with a_job() as (broker, producer):
        results = await asyncio.gather(*(producer.send_records(QUEUE, *frame(*bodies)) for bodies in ((b"1", b"2"), (b"3",), (b"4",))))
        assert [one.bodies for one in broker.sends] == [[b"1", b"2"], [b"3"], [b"4"]]
        assert [one.place for one in broker.sends] == [(7, 0), (7, 2), (7, 3)]
        assert {(one.header.producer_id, one.header.partition, one.header.given) for one in broker.sends} == {(JOB.producer_id, 3, True)}
        assert [result.queue_offset for result in results] == [0, 2, 3]


@pytest.mark.parametrize("trouble", [store_without_response, ignore, store_and_disconnect, refuse(SystemBusyError("later"))])
async def test_unacknowledged_frame_is_resent_unchanged_and_stored_once(trouble: object) -> None:
    async with a_job(attempt_timeout_ms=40) as (broker, producer):
        broker.script.append(trouble)  # type: ignore[arg-type]
        await producer.send_records(QUEUE, *frame(b"1"))
        assert len({one.body for one in broker.sends}) == 1
        assert broker.stored == [b"1"]


async def test_restarted_job_with_the_same_given_id_stores_its_frames_once() -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        for _ in range(2):
            async with Producer("job", nameserver=cluster.nameserver, given_id=JOB) as producer:
                await producer.send_records(QUEUE, *frame(b"1"))
        assert cluster.brokers["a"].stored == [b"1"]


@pytest.mark.parametrize("refusal", [OutOfSequenceError("a suffix was lost"), NonDeterministicRetryError("other bytes")])
async def test_refused_frame_of_a_given_id_fails_its_queue_without_a_new_epoch(
    refusal: OutOfSequenceError | NonDeterministicRetryError,
) -> None:
    async with a_job() as (broker, producer):
        broker.script.append(refuse(refusal))
        failed, behind = await asyncio.gather(
            producer.send_records(QUEUE, *frame(b"1")), producer.send_records(QUEUE, *frame(b"2")), return_exceptions=True
        )
        assert isinstance(failed, type(refusal))
        assert isinstance(behind, Exception)
        with pytest.raises(QueueUnavailableError, match="has failed here: begin again from its first") as later:
            await producer.send_records(QUEUE, *frame(b"3"))
        assert isinstance(later.value.__cause__, StateError)
        assert [one.bodies for one in broker.sends] == [[b"1"]]


async def test_sequence_of_a_cancelled_frame_of_a_given_id_is_not_reused() -> None:
    held: list[Callable[[], None]] = []
    async with a_job() as (broker, producer):
        broker.script.append(respond_later(held))
        async with asyncio.TaskGroup() as group:
            sends = [group.create_task(refused(producer.send_records(QUEUE, *frame(body)))) for body in (b"1", b"2", b"3")]
            await until(lambda: held)
            sends[1].cancel()
            await turns(3)
            held[0]()
        assert broker.stored == [b"1"]
        assert isinstance(sends[2].result(), QueueUnavailableError)


async def test_frame_with_an_epoch_begins_a_stream_also_after_one_that_failed() -> None:
    async with a_job() as (broker, producer):
        await producer.send_records(QUEUE, *frame(b"1"))
        await producer.send_records(QUEUE, *frame(b"2"), epoch=8)
        broker.script.append(refuse(NonDeterministicRetryError("other bytes")))
        with pytest.raises(NonDeterministicRetryError):
            await producer.send_records(QUEUE, *frame(b"3"), epoch=9)
        await producer.send_records(QUEUE, *frame(b"4", b"5"), epoch=10)
        await producer.send_records(QUEUE, *frame(b"6"))
        assert [one.place for one in broker.sends] == [(7, 0), (8, 0), (9, 0), (10, 0), (10, 2)]
        assert broker.stored == [b"1", b"2", b"4", b"5", b"6"]


async def test_frame_of_an_epoch_is_stored_once_whichever_producer_repeats_it() -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        for _ in range(2):
            async with Producer("job", nameserver=cluster.nameserver, given_id=JOB) as producer:
                for _ in range(2):
                    await producer.send_records(QUEUE, *frame(b"1"), epoch=8)
        async with Producer("job", nameserver=cluster.nameserver, given_id=JOB) as producer:
            await producer.send_records(QUEUE, *frame(b"2"), epoch=9)
            with pytest.raises(StaleEpochError):
                await producer.send_records(QUEUE, *frame(b"1"), epoch=8)
        assert cluster.brokers["a"].stored == [b"1", b"2"]
        assert len({one.body for one in cluster.brokers["a"].sends[:4]}) == 1


async def test_broker_is_asked_for_a_frame_with_an_epoch_whose_queue_the_layout_has_lost() -> None:
    """It may have stored the frame before the queue was closed."""
    async with fake_cluster("a", topics={"t": 2}) as cluster:
        async with Producer("job", nameserver=cluster.nameserver, given_id=JOB) as producer:
            await producer.send_records(QUEUE, *frame(b"1"), epoch=8)
        cluster.put(make_layout("t", "a", queues=1, counter=2))
        async with Producer("job", nameserver=cluster.nameserver, given_id=JOB) as producer:
            assert (await producer.layout("t")).write_queues == (MessageQueue("t", "a", 0),)
            result = await producer.send_records(QUEUE, *frame(b"1"), epoch=8)
            assert (result.queue, result.queue_offset) == (QUEUE, 0)
            with pytest.raises(LocalProtocolError, match="is not one of the 1 writable queues"):
                await producer.send_records(QUEUE, *frame(b"2"))
        assert cluster.brokers["a"].stored == [b"1"]


async def test_epoch_needs_a_given_id_and_the_end_of_the_frame_before() -> None:
    held: list[Callable[[], None]] = []
    async with a_job() as (broker, producer):
        with pytest.raises(ConfigError, match="epoch -1"):
            await producer.send_records(QUEUE, *frame(b"1"), epoch=-1)
        broker.script.append(respond_later(held))
        async with asyncio.TaskGroup() as group:
            first = group.create_task(producer.send_records(QUEUE, *frame(b"1"), epoch=8))
            await until(lambda: held)
            with pytest.raises(StateError, match="begin epoch 9 when its send has ended"):
                await producer.send_records(QUEUE, *frame(b"2"), epoch=9)
            held[0]()
        assert first.result().queue_offset == 0
        assert producer.in_flight_count == 0
        async with Producer("job", client=producer._client) as other:
            with pytest.raises(StateError, match="has no given_id, and epoch=8 is given"):
                await other.send_records(QUEUE, *frame(b"1"), epoch=8)


async def refused(send: Coroutine[Any, Any, SendResult]) -> SendResult | QueueUnavailableError:
    try:
        return await send
    except QueueUnavailableError as error:
        return error

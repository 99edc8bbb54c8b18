"""Lost responses: which sends are repeated, which move to another broker, and how they are counted."""

import asyncio
from collections.abc import Callable

import pytest

from lockstep.client import MessageQueue, Outcome, QueueUnavailableError, SendResult, SendStatus, SendTimeoutError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines import backoff
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.errors import OutOfSequenceError, ServiceNotAvailableError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.send import SendRecordsReply
from support.fake_broker import (
    FakeBroker,
    Sent,
    abort_connection,
    fake_cluster,
    ignore,
    refuse,
    store_and_disconnect,
    store_without_response,
)
from support.loops import until
from support.producing import held_send, ignored, message, one_queue, producing, send, sends, stop_and_wait_for_link_down

pytestmark = pytest.mark.simulated


@pytest.mark.parametrize("mishap", [ignore, store_without_response, store_and_disconnect, abort_connection])
@pytest.mark.parametrize("key", [None, "k"])
async def test_frame_without_response_is_resent_unchanged_and_stored_once(mishap: Callable[..., None], key: str | None) -> None:
    async with one_queue() as (broker, producer):
        broker.script.append(mishap)
        result = await producer.send(message("once", sharding_key=key))
        assert result.queue_offset == 1
        assert broker.stored == [b"first", b"once"]
        first, repeat = broker.sends[1], broker.sends[2]
        assert repeat.body == first.body
        assert repeat.header == first.header
        assert producer.possible_duplicates == 0


async def test_late_response_to_an_earlier_attempt_completes_the_frame() -> None:
    async with one_queue() as (broker, producer):
        sending, respond = await held_send(broker, producer, "slow", "k")
        await ignored(broker, sending)
        respond()
        assert (await sending).queue_offset == 1
        broker.script.clear()
        assert (await producer.send(message("next"))).queue_offset == 2


@pytest.mark.parametrize("mishap", [store_and_disconnect, abort_connection])
async def test_lost_connection_resends_the_frame_before_the_attempt_timeout(mishap: Callable[..., None]) -> None:
    async with one_queue(ProducerConfig(attempt_timeout_ms=20_000, keyed_send_timeout_ms=25_000)) as (broker, producer):
        broker.script.append(mishap)
        async with asyncio.timeout(10):
            assert (await producer.send(message("once", sharding_key="k"))).queue_offset == 1


async def test_unkeyed_send_written_to_a_killed_broker_moves_at_half_its_deadline_as_a_possible_duplicate() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send_batch([message("warm")])
        await until(lambda: all(broker.heartbeats for broker in cluster.brokers.values()))
        dying = cluster.brokers["a"]
        stopping: list[asyncio.Future[None]] = []

        def die(broker: FakeBroker, seen: Sent) -> None:
            broker.store_frame(seen)
            seen.endpoint.abort("killed")
            stopping.append(asyncio.ensure_future(broker.stop()))

        dying.script.append(die)
        results = await sends(producer, ["1", "2"])
        assert {result.queue.broker_name for result in results if isinstance(result, SendResult)} == {"b"}
        assert len(results) == 2
        assert producer.possible_duplicates == 1
        await asyncio.gather(*stopping)


async def test_unkeyed_send_without_response_moves_at_half_its_deadline_as_a_possible_duplicate() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster) as producer:
        silent, other = cluster.brokers["a"], cluster.brokers["b"]
        await producer.send_batch([message("warm")])
        await until(lambda: len(silent.heartbeats) + len(other.heartbeats) == 2)
        while not silent.sends:
            await producer.send(message("warm"))
        silent.sends.clear()
        silent.script.extend([ignore] * 50)
        results = await sends(producer, ["1", "2"])
        assert [result.queue.broker_name for result in results if isinstance(result, SendResult)] == ["b", "b"]
        assert len(silent.sends) > 1, "the same queue is tried again first"
        assert {one.body for one in silent.sends} == {silent.sends[0].body}
        assert producer.possible_duplicates == len(silent.sends[0].bodies) == 1
        (written,) = silent.sends[0].messages
        moved = {copy.body: copy.message_id for sent in other.sends for copy in sent.messages}
        assert moved[written.body] == written.message_id, "consumers recognise a duplicate by its id"
        silent.script.clear()
        assert {(await producer.send(message("later"))).queue.broker_name for _ in range(4)} == {"b"}, "nor do later ones go there"
        await producer.send(message("named"), queue=MessageQueue("t", "a", 0))
        assert silent.sends[-1].place == (1, 0), "whatever of the abandoned frame still arrives is below the new epoch"
        assert {(await producer.send(message("later"))).queue.broker_name for _ in range(4)} == {"a", "b"}, "it responds again"


async def test_moved_unkeyed_send_that_may_be_stored_never_fails_as_not_stored() -> None:
    config = ProducerConfig(send_timeout_ms=300, attempt_timeout_ms=40)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, config=config) as producer:
        silent, other = cluster.brokers["a"], cluster.brokers["b"]
        await producer.send_batch([message("warm")])
        await until(lambda: len(silent.heartbeats) + len(other.heartbeats) == 2)
        while not silent.sends:
            await producer.send(message("warm"))
        silent.script.extend([ignore] * 50)
        other.script.extend([FakeBroker.take, *[refuse(ServiceNotAvailableError("full"))] * 50])
        ends = await sends(producer, ["1", "2"])
        assert producer.possible_duplicates == 1, "one of them was written at a, and moved to b"
        (failed,) = [end for end in ends if not isinstance(end, SendResult)]
        assert isinstance(failed, SendTimeoutError)
        assert failed.outcome is Outcome.UNKNOWN


async def test_refusing_queue_gets_unkeyed_sends_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "STALL_MS", 20)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await sends(producer, ["1", "2"])
        broker = cluster.brokers["a"]
        broker.script.append(refuse(ServiceNotAvailableError("full")))
        await sends(producer, ["3", "4", "5"])
        before = len(broker.sends)
        async with asyncio.timeout(10):
            while len(broker.sends) == before:
                await producer.send(message("again"))


async def test_unwritten_unkeyed_send_moves_immediately_and_is_not_a_possible_duplicate() -> None:
    async with fake_cluster("a", "b", topics={"t": 2}) as cluster, producing(cluster) as producer:
        await sends(producer, [str(n) for n in range(8)])
        await stop_and_wait_for_link_down(cluster.brokers["a"], producer)
        results = await sends(producer, [str(n) for n in range(8)])
        assert {result.queue.broker_name for result in results if isinstance(result, SendResult)} == {"b"}
        assert producer.possible_duplicates == 0


async def test_keyed_send_never_moves_and_its_error_names_the_queue() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=200, attempt_timeout_ms=40)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        result = await producer.send(message("first", sharding_key="k"))
        owner = cluster.brokers[result.queue.broker_name]
        owner.script.extend([ignore] * 50)
        with pytest.raises(QueueUnavailableError, match="in an unknown state") as caught:
            await producer.send(message("second", sharding_key="k"))
        assert (caught.value.queue, caught.value.outcome) == (result.queue, Outcome.UNKNOWN)
        assert sum(len(broker.stored) for broker in cluster.brokers.values()) == 1
        owner.script.clear()
        assert (await producer.send(message("third", sharding_key="k"))).queue_offset == 1
        assert owner.sends[-1].place == (1, 0)


async def test_keyed_send_to_a_disconnected_broker_fails_as_not_stored() -> None:
    config = ProducerConfig(keyed_send_timeout_ms=150)
    async with one_queue(config) as (broker, producer):
        await stop_and_wait_for_link_down(broker, producer)
        with pytest.raises(QueueUnavailableError, match=r"not connected.*not stored") as caught:
            await producer.send(message("second", sharding_key="k"))
        assert caught.value.outcome is Outcome.NOT_STORED


async def test_keyed_send_waits_until_its_broker_returns_on_another_port() -> None:
    async with one_queue(ProducerConfig()) as (broker, producer):
        await broker.stop()
        sending = send(producer, "second", "k")
        broker.term += 1
        await broker.start()
        assert (await sending).queue_offset == 1
        assert [body.connection for body in broker.heartbeats] == [1, 2]
        assert len({body.session for body in broker.heartbeats}) == 1


async def test_unkeyed_send_without_any_broker_fails_at_its_deadline() -> None:
    config = ProducerConfig(send_timeout_ms=80)
    async with one_queue(config) as (broker, producer):
        await stop_and_wait_for_link_down(broker, producer)
        with pytest.raises(SendTimeoutError, match="topic t: not acknowledged") as caught:
            await producer.send(message())
        assert caught.value.outcome is Outcome.NOT_STORED


async def test_lost_suffix_starts_a_new_epoch_with_the_same_records() -> None:
    async with one_queue() as (broker, producer):
        await producer.send(message("lost"))
        broker.erase_all()
        result = await producer.send(message("kept", sharding_key="k"))
        assert result.queue_offset == 0
        assert broker.stored == [b"kept"]
        assert [one.place for one in broker.sends[-2:]] == [(0, 2), (1, 0)]
        assert [one.bodies for one in broker.sends[-2:]] == [[b"kept"], [b"kept"]]


async def test_permanent_out_of_sequence_fails_at_the_deadline() -> None:
    config = ProducerConfig(send_timeout_ms=150)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([refuse(OutOfSequenceError("always"), next_sequence=0)] * 500)
        with pytest.raises(OutOfSequenceError):
            await producer.send(message())
        assert len(broker.sends) < 50, "the pause grows with each response"


async def test_duplicate_response_counts_as_stored() -> None:
    async with one_queue() as (broker, producer):

        def duplicate(broker: FakeBroker, seen: Sent) -> None:
            seen.endpoint.send(seen.command.reply(ResponseCode.DUPLICATE, None, to_plain(SendRecordsReply(-1, -1, 0))))

        broker.script.append(duplicate)
        result = await producer.send(message())
        assert (result.status, result.queue_offset, result.offset_message_id) == (SendStatus.SEND_OK, -1, "")

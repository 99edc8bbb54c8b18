"""Refusals by a broker, and the sends that wait after a refused one."""

import asyncio
from dataclasses import replace

import pytest

from lockstep.client import BatchSendError, MessageQueue, NotDurableError, PrecedingSendError, QueueUnavailableError, SendResult, SendStatus
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.routing import Route, queue_of_key
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.errors import MessageIllegalError, NoPermissionError, ServiceNotAvailableError, SystemBusyError
from lockstep.protocol.fields import to_plain
from support.fake_broker import FakeBroker, Sent, fake_cluster, ignore, refuse
from support.loops import until
from support.producing import IMPATIENT, held_send, ignored, keyed, message, one_queue, producing, send, sends

pytestmark = pytest.mark.simulated


async def test_refused_unkeyed_send_moves_to_another_broker_and_is_not_a_possible_duplicate() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, ProducerConfig()) as producer:
        await sends(producer, ["1", "2"])
        cluster.brokers["a"].script.extend([refuse(ServiceNotAvailableError("disk"))] * 3)
        results = await sends(producer, ["3", "4"])
        assert all(isinstance(result, SendResult) for result in results)
        assert producer.possible_duplicates == 0


async def test_unkeyed_send_raises_a_lasting_refusal() -> None:
    config = ProducerConfig(send_timeout_ms=120)
    async with one_queue(config) as (broker, producer):
        broker.script.extend([refuse(ServiceNotAvailableError("5 bytes free, watermark 10"))] * 100)
        with pytest.raises(ServiceNotAvailableError, match="5 bytes free"):
            await producer.send(message())
        assert len(broker.sends) < 10


async def test_keyed_send_retries_the_same_frame_at_a_busy_broker() -> None:
    async with one_queue() as (broker, producer):
        broker.script.extend([refuse(SystemBusyError("later"))] * 2)
        result = await producer.send(message("k", sharding_key="k"))
        assert result.queue_offset == 1
        assert len({one.body for one in broker.sends[1:]}) == 1


async def test_refused_keyed_send_does_not_move_to_another_broker() -> None:
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster) as producer:
        await producer.send_batch(keyed("01234567", "01234567"))
        result = await producer.send(message("first", sharding_key="k"))
        owner = cluster.brokers[result.queue.broker_name]
        owner.script.extend([refuse(SystemBusyError("later"))] * 2)
        again = await producer.send(message("second", sharding_key="k"))
        assert (again.queue, again.queue_offset) == (result.queue, result.queue_offset + 1)


async def test_permanent_refusal_is_raised_immediately() -> None:
    async with one_queue() as (broker, producer):
        broker.script.append(refuse(NoPermissionError("closed")))
        with pytest.raises(NoPermissionError, match="closed"):
            await producer.send(message("refused"))
        assert (await producer.send(message("next"))).queue_offset == 1
        assert broker.sends[-1].place == (0, 1), "what is certainly not stored gives its place to the next"


def refuse_bad(broker: FakeBroker, seen: Sent) -> None:
    refuse(MessageIllegalError("bad"))(broker, seen) if b"bad" in seen.bodies else broker.take(seen)


async def test_illegal_message_does_not_fail_the_other_messages_of_its_frame() -> None:
    async with one_queue() as (broker, producer):
        broker.script.extend([refuse_bad] * 10)
        results = await sends(producer, ["1", "bad", "2"])
        assert isinstance(results[1], MessageIllegalError)
        assert isinstance(results[0], SendResult)
        assert isinstance(results[2], SendResult)
        assert broker.stored == [b"first", b"1", b"2"]


async def test_illegal_message_of_a_batch_fails_only_later_messages_of_its_key() -> None:
    async with one_queue() as (broker, producer):
        broker.script.extend([refuse_bad] * 10)
        bodies = ["1", "2", "bad", "3", "4"]
        with pytest.raises(BatchSendError) as caught:
            await producer.send_batch(keyed(bodies, "abcca"))
        stored, failed = SendResult, MessageIllegalError
        assert [type(result) for result in caught.value.results] == [stored, stored, failed, failed, stored]
        assert broker.stored == [b"first", b"1", b"4", b"2"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_sends_after_a_failed_send_of_their_key_fail_unsent_and_other_keys_continue() -> None:
    async with one_queue(IMPATIENT) as (broker, producer):
        first = await ignored(broker, send(producer, "1", "k"))
        behind, other = send(producer, "2", "k", 5_000), send(producer, "3", "other", 5_000)
        with pytest.raises(QueueUnavailableError):
            await first
        broker.script.clear()
        with pytest.raises(PrecedingSendError, match='sharding key "k"'):
            await behind
        assert (await other).queue_offset == 1
        assert broker.stored == [b"first", b"3"]


async def test_send_waiting_for_the_in_flight_limit_after_a_failed_send_of_its_key_fails() -> None:
    async with one_queue(replace(IMPATIENT, in_flight_count_max=1)) as (broker, producer):
        first = await ignored(broker, send(producer, "1", "k"))
        behind, other = send(producer, "2", "k"), send(producer, "3", "other", 5_000)
        await asyncio.wait([first])
        broker.script.clear()
        results = await asyncio.gather(first, behind, other, return_exceptions=True)
        assert [type(result) for result in results] == [QueueUnavailableError, PrecedingSendError, SendResult]
        assert broker.stored == [b"first", b"3"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_messages_of_a_batch_for_one_queue_are_one_pending_send_in_call_order() -> None:
    async with one_queue() as (broker, producer):
        first, respond = await held_send(broker, producer, "0", "k1")
        one, batch = send(producer, "1", "k2"), asyncio.ensure_future(producer.send_batch(keyed("2345678", "abcabck")))
        last = send(producer, "9", "b")
        await asyncio.sleep(0)
        sender = producer._topics.open_topics["t"].machine_for(Route(("k",), queue_of_key), 0)
        assert [pending.count for pending in sender._buffer.keyed] == [1, 7, 1]
        respond()
        await asyncio.gather(first, one, batch, last)
        assert broker.sends[2].bodies == [b"%d" % n for n in range(1, 10)]
        assert [one.sharding_key for one in broker.sends[2].messages] == ["k2", *"abcabck", "b"]


async def test_failed_batch_fails_later_sends_of_all_its_keys() -> None:
    async with one_queue(IMPATIENT) as (broker, producer):
        first = await ignored(broker, asyncio.ensure_future(producer.send_batch(keyed("abc", "abc"))))
        behind = [send(producer, key, key, 5_000) for key in "abcd"]
        with pytest.raises(BatchSendError) as caught:
            await first
        assert [type(result) for result in caught.value.results] == [QueueUnavailableError] * 3
        broker.script.clear()
        results = await asyncio.gather(*behind, return_exceptions=True)
        assert [type(result) for result in results] == [PrecedingSendError] * 3 + [SendResult]
        assert [result.key for result in results if isinstance(result, PrecedingSendError)] == ["a", "b", "c"]
        assert broker.stored == [b"first", b"d"]


async def test_failed_send_fails_only_the_messages_of_its_key_in_a_later_batch() -> None:
    async with one_queue(IMPATIENT) as (broker, producer):
        first = await ignored(broker, send(producer, "0", "b"))
        behind = asyncio.ensure_future(producer.send_batch(keyed("12345", "abcab"), timeout_ms=5_000))
        with pytest.raises(QueueUnavailableError):
            await first
        broker.script.clear()
        with pytest.raises(BatchSendError, match='sharding key "b"') as caught:
            await behind
        stored, failed = SendResult, PrecedingSendError
        assert [type(result) for result in caught.value.results] == [stored, failed, stored, stored, failed]
        assert broker.stored == [b"first", b"1", b"3", b"4"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_batch_waiting_for_the_in_flight_limit_after_a_failed_key_fails_whole_with_later_sends_of_its_keys() -> None:
    async with one_queue(replace(IMPATIENT, in_flight_count_max=1)) as (broker, producer):
        first = await ignored(broker, send(producer, "1", "k"))
        behind = asyncio.ensure_future(producer.send_batch(keyed("23", "jk")))
        second, other = send(producer, "4", "j"), send(producer, "5", "other", 5_000)
        await asyncio.wait([first])
        broker.script.clear()
        results = await asyncio.gather(first, behind, second, other, return_exceptions=True)
        assert [type(result) for result in results] == [QueueUnavailableError, BatchSendError, PrecedingSendError, SendResult]
        assert isinstance(results[1], BatchSendError)
        assert [type(result) for result in results[1].results] == [PrecedingSendError] * 2
        assert broker.stored == [b"first", b"5"]
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_batch_refused_at_the_in_flight_limit_reports_its_stored_messages() -> None:
    config = replace(IMPATIENT, in_flight_count_max=2, batch_count_max=1)
    async with fake_cluster("a", topics={"t": 2}) as cluster, producing(cluster, config) as producer:
        await producer.send(message("first"), queue=MessageQueue("t", "a", 0))
        broker = cluster.brokers["a"]
        keys = [next(f"k{n}" for n in range(99) if queue_of_key(cluster.layouts["t"], f"k{n}").queue_id == queue) for queue in (0, 1)]
        failing = await ignored(broker, send(producer, "1", keys[0]))
        batch = asyncio.ensure_future(producer.send_batch(keyed("234", [keys[1], keys[0], keys[1]]), timeout_ms=5_000))
        with pytest.raises(QueueUnavailableError):
            await failing
        broker.script.clear()
        with pytest.raises(BatchSendError) as caught:
            await batch
        assert [type(result) for result in caught.value.results] == [SendResult, PrecedingSendError, PrecedingSendError]
        assert broker.stored == [b"first", b"2"]


async def test_selected_and_explicit_queue_sends_of_a_queue_count_as_one_key() -> None:
    async with one_queue(IMPATIENT) as (broker, producer):
        first = await ignored(broker, asyncio.ensure_future(producer.send(message("1"), selector=lambda queues, _: queues[0])))
        behind = asyncio.ensure_future(producer.send(message("2"), queue=MessageQueue("t", "a", 0), timeout_ms=5_000))
        keyed = send(producer, "3", "k", 5_000)
        await asyncio.wait([first])
        broker.script.clear()
        results = await asyncio.gather(first, behind, keyed, return_exceptions=True)
        assert [type(result) for result in results] == [QueueUnavailableError, PrecedingSendError, SendResult]


async def test_unkeyed_sends_pending_for_a_dead_broker_are_sent_to_one_that_recovers() -> None:
    config = ProducerConfig(attempt_timeout_ms=30)
    async with fake_cluster("a", "b", topics={"t": 1}) as cluster, producing(cluster, config) as producer:
        await producer.send_batch([message("warm")])
        await until(lambda: all(broker.heartbeats for broker in cluster.brokers.values()))
        await cluster.brokers["a"].stop()
        other = cluster.brokers["b"]
        other.script.extend([ignore] * 1_000)
        stuck = asyncio.ensure_future(producer.send(message("stuck"), queue=MessageQueue("t", "b", 0)))
        await until(lambda: sum(b"stuck" in one.bodies for one in other.sends) > 1)
        waiting = [asyncio.ensure_future(producer.send(message(str(n)))) for n in range(10)]
        await asyncio.sleep(0)
        assert producer.in_flight_count == 11
        other.script.clear()
        results = await asyncio.gather(*waiting)
        assert {result.queue.broker_name for result in results} == {"b"}
        assert (await stuck).queue.broker_name == "b"
        assert producer.possible_duplicates == 0


async def test_batch_error_has_the_result_of_each_message() -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster, producing(cluster) as producer:

        def refuse_queue_0(broker: FakeBroker, seen: Sent) -> None:
            refuse(NoPermissionError("queue 0"))(broker, seen) if seen.header.queue_id == 0 else broker.take(seen)

        cluster.brokers["a"].script.extend([refuse_queue_0] * 2)
        keys = [f"k{n}" for n in range(12)]
        with pytest.raises(BatchSendError, match="queue 0") as caught:
            await producer.send_batch(keyed(keys, keys))
        for key, result in zip(keys, caught.value.results, strict=True):
            refused = queue_of_key(cluster.layouts["t"], key).queue_id == 0
            assert isinstance(result, NoPermissionError if refused else SendResult)


async def test_durable_send_raises_not_durable_on_a_flush_timeout() -> None:
    async with one_queue() as (broker, producer):

        def weaker(broker: FakeBroker, seen: Sent) -> None:
            _, reply = broker.store_frame(seen)
            seen.endpoint.send(seen.command.reply(ResponseCode.FLUSH_DISK_TIMEOUT, None, to_plain(reply)))

        broker.script.extend([weaker, weaker])
        assert (await producer.send(message())).status is SendStatus.FLUSH_DISK_TIMEOUT
        with pytest.raises(NotDurableError, match="FLUSH_DISK_TIMEOUT") as missed:
            await producer.send(message(), require="durable")
        assert [(result.status.name, result.queue_offset) for result in missed.value.results] == [("FLUSH_DISK_TIMEOUT", 2)]
        broker.script.append(weaker)
        with pytest.raises(NotDurableError, match="offset 3") as missed:
            await producer.send_batch([message("a"), message("b")], require="durable")
        assert [result.queue_offset for result in missed.value.results] == [3, 4]
        assert (await producer.send(message(), require="durable")).status is SendStatus.SEND_OK


async def test_frame_requires_the_strongest_durability_of_its_sends() -> None:
    async with one_queue() as (broker, producer):
        broker.sends.clear()
        await asyncio.gather(producer.send(message("a")), producer.send(message("b"), require="durable"))
        await producer.send(message("c"))
        await producer.send_batch([message("d"), message("e")], require="durable")
        await producer.send_batch([message("f")])
        await producer.send(message("g"), require="written")
        await asyncio.gather(producer.send(message("h")), producer.send(message("i"), require="written"))
        await asyncio.gather(producer.send(message("j"), require="durable"), producer.send(message("k"), require="written"))
        await producer.send_batch([message("l")], require="written")
        assert [(one.bodies, one.header.durable) for one in broker.sends] == [
            ([b"a", b"b"], True),
            ([b"c"], None),
            ([b"d", b"e"], True),
            ([b"f"], None),
            ([b"g"], False),
            ([b"h", b"i"], None),
            ([b"j", b"k"], True),
            ([b"l"], False),
        ]

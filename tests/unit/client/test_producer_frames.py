"""Records that don't fit a frame or aren't valid are rejected or split before they are written to the connection."""

import asyncio
import random

import pytest

from lockstep.client import LocalProtocolError, Message, MessageQueue
from lockstep.client.producer.config import ProducerConfig
from lockstep.protocol.frame import BODY_BYTES_MAX
from lockstep.protocol.messages.message import encode_message
from lockstep.protocol.messages.record import BODY_LENGTH_AT
from support.fake_broker import fake_cluster
from support.loops import until
from support.producing import message, one_queue, producing

pytestmark = pytest.mark.simulated

QUEUE = MessageQueue("t", "a", 0)
RECORD = encode_message(Message("t", b"x"), 0, "A" * 32, 5)
SIZE = len(RECORD)


@pytest.mark.parametrize(
    ("records", "sizes", "why"),
    [
        (b"", [], "got 0 bytes"),
        (b"x", [1], "1 bytes are left"),
        (RECORD, [], "0 sizes"),
        (RECORD, [SIZE - 1], "1 sizes"),
        (RECORD, [SIZE, 0], "2 sizes"),
        (RECORD * 2, [2 * SIZE], "2 records"),
        (RECORD + b"y", [SIZE + 1], "1 bytes are left"),
        (RECORD[:BODY_LENGTH_AT] + b"\x7f" + RECORD[BODY_LENGTH_AT + 1 :], [SIZE], "do not fit"),
        (RECORD * (17 * 1024 * 1024 // SIZE), [SIZE] * (17 * 1024 * 1024 // SIZE), "what fits one frame"),
    ],
)
async def test_send_records_rejects_invalid_frames_and_remains_usable(records: bytes, sizes: list[int], why: str) -> None:
    async with one_queue() as (_, producer):
        with pytest.raises(LocalProtocolError, match=why):
            await asyncio.wait_for(producer.send_records(QUEUE, records, sizes), timeout=60)
        assert (await producer.send_records(QUEUE, RECORD, [SIZE])).queue_offset == 1
        assert (producer.in_flight_count, producer.in_flight_bytes) == (0, 0)


async def test_oneway_sends_of_one_loop_turn_are_split_at_the_frame_limits() -> None:
    async with fake_cluster("a", topics={"t": 2}) as cluster, producing(cluster, ProducerConfig(batch_count_max=3)) as producer:
        broker = cluster.brokers["a"]
        other = MessageQueue("t", "a", 1)
        for queue in (QUEUE, other):
            await producer.send(message("first"), queue=queue)
        body = random.Random(1).randbytes(BODY_BYTES_MAX)
        large = [producer.send_oneway(Message("t", body), queue=QUEUE) for _ in range(5)]
        small = [producer.send_oneway(message(str(n)), queue=QUEUE) for n in range(7)]
        beside = asyncio.ensure_future(producer.send(message("beside"), queue=other))
        await asyncio.gather(*large, *small)
        assert (await beside).queue_offset == 1
        await until(lambda: sum(len(one.bodies) for one in broker.oneways) == 12)
        assert [len(one.bodies) for one in broker.oneways] == [1, 1, 1, 1, 1, 3, 3, 1]
        assert [body for one in broker.oneways[5:] for body in one.bodies] == [b"%d" % n for n in range(7)]

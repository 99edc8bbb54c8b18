"""Takes over half messages of RocketMQ's broker whose transactions are not decided.

Each is stored in the room of half messages like one that retention has stored again: it names its offset at RocketMQ's broker as its first
one. So END_TRANSACTION finds it by that offset, its producer group is asked about it as of any other, and a start that is repeated finds
which of them it has stored.

RocketMQ's broker stores a half message again before each check, with the offset of the one before in TRAN_PREPARED_QUEUE_OFFSET
(TransactionalMessageServiceImpl.putBackHalfMsgQueue). Only the last one counts, and it has ended if the one before has.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

from lockstep.broker.delivery.home_delivery import store_copy
from lockstep.broker.delivery.message_copy import MessageCopy
from lockstep.broker.rocketmq_store.foreign_config import ForeignConfig
from lockstep.broker.rocketmq_store.foreign_log import ForeignLog
from lockstep.broker.state import BrokerState
from lockstep.broker.store import Store
from lockstep.protocol.errors import LocalProtocolError, RemoteProtocolError
from lockstep.protocol.messages.properties import PGROUP, PRODUCER_CLIENT
from lockstep.protocol.messages.record import RecordView
from lockstep.protocol.names import HALF_TOPIC, check_group
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited

log = get_logger("broker")

PREPARED_OFFSET, CHECK_TIMES = "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"
PER_TURN = 64


def undecided_offsets(log: ForeignLog, config: ForeignConfig) -> list[int]:
    """Return the offsets of half messages that no op message has ended, from the progress of RocketMQ's broker on."""
    done = next((offsets for (_, topic), offsets in config.offsets.items() if topic == HALF_TOPIC), {}).get(0, 0)
    return [offset for offset in log.half_offsets if offset >= done and offset not in log.ended_halves]


async def adopt_halves(store: Store, state: BrokerState, offsets: Sequence[int], ended: Collection[int]) -> int:
    """Store the half messages at these offsets. Return how many wait now. `ended`: offsets of those that have ended.

    One that can't be taken over is logged and left behind. Raises OSError, StoreCorruptError and StoreDiskError.
    """
    if offsets:
        await store.sync()  # reads find what is confirmed
    copies: dict[int, MessageCopy] = {}
    for number, offset in enumerate(offsets):
        if number % PER_TURN == 0:
            await asyncio.sleep(0)
        try:
            copy, before = await _read(store, state, offset)
        except (LocalProtocolError, RemoteProtocolError) as error:
            log_limited(log, "error", "adoption.half_left", offset=offset, error=str(error), then="its message is never delivered")
            continue
        copies.pop(before, None)
        if before not in ended:
            copies[offset] = copy
    carried = state.transactions.carried
    for number, (offset, copy) in enumerate(copies.items()):
        if number % PER_TURN == 0:
            await asyncio.sleep(0)
        if carried.find(offset) == offset:  # else a start that was interrupted has stored it
            carried.add(offset, store_copy(store, copy).queue_offset)
    return len(state.transactions)


async def _read(store: Store, state: BrokerState, offset: int) -> tuple[MessageCopy, int]:
    """Return a half message of RocketMQ's broker as it waits here, and the offset of its copy before; -1 if there is none.

    Raises RemoteProtocolError and LocalProtocolError if it can't be taken over.
    """
    result = await store.read_or_wait(HALF_TOPIC, 0, offset, 1, 1)
    if not result.parts:
        raise RemoteProtocolError("it can't be read")
    record = RecordView(b"".join(result.parts))
    copy = MessageCopy.of(record).as_delivered()
    layout = state.topics.find_layout(copy.topic)
    before, group = copy.properties.get(PREPARED_OFFSET, ""), copy.properties.get(PGROUP, "")
    check_group(group)
    properties = {name: value for name, value in copy.properties.items() if name not in (PREPARED_OFFSET, CHECK_TIMES)}
    sender = group, properties.get(PRODUCER_CLIENT, "")
    half = replace(copy, properties=properties).as_half(0 if layout is None else layout.began, *sender, (record.store_ms, offset))
    return half, int(before) if before.isascii() and before.isdecimal() else -1

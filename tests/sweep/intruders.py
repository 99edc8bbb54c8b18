"""Programs of users who try to get what is not theirs: what their rules forbid, or the client ids, locks and producer ids of others.

All run on one machine, whose requests are no work (wire_recorder.py): a checker looks at what brokers give to them. They try to take
something only while it belongs to another: right after a response to its owner, by the same process of the broker, which forgets owners
when it restarts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from lockstep.protocol.bodies import ConsumerGroup, HeartbeatBody, LockBatchBody, QueueRef, Subscription
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.fields import to_plain
from lockstep.protocol.headers.clients import GroupHeader
from lockstep.protocol.headers.offsets import QueryConsumerOffsetHeader
from lockstep.protocol.headers.pull import SUBSCRIPTION, PullHeader
from lockstep.protocol.headers.send import SendMessageHeader, SendRecordsHeader
from lockstep.protocol.names import retry_topic
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.testing.simulated import BROKER_PORT
from sweep.access import DENIED, INTRUDER, NEAR, OWN_GROUP, RIVAL, TWIN
from sweep.events.access import Answered
from sweep.events.locks import ClassicLocked, SessionBound
from sweep.events.sends import FrameWritten
from sweep.history import E, QueueKey
from sweep.settings import MAILING, TOPIC
from sweep.universe import Main, Universe

TIMEOUT_MS = 3_000
FRESH_S = 0.5
"""How long ago the owner got its last response at most: less than any grace."""
CLASSIC_FRESH_S = 20.0
"""The same for a classic lock, which has a lease of 60 s."""
RECENT = 4_000
"""The number of last events of one kind that are looked through."""
Attempt = Callable[[Endpoint], Awaitable[None]]


def _program(universe: Universe, broker: str, user: str, attempt: Attempt) -> Main:
    """Return a program that connects to a broker as a user, makes its attempt and ends."""

    async def main(stop: asyncio.Event) -> int:
        address = f"{universe.brokers[broker]}:{BROKER_PORT}"
        try:
            endpoint = await connect(Host.current(), address, security=universe.security(user), timeout_ms=TIMEOUT_MS)
            try:
                await attempt(endpoint)
            finally:
                endpoint.abort("done")
                await endpoint.wait_closed()
        except LockstepError as error:
            universe.record_reached("intruder failed", f"{user} at {broker}: {error!r:.120}")
        return 0

    return main


def _last(universe: Universe, kind: type[E], wanted: Callable[[E], bool]) -> E | None:
    return next((event for event in reversed(universe.history.of(kind)[-RECENT:]) if wanted(event)), None)


def _answers_now(universe: Universe, broker: str, t: float, process: int, fresh_s: float) -> bool:
    """Return whether this process of the broker has responded a moment ago, and still runs."""
    running = universe.running(universe.brokers[broker])
    return running is not None and running.number == process and universe.loop.now - t <= fresh_s


# ------------------------------------------------------------------------------------------------------------ what belongs to others


def take_client_id_main(universe: Universe, bound: SessionBound, random: Random) -> Main:
    """Send HEART_BEAT with the client id of another user's session, under its session id or a new one."""
    own = random.random() < 0.5

    async def attempt(endpoint: Endpoint) -> None:
        last = _last(universe, Answered, lambda one: one.connection == bound.connection)
        if last is None or not _answers_now(universe, bound.broker, last.t, last.process, FRESH_S):
            return
        session = f"{random.getrandbits(128):032x}" if own else bound.session
        body = encode_body(HeartbeatBody(bound.client_id, session=session, connection=bound.number + 1))
        universe.record_reached("client id of another user tried", f"{bound.client_id} at {bound.broker}")
        await endpoint.request(RequestCode.HEART_BEAT, None, body, timeout_ms=TIMEOUT_MS)

    return _program(universe, bound.broker, TWIN, attempt)


def take_producer_id_main(universe: Universe, broker: str) -> Main:
    """Send a frame under the id of another user's producer."""

    async def attempt(endpoint: Endpoint) -> None:
        sent = _last(universe, FrameWritten, lambda one: one.queue.broker == broker and one.producer is not None)
        if sent is None:
            return
        claim = f"producer id {sent.producer}"
        known = _last(universe, Answered, lambda one: one.broker == broker and claim in one.claims)
        if known is None or not _answers_now(universe, broker, known.t, known.process, float("inf")):
            return
        partition, epoch, first = sent.sequence
        header = SendRecordsHeader(
            sent.queue.topic,
            sent.queue.queue,
            len(sent.bodies),
            producer_id=sent.producer,
            partition=partition,
            producer_epoch=epoch,
            first_sequence=first,
        )
        universe.record_reached("producer id of another user tried", f"{sent.producer} at {broker}")
        await endpoint.request(RequestCode.SEND_RECORDS, to_plain(header), b"nothing", timeout_ms=TIMEOUT_MS)

    return _program(universe, broker, RIVAL, attempt)


def take_classic_lock_main(universe: Universe, broker: str) -> Main:
    """Lock a queue as the classic client of another user that holds it."""

    async def attempt(endpoint: Endpoint) -> None:
        held = _last(universe, ClassicLocked, lambda one: one.granted and one.queue.broker == broker)
        if held is None or not _answers_now(universe, broker, held.t, held.process, CLASSIC_FRESH_S):
            return
        universe.record_reached("classic lock of another user tried", f"{held.queue} of {held.client_id}")
        body = encode_body(LockBatchBody(held.client_id, held.queue.group, (_ref(held.queue),)))
        await endpoint.request(RequestCode.LOCK_BATCH_MQ, None, body, timeout_ms=TIMEOUT_MS)
        await endpoint.request(RequestCode.UNLOCK_BATCH_MQ, None, body, timeout_ms=TIMEOUT_MS)

    return _program(universe, broker, TWIN, attempt)


def _ref(queue: QueueKey) -> QueueRef:
    return QueueRef(queue.topic, queue.broker, queue.queue)


# ------------------------------------------------------------------------------------------------------------ what rules forbid


def spy_main(universe: Universe, broker: str, random: Random) -> Main:
    """Send several requests as a user whose rules do not allow one of them."""
    user = random.choice([DENIED, NEAR])
    group = random.choice(universe.setting.groups)

    async def attempt(endpoint: Endpoint) -> None:
        universe.record_reached("forbidden requests tried", f"{user} at {broker}")
        for code, header, body in _forbidden(broker, group, random):
            fields = None if header is None else to_plain(header)
            await endpoint.request(code, fields, body, timeout_ms=TIMEOUT_MS)

    return _program(universe, broker, user, attempt)


def _forbidden(broker: str, group: str, random: Random) -> list[tuple[RequestCode, object | None, bytes]]:
    pulled: dict[str, Any] = {"max_msg_nums": 32, "sys_flag": SUBSCRIPTION, "subscription": "*", "expression_type": "TAG"}
    queue, session = QueueKey(group, broker, TOPIC, 0), f"{random.getrandbits(128):032x}"
    member = ConsumerGroup(group, (Subscription(TOPIC),), ordered=True)
    return [
        (RequestCode.PULL_MESSAGE, PullHeader(OWN_GROUP, TOPIC, 0, 0, **pulled), b""),
        (RequestCode.PULL_MESSAGE, PullHeader(group, TOPIC, 0, 0, **pulled), b""),
        (RequestCode.PULL_MESSAGE, PullHeader(OWN_GROUP, retry_topic(MAILING), 0, 0, **pulled), b""),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group), b""),
        (RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(group, TOPIC, 0), b""),
        (RequestCode.SEND_MESSAGE, SendMessageHeader(OWN_GROUP, TOPIC, 0), b"of a spy"),
        (RequestCode.LOCK_BATCH_MQ, None, encode_body(LockBatchBody("spy", group, (_ref(queue),)))),
        (RequestCode.HEART_BEAT, None, encode_body(HeartbeatBody(f"{INTRUDER}@1#spy", (member,), session=session, connection=1))),
    ]

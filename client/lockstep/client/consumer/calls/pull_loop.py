"""Fetches one held queue: long polls one after another, under the grant's epoch. RocketMQ: DefaultMQPushConsumerImpl.pullMessage.

response           effect
FOUND              keep the messages that the subscription matches by string (the broker matched hashes); progress moves past the others
NOT_FOUND          nothing within the poll; messages that the broker filtered count as seen
RETRY_IMMEDIATELY  the same, and there are more messages
OFFSET_MOVED       forward: messages were removed (QueueGap), continue after them; backward: inform the session, the broker fences
STALE_EPOCH        drop the queue and the fetched messages
another refusal    retry after a pause
"""

import asyncio
from functools import partial

from lockstep.client.consumer.calls.grant import Grant
from lockstep.client.consumer.calls.runner import AbstractQueueWorker, Runner
from lockstep.client.consumer.grants.ownership import OwnershipState
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError, TransportError
from lockstep.protocol.fields import from_plain
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND, PullHeader, PullReply
from lockstep.protocol.messages.message import MessageExt, decode_messages
from lockstep.protocol.responses import PULLED, retry_after_ms
from lockstep.runtime.logs.log import get_logger

log = get_logger("client.consumer")

POLL_MS = 15_000
"""How long the broker holds a pull that finds nothing. RocketMQ: brokerSuspendMaxTimeMillis."""
PULL_TIMEOUT_MS = 30_000
"""RocketMQ: consumerTimeoutMillisWhenSuspend."""
ERROR_PAUSE_MS = 1_000
"""Pause after a refusal. RocketMQ: pullTimeDelayMillsWhenException."""
BUSY_PAUSE_MS = 100
EMPTY_PAUSE_MS = 50
"""Pause after an empty response that came at once and moved nothing: prevents a busy loop with a broker that does not hold pulls."""

_SUBSCRIPTION_UNKNOWN = {ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST}


async def pull(worker: AbstractQueueWorker, grant: Grant, runner: Runner) -> None:
    """Fetch messages until the grant ends; this is cancelled when it is lost."""
    ctx, ownership, link, messages = worker.ctx, worker.ownership, worker.session.link, grant.messages
    config, queue, clock = ctx.config, worker.queue, ctx.host.clock
    while grant.alive:
        room = messages.room()
        if not room or grant.pull_stops or ownership.state is not OwnershipState.HELD or ctx.paused or not link.up:
            grant.pull_waits = True
            grant.pull_wake.clear()
            await grant.pull_wake.wait()
            grant.pull_waits = False
            continue
        offset = messages.next_offset
        epoch, generation = ownership.pull_fence(grant.token)
        # A member that has been farther asks where the queue ends: the response to a pull that is held says so only with the next message.
        suspend = 0 if worker.reached > offset else SUSPEND
        header = PullHeader(
            ctx.group,
            queue.topic,
            queue.queue_id,
            offset,
            max_msg_nums=min(room, config.pull_count),
            sys_flag=suspend if ctx.assigned is None else suspend | SUBSCRIPTION,
            suspend_timeout_millis=POLL_MS,
            max_msg_bytes=max(min(config.queue_bytes_max - messages.size_bytes, config.pull_bytes), 1),
            subscription=None if ctx.assigned is None else "*",
            epoch=epoch,
            generation=generation,
        )
        grant.pulled_ms = asked_ms = clock.boot_ms()
        grant.pulling = True
        try:
            take_in = partial(_take_in, worker, grant, runner, offset)
            pause_ms = await link.request_then(RequestCode.PULL_MESSAGE, header, take_in, timeout_ms=PULL_TIMEOUT_MS)
        except TransportError as error:
            log.debug("pull.failed", queue=str(queue), error=str(error))
            grant.pulling = False
            await asyncio.sleep(BUSY_PAUSE_MS / 1000)
            continue
        grant.pulling = False
        if pause_ms == EMPTY_PAUSE_MS and clock.boot_ms() - asked_ms >= EMPTY_PAUSE_MS:
            pause_ms = 0
        if pause_ms:
            await asyncio.sleep(pause_ms / 1000)


def _take_in(worker: AbstractQueueWorker, grant: Grant, runner: Runner, offset: int, response: Command) -> int:
    """Handle the response to a pull from `offset`. Return the pause before the next pull in milliseconds."""
    if not grant.alive:
        return 0
    if response.code == ResponseCode.STALE_EPOCH:
        worker.handle_stale(grant, by="PULL")
        return 0
    if response.code not in PULLED:
        # After a leave the broker may not know the group while this queue drains.
        return _refused(worker, response) if worker.ownership.state is OwnershipState.HELD else BUSY_PAUSE_MS
    try:
        reply = from_plain(PullReply, response.fields)
        found = _read(worker, response, reply, offset)
    except RemoteProtocolError as error:
        log.error("pull.unreadable", queue=str(worker.queue), offset=offset, error=str(error))
        return ERROR_PAUSE_MS
    worker.report_gap(reply.gap_first, reply.gap_end)
    if worker.reached:
        # Such as after a restored backup: the queue ends before what this member has consumed.
        worker.report_gap(reply.max_offset, worker.reached)
        worker.reached = 0
    messages = grant.messages
    if response.code == ResponseCode.PULL_OFFSET_MOVED:
        if reply.next_begin_offset <= offset:
            worker.session.queue_truncated(worker, reply.min_offset, reply.max_offset)
            return ERROR_PAUSE_MS
        if reply.gap_first is None:
            worker.report_gap(offset, reply.next_begin_offset)
        moved = messages.move(reply.next_begin_offset)
    else:
        moved = messages.put(found, max(reply.next_begin_offset, offset), len(response.body))
    if moved:
        runner.position_moved()
    if found:
        grant.run_wake.set()
        return 0
    return EMPTY_PAUSE_MS if reply.next_begin_offset <= offset else 0


def read_page(worker: AbstractQueueWorker, response: Command, offset: int) -> tuple[list[MessageExt], int] | None:
    """Return the matching messages of a response to a pull from `offset`, and the next offset; None if the pull was refused.

    Raises RemoteProtocolError if they don't fit the request.
    """
    if response.code not in PULLED:
        _refused(worker, response)
        return None
    reply = from_plain(PullReply, response.fields)
    return _read(worker, response, reply, offset), reply.next_begin_offset


def _read(worker: AbstractQueueWorker, response: Command, reply: PullReply, offset: int) -> list[MessageExt]:
    """Return the matching messages of a response. Raise RemoteProtocolError if they don't fit the request."""
    if response.code != ResponseCode.SUCCESS or not response.body:
        return []
    body = response.body if isinstance(response.body, bytes) else bytes(response.body)
    found = decode_messages(body, worker.queue.broker_name)
    if found and not (offset <= found[0].queue_offset <= found[-1].queue_offset < reply.next_begin_offset):
        span = f"{found[0].queue_offset} … {found[-1].queue_offset}"
        raise RemoteProtocolError(f"requested from {offset}, got offsets {span} and next {reply.next_begin_offset}")
    tags = worker.ctx.filters.get(worker.queue.topic)  # None if the user had assigned the queue, and has removed it since
    return found if tags is None or tags.all else [message for message in found if tags.matches_tag(message.tags)]


def _refused(worker: AbstractQueueWorker, response: Command) -> int:
    if response.code == ResponseCode.SYSTEM_BUSY:
        named_ms = retry_after_ms(response)
        return BUSY_PAUSE_MS if named_ms is None else named_ms
    log.warning("pull.refused", queue=str(worker.queue), code=response.code, remark=response.remark)
    if response.code in _SUBSCRIPTION_UNKNOWN:
        worker.subscription_lapsed()
    return ERROR_PAUSE_MS

"""The meaning of the frames between clients and brokers, as events. Pure: the recorder writes them into the history.

A reader of a request yields events of the client, and registers the request if its response matters. A reader of a response yields events
of the broker, which happen now, and events of the client, which happen when the response has arrived. Bodies are decoded only if an event
needs them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

from lockstep.protocol.bodies import LockVerdict
from lockstep.protocol.codec.plain import unpack_plain
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.messages.properties import DELAY, split_properties
from lockstep.protocol.responses import PULLED
from sweep.compressed import decompress_body, record_bodies
from sweep.connections import Item, Link, Pending
from sweep.events.locks import (
    ClassicLocked,
    ClassicUnlocked,
    ClassicUnlockSent,
    ConnectionCut,
    GrantReceived,
    LeaveSent,
    LockGranted,
    LockRefused,
    LockSent,
    ProofReceived,
    QueueFreeSent,
    SessionBound,
    StaleReceived,
)
from sweep.events.parks import (
    ParkControlSent,
    ParkedListed,
    ParkedRow,
    ParkEndReceived,
    ParkEndResponded,
    ParkEndSent,
    ParkReceived,
    ParkResponded,
    ParkSent,
)
from sweep.events.progress import CommitReceived, CommitResponded, CommitSent, ProgressReset, ProgressResponded, PullReceived, ResetSent
from sweep.events.sends import (
    DeadLetterResponded,
    DeadLetterSent,
    DelayedSendResponded,
    DelayedSendWritten,
    FrameResponded,
    FrameWritten,
    LayoutSent,
    SendBackResponded,
    SendBackSent,
)
from sweep.history import Event, ItemVerdict, PlaceReached, QueueKey

DELAYED, CLASSIC_LOCK = -1, -41
"""Codes that pending requests have here instead of their own: SEND_MESSAGE with a delay level, LOCK_BATCH_MQ without a session."""
_VERDICTS = {
    LockVerdict.OK: ItemVerdict.OK,
    LockVerdict.STALE: ItemVerdict.STALE,
    LockVerdict.NOT_YOURS: ItemVerdict.NOT_YOURS,
    LockVerdict.HELD: ItemVerdict.HELD,
    LockVerdict.REFUSED: ItemVerdict.REFUSED,
    LockVerdict.WAIT: ItemVerdict.WAIT,
}


class _Also(TypedDict):
    """The further facts of a grant."""

    done: tuple[int, ...]
    replays: tuple[tuple[str, int, bool], ...]


Origin = tuple[float, str, int]
"""The first three facts of an event: when, and in which process."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, now, on one connection."""

    link: Link
    command: Command
    now: float
    groups: dict[tuple[str, str], list[str]]
    """(session, broker) → the groups that its last HEART_BEAT named."""

    @property
    def client(self) -> Origin:
        return self.now, self.link.client.machine.name, self.link.client.number

    @property
    def server(self) -> Origin:
        return self.now, self.link.server.machine.name, self.link.server.number

    @property
    def fields(self) -> dict[str, Any]:
        return self.command.fields

    @property
    def ok(self) -> bool:
        return self.command.code == ResponseCode.SUCCESS

    def body(self) -> Any:
        return unpack_plain(self.command.body)

    def key(self, group: str, topic: str, queue: int) -> QueueKey:
        return QueueKey(group, self.link.broker, topic, queue)

    def field_key(self, group: str = "") -> QueueKey:
        """Return the queue that the header names; `group` names the header's field of the group."""
        fields = self.fields
        return self.key(fields[group] if group else "", fields["topic"], fields["queueId"])

    def item_key(self, item: dict[str, Any]) -> QueueKey:
        return self.key(item["group"], item["topic"], item["queueId"])

    def connection_cut(self) -> ConnectionCut:
        return ConnectionCut(*self.client, self.link.broker, self.link.connection, self.link.session)


Pend = Callable[[], Pending]
"""Registers the request that is being read."""
Events = Iterator[Event]

# --------------------------------------------------------------------------------------------------------------------- sessions


def _heartbeat(frame: Frame, pend: Pend) -> Events:
    link, body = frame.link, frame.body()
    session = body.get("session")
    if session is None:
        return
    link.session = session
    pending = pend()
    pending.client_id, pending.number = body["clientID"], body.get("connection", 0)
    groups = [consumer["groupName"] for consumer in body.get("consumerDataSet", ())]
    for group in frame.groups.get((session, link.broker), ()):
        if group not in groups:
            yield LeaveSent(*frame.client, group, link.broker, session)
    frame.groups[session, link.broker] = groups


def _handle_heartbeat_response(frame: Frame, pending: Pending) -> Events:
    link = frame.link
    if frame.ok and link.session is not None:
        yield SessionBound(*frame.client, link.broker, link.session, pending.client_id, link.connection, pending.number)


def _unregister(frame: Frame, pend: Pend) -> Events:
    group = frame.fields.get("consumerGroup")
    if group:
        yield LeaveSent(*frame.client, group, frame.link.broker, frame.link.session)


# ------------------------------------------------------------------------------------------------------------- locks and commits


def _lock(frame: Frame, pend: Pend) -> Events:
    body, link = frame.body(), frame.link
    if "items" not in body:
        _named(frame, body, pend()).code = CLASSIC_LOCK
        return
    pending = pend()
    for item in body["items"]:
        epoch = item.get("epoch")
        offset = None if epoch is None else item.get("offset")
        pending.items.append(Item(frame.item_key(item), epoch, None, offset, item.get("attempts", 0), done=_done(item)))
    yield LockSent(*frame.client, link.broker, link.session, tuple((item.key, item.epoch) for item in pending.items))
    for item in pending.items:
        if item.offset is not None:
            yield _commit_sent(frame, pending, item, "LOCK")


def _handle_lock_response(frame: Frame, pending: Pending) -> Events:
    pending.lost = "LOCK"
    if not frame.ok:
        return
    link, body = frame.link, frame.body()
    session, client, grace_ms = link.session, link.client.number, body["disconnectGraceMs"]
    yield ProofReceived(*frame.client, link.broker, session, link.connection, pending.boot_ms, pending.t, True, grace_ms)
    for item, given in zip(pending.items, body["items"], strict=True):
        verdict, key = _VERDICTS[given["verdict"]], item.key
        if item.offset is not None:
            yield from _commit_response_events(frame, pending, item, "LOCK", verdict)
        if verdict is ItemVerdict.OK:
            epoch, offset, generation, attempts = given["epoch"], given["offset"], given["generation"], given.get("attempts", 0)
            renewal = item.epoch is not None
            if not renewal:
                pending.lost = "LOCK with a grant"
            also: _Also = {"done": _done(given), "replays": tuple(_replays(given))}
            yield LockGranted(
                *frame.server, key, epoch, offset, generation, attempts, session, client, renewal, grace_ms, pending.t, **also
            )
            yield GrantReceived(*frame.client, key, epoch, offset, generation, attempts, session, renewal, grace_ms, **also)
            continue
        yield LockRefused(*frame.server, key, item.epoch, verdict, session, client)
        yield PlaceReached(*frame.server, f"LOCK returned {verdict.value}", str(key))
        if item.epoch is not None:
            yield StaleReceived(*frame.client, key, item.epoch, "LOCK", session)


def _sync(frame: Frame, pend: Pend) -> Events:
    pending = pend()
    for item in frame.body().get("items", ()):
        epoch, generation, offset = item.get("epoch"), item.get("generation"), item.get("offset")
        facts = (epoch, generation, offset, item.get("attempts", 0), item.get("release", False), _done(item))
        pending.items.append(Item(frame.item_key(item), *facts))
    for each in pending.items:
        yield _commit_sent(frame, pending, each, "SYNC")


def _handle_sync_response(frame: Frame, pending: Pending) -> Events:
    link = frame.link
    if not frame.ok:
        return
    yield ProofReceived(*frame.client, link.broker, link.session, link.connection, pending.boot_ms, pending.t, False)
    if not pending.items:
        return
    pending.lost = "SYNC"
    for item, given in zip(pending.items, frame.body()["items"], strict=True):
        verdict = _VERDICTS[given["verdict"]]
        yield from _commit_response_events(frame, pending, item, "SYNC", verdict)
        if verdict is ItemVerdict.OK:
            continue
        yield PlaceReached(*frame.server, f"SYNC returned {verdict.value}", str(item.key))
        # For the client the epoch ends with anything but OK, or for a release with STALE only.
        if item.epoch is not None and (verdict is ItemVerdict.STALE or not item.released):
            yield StaleReceived(*frame.client, item.key, item.epoch, "SYNC", link.session)


def _update_offset(frame: Frame, pend: Pend) -> Events:
    pending = pend()
    item = Item(frame.field_key("consumerGroup"), offset=frame.fields["commitOffset"])
    pending.items.append(item)
    yield _commit_sent(frame, pending, item, "UPDATE")


def _handle_update_response(frame: Frame, pending: Pending) -> Events:
    yield from _commit_response_events(frame, pending, pending.items[0], "UPDATE", ItemVerdict.OK if frame.ok else ItemVerdict.REFUSED)


def _commit_sent(frame: Frame, pending: Pending, item: Item, by: str) -> Event:
    return CommitSent(*_facts(frame.client, frame, item, by), pending.boot_ms, done=item.done)


def _commit_response_events(frame: Frame, pending: Pending, item: Item, by: str, verdict: ItemVerdict) -> Events:
    yield CommitResponded(*_facts(frame.server, frame, item, by), frame.link.client.number, verdict, pending.t, done=item.done)
    yield CommitReceived(*_facts(frame.client, frame, item, by), verdict, pending.t, done=item.done)


def _done(item: dict[str, Any]) -> tuple[int, ...]:
    return tuple(item.get("done") or ())


def _replays(item: dict[str, Any]) -> Iterator[tuple[str, int, bool]]:
    return ((each["key"], each["next"], each.get("drop", False)) for each in item.get("replays") or ())


def _facts(
    origin: Origin, frame: Frame, item: Item, by: str
) -> tuple[float, str, int, QueueKey, int | None, int | None, int | None, int, bool, str, str | None]:
    return *origin, item.key, item.epoch, item.generation, item.offset, item.attempts, item.released, by, frame.link.session


def _queue_free(frame: Frame) -> Events:
    for item in frame.body()["queues"]:
        yield QueueFreeSent(*frame.server, frame.item_key(item), frame.link.session, frame.link.client.number)


# --------------------------------------------------------------------------------------------------------------- pulls, progress


def _pull(frame: Frame, pend: Pend) -> Events:
    pending = pend()
    pending.items.append(Item(frame.field_key("consumerGroup"), frame.fields.get("epoch"), offset=frame.fields["queueOffset"]))
    pending.sharding_key = frame.fields.get("key")
    yield from ()


def _handle_pull_response(frame: Frame, pending: Pending) -> Events:
    ((item),) = pending.items
    fields, code = frame.fields, frame.command.code
    first, end = fields.get("gapFirst"), fields.get("gapEnd")
    gap = None if first is None or end is None else (first, end)
    next_offset = fields.get("nextBeginOffset") if code in PULLED else None
    assert item.offset is not None
    yield PullReceived(*frame.client, item.key, item.epoch, code, item.offset, next_offset, pending.t, gap, frame.now, pending.sharding_key)
    if code == ResponseCode.STALE_EPOCH and item.epoch is not None:
        yield StaleReceived(*frame.client, item.key, item.epoch, "PULL", frame.link.session)


def _query(frame: Frame, pend: Pend) -> Events:
    if frame.fields.get("where") is not None:
        pend().items.append(Item(frame.field_key("consumerGroup")))
    yield from ()


def _handle_query_response(frame: Frame, pending: Pending) -> Events:
    pending.lost = "QUERY"
    generation, link = frame.fields.get("generation"), frame.link
    if frame.ok and generation is not None:
        key, offset = pending.items[0].key, frame.fields["offset"]
        yield ProgressResponded(*frame.server, key, generation, offset, link.session, link.client.number, pending.t)


def _reset(frame: Frame, pend: Pend) -> Events:
    body, pending = frame.body(), pend()
    for one in body["queues"]:
        item = Item(frame.key(body["group"], body["topic"], one["queueId"]), offset=one["offset"])
        pending.items.append(item)
        yield ResetSent(*frame.client, item.key, one["offset"], pending.request)


def _handle_reset_response(frame: Frame, pending: Pending) -> Events:
    pending.lost = "a reset"
    if frame.ok:
        for item, before in zip(pending.items, frame.body()["queues"], strict=True):
            assert item.offset is not None
            yield ProgressReset(*frame.server, item.key, item.offset, before["offset"], pending.request)


# ------------------------------------------------------------------------------------------------------------------------- sends


def _send_records(frame: Frame, pend: Pend) -> Events:
    fields, pending = frame.fields, pend()
    key = frame.field_key()
    bodies, compressed = _bodies(frame.command.body)
    counter, writer = fields.get("layoutCounter"), fields.get("layoutWriter")
    layout = None if counter is None or writer is None else (counter, writer)
    sequence = (fields.get("partition", 0), fields.get("producerEpoch", 0), fields.get("firstSequence", 0))
    pending.items.append(Item(key))
    pending.number = len(bodies)
    producer, durable = fields.get("producerId"), fields.get("durable")
    yield FrameWritten(*frame.client, key, bodies, layout, producer, sequence, pending.request, durable)
    if compressed:
        yield PlaceReached(*frame.client, "compressed bodies sent", f"{compressed} of {len(bodies)}")


def _bodies(data: bytes | bytearray | memoryview) -> tuple[tuple[bytes, ...], int]:
    """Return the bodies of a frame's records as they were sent, and how many are compressed; none if it is not a frame."""
    try:
        return record_bodies(data)
    except RemoteProtocolError:
        return (), 0


def _send_message(frame: Frame, pend: Pend) -> Events:
    fields, pending = frame.fields, pend()
    key, body = frame.field_key(), decompress_body(bytes(frame.command.body), fields.get("sysFlag", 0))
    pending.items.append(Item(key))
    pending.number = 1
    level = split_properties(fields.get("properties", "")).get(DELAY)
    if level is None:
        yield FrameWritten(*frame.client, key, (body,), None, None, (0, 0, 0), pending.request)
    else:
        pending.code = DELAYED
        yield DelayedSendWritten(*frame.client, key, body, int(level), pending.request)


def _handle_send_response(frame: Frame, pending: Pending) -> Events:
    key, fields = pending.items[0].key, frame.fields
    if pending.code == RequestCode.SEND_MESSAGE and "queueId" in fields:
        key = key._replace(queue=fields["queueId"])
    pending.lost = "a send" if frame.ok else ""
    offset, position = (fields.get("queueOffset", -1), fields.get("physicalOffset", -1)) if frame.ok else (-1, -1)
    yield FrameResponded(*frame.server, key, frame.command.code, offset, position, pending.number, pending.request, pending.t)


def _handle_delayed_response(frame: Frame, pending: Pending) -> Events:
    pending.lost = "a delayed send" if frame.ok else ""
    yield DelayedSendResponded(*frame.server, pending.items[0].key, frame.command.code, pending.request)


def _send_back(frame: Frame, pend: Pend) -> Events:
    fields, pending = frame.fields, pend()
    group, position, level = fields["group"], fields["offset"], fields.get("delayLevel", 0)
    pending.items.append(Item(frame.key(group, "", 0)))
    yield SendBackSent(*frame.client, group, frame.link.broker, position, level, fields.get("maxReconsumeTimes"), pending.request)


def _handle_send_back_response(frame: Frame, pending: Pending) -> Events:
    pending.lost = "SEND_MSG_BACK" if frame.ok else ""
    group, link = pending.items[0].key.group, frame.link
    yield SendBackResponded(*frame.server, group, link.broker, frame.command.code, pending.request, link.client.number)


def _dead_letter(frame: Frame, pend: Pend) -> Events:
    fields, pending = frame.fields, pend()
    advance, attempts = fields.get("advance", True), fields.get("attempts", 0)
    item = Item(frame.field_key("consumerGroup"), fields["epoch"], offset=fields["offset"], released=advance)
    pending.items.append(item)
    yield DeadLetterSent(*frame.client, item.key, fields["epoch"], fields["offset"], attempts, advance, pending.request)


def _handle_dead_letter_response(frame: Frame, pending: Pending) -> Events:
    ((item),) = pending.items
    pending.lost = "DEAD_LETTER" if frame.ok else ""
    assert item.epoch is not None
    assert item.offset is not None
    code, advance, client = frame.command.code, item.released, frame.link.client.number
    yield DeadLetterResponded(*frame.server, item.key, item.epoch, item.offset, advance, code, pending.request, client)


# ------------------------------------------------------------------------------------------------------------------ parked keys


def _park(frame: Frame, pend: Pend) -> Events:
    fields, pending = frame.fields, pend()
    item = Item(frame.field_key("consumerGroup"), fields["epoch"], offset=fields["offset"])
    pending.items.append(item)
    yield ParkSent(*frame.client, item.key, fields["epoch"], fields["offset"], pending.request, fields.get("attempts", 0))


def _handle_park_response(frame: Frame, pending: Pending) -> Events:
    ((item),) = pending.items
    pending.lost = "PARK" if frame.ok else ""
    assert item.epoch is not None
    assert item.offset is not None
    code = frame.command.code
    yield ParkResponded(*frame.server, item.key, item.epoch, item.offset, pending.request, code, frame.link.client.number)
    yield ParkReceived(*frame.client, item.key, item.epoch, item.offset, pending.request, code, pending.t)


def _park_end(frame: Frame, pend: Pend) -> Events:
    fields, pending = frame.fields, pend()
    ends = fields.get("pulled") is not None
    item = Item(frame.field_key("consumerGroup"), fields["epoch"], offset=fields["next"], released=ends)
    pending.items.append(item)
    pending.sharding_key = fields["key"]
    yield ParkEndSent(*frame.client, item.key, fields["epoch"], fields["key"], fields["next"], ends)


def _handle_park_end_response(frame: Frame, pending: Pending) -> Events:
    ((item),) = pending.items
    pending.lost = "" if not frame.ok else "the end of a replay" if item.released else "the progress of a replay"
    assert item.epoch is not None
    assert item.offset is not None
    assert pending.sharding_key is not None
    key, code, client = pending.sharding_key, frame.command.code, frame.link.client.number
    until, upto = (frame.fields.get("until"), frame.fields.get("upto")) if frame.ok else (None, None)
    yield ParkEndResponded(*frame.server, item.key, item.epoch, key, item.offset, item.released, code, until, upto, client)
    yield ParkEndReceived(*frame.client, item.key, item.epoch, key, item.offset, item.released, code, until, upto, pending.t)
    if code == ResponseCode.STALE_EPOCH:
        yield StaleReceived(*frame.client, item.key, item.epoch, "PARK_END", frame.link.session)


def _park_control(frame: Frame, pend: Pend) -> Events:
    body, pending = frame.body(), pend()
    pending.listing = body["action"] == "list"
    yield ParkControlSent(*frame.client, frame.link.broker, body["action"], body.get("group") or "", body.get("key"))


def _handle_park_control_response(frame: Frame, pending: Pending) -> Events:
    if frame.ok and pending.listing:
        rows = tuple(ParkedRow(frame.item_key(row), row["key"], row["next"], row["state"]) for row in frame.body()["keys"])
        yield ParkedListed(*frame.server, frame.link.broker, rows)
    pending.lost = "PARK_CONTROL" if frame.ok and not pending.listing else ""


# -------------------------------------------------------------------------------------------- layouts, clients without a session


def _layout(frame: Frame, pend: Pend) -> Events:
    if frame.command.body:
        body = frame.body()
        yield LayoutSent(*frame.client, frame.link.broker, body["topic"], body["version"]["counter"], not body["entries"])


def _named(frame: Frame, body: Any, pending: Pending) -> Pending:
    """Note the client and the queues that LOCK_BATCH_MQ or UNLOCK_BATCH_MQ names."""
    pending.client_id = body["clientId"]
    pending.items += [Item(frame.key(body["consumerGroup"], ref["topic"], ref["queueId"])) for ref in body["mqSet"]]
    return pending


def _handle_classic_lock_response(frame: Frame, pending: Pending) -> Events:
    if frame.ok:
        given = {(ref["topic"], ref["queueId"]) for ref in frame.body()["lockOKMQSet"]}
        for item in pending.items:
            granted = (item.key.topic, item.key.queue) in given
            yield ClassicLocked(*frame.server, item.key, pending.client_id, frame.link.client.number, granted, pending.t)


def _classic_unlock(frame: Frame, pend: Pend) -> Events:
    pending = _named(frame, frame.body(), pend())
    for item in pending.items:
        yield ClassicUnlockSent(*frame.client, item.key, pending.client_id)


def _handle_classic_unlock_response(frame: Frame, pending: Pending) -> Events:
    if frame.ok:
        for item in pending.items:
            yield ClassicUnlocked(*frame.server, item.key, pending.client_id, pending.t)


REQUESTS: dict[int, Callable[[Frame, Pend], Events]] = {
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _unregister,
    RequestCode.LOCK_BATCH_MQ: _lock,
    RequestCode.UNLOCK_BATCH_MQ: _classic_unlock,
    RequestCode.SYNC: _sync,
    RequestCode.UPDATE_CONSUMER_OFFSET: _update_offset,
    RequestCode.QUERY_CONSUMER_OFFSET: _query,
    RequestCode.RESET_OFFSETS: _reset,
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.SEND_RECORDS: _send_records,
    RequestCode.SEND_MESSAGE: _send_message,
    RequestCode.CONSUMER_SEND_MSG_BACK: _send_back,
    RequestCode.DEAD_LETTER: _dead_letter,
    RequestCode.PARK: _park,
    RequestCode.PARK_END: _park_end,
    RequestCode.PARK_CONTROL: _park_control,
    RequestCode.UPDATE_AND_CREATE_TOPIC: _layout,
}
RESPONSES: dict[int, Callable[[Frame, Pending], Events]] = {
    RequestCode.HEART_BEAT: _handle_heartbeat_response,
    RequestCode.LOCK_BATCH_MQ: _handle_lock_response,
    CLASSIC_LOCK: _handle_classic_lock_response,
    RequestCode.UNLOCK_BATCH_MQ: _handle_classic_unlock_response,
    RequestCode.SYNC: _handle_sync_response,
    RequestCode.UPDATE_CONSUMER_OFFSET: _handle_update_response,
    RequestCode.QUERY_CONSUMER_OFFSET: _handle_query_response,
    RequestCode.RESET_OFFSETS: _handle_reset_response,
    RequestCode.PULL_MESSAGE: _handle_pull_response,
    RequestCode.SEND_RECORDS: _handle_send_response,
    RequestCode.SEND_MESSAGE: _handle_send_response,
    DELAYED: _handle_delayed_response,
    RequestCode.CONSUMER_SEND_MSG_BACK: _handle_send_back_response,
    RequestCode.DEAD_LETTER: _handle_dead_letter_response,
    RequestCode.PARK: _handle_park_response,
    RequestCode.PARK_END: _handle_park_end_response,
    RequestCode.PARK_CONTROL: _handle_park_control_response,
}
"""By the request's code."""
PUSHES: dict[int, Callable[[Frame], Events]] = {RequestCode.QUEUE_FREE: _queue_free}
"""Requests that a broker sends."""

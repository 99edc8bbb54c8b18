"""The meaning of the frames between clients and brokers, as events. Pure: the recorder writes them into the history.

The reader of a request yields events of the client, and notes in the frame what the reader of the response needs. The reader of a response
yields events of the broker, which happen now, and events of the client, which happen when the response has arrived. Bodies are decoded only
if an event needs them.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from lockstep.protocol.bodies import LockVerdict
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.headers.transactions import UNKNOWN
from lockstep.protocol.names import TIMER_TOPIC
from lockstep.protocol.responses import PULLED
from sweep.compressed import decompress_body, record_bodies
from sweep.connections import Frame, ReadResponse
from sweep.elections_watch import register_seen
from sweep.events import locks, parks, progress, sends
from sweep.history import Event, ItemVerdict, PlaceReached, QueueKey

Events = Iterator[Event]


def _common(sent: Event) -> list[Any]:
    """Return the facts of a request that the events of its response repeat: those of the base class of its own event."""
    return [getattr(sent, field.name) for field in dataclasses.fields(type(sent).__bases__[0])[3:]]


def _verdict(given: dict[str, Any]) -> ItemVerdict:
    return ItemVerdict[LockVerdict(given["verdict"]).name]


def _answered(lost: str, responded: Callable[..., Event], received: Callable[..., Event] | None = None) -> ReadResponse:
    """Return the reader of a response whose events repeat the facts of the request, and have its code."""

    def read(frame: Frame, request: Frame) -> Events:
        request.lost = lost if frame.ok else ""
        facts = *_common(request.kept[0]), frame.command.code
        yield responded(*frame.server, *facts)
        if received is not None:
            yield received(*frame.client, *facts)

    return read


def _keep(frame: Frame, sent: Event) -> Events:
    frame.kept.append(sent)
    yield sent


# --------------------------------------------------------------------------------------------------------------------- sessions


def _heartbeat(frame: Frame) -> Events:
    link, body = frame.link, frame.body()
    session = body.get("session")
    if session is None:
        return
    link.session = session
    frame.kept += body["clientID"], body.get("connection", 0)
    groups = [consumer["groupName"] for consumer in body.get("consumerDataSet", ())]
    for group in link.groups.get((session, link.broker), ()):
        if group not in groups:
            yield locks.LeaveSent(*frame.client, link.broker, session, group)
    link.groups[session, link.broker] = groups


def _heartbeat_response(frame: Frame, request: Frame) -> Events:
    link = frame.link
    if frame.ok and request.kept:
        client_id, number = request.kept
        yield locks.SessionBound(*frame.client, link.broker, link.session, client_id, link.connection, number)


def _unregister(frame: Frame) -> Events:
    group = frame.fields.get("consumerGroup")
    if group:
        yield locks.LeaveSent(*frame.client, frame.link.broker, frame.link.session, group)


# ------------------------------------------------------------------------------------------------------------- locks and commits


def _lock(frame: Frame) -> Events:
    body = frame.body()
    if "items" not in body:
        frame.read_response = _classic_lock_response
        _name_classic(frame, body)
        return
    for item in body["items"]:
        queue, epoch = frame.item_key(item), item.get("epoch")
        commits = epoch is not None and item.get("offset") is not None
        frame.kept.append((queue, epoch, _commit_sent(frame, queue, item, "LOCK") if commits else None))
    yield locks.LockSent(*frame.client, frame.link.broker, frame.link.session, tuple((queue, epoch) for queue, epoch, _ in frame.kept))
    yield from (commit for _, _, commit in frame.kept if commit is not None)


def _lock_response(frame: Frame, request: Frame) -> Events:
    request.lost = "LOCK"
    if not frame.ok:
        return
    link, body = frame.link, frame.body()
    grace_ms = body["disconnectGraceMs"]
    yield locks.ProofReceived(*frame.client, link.broker, link.session, link.connection, request.boot_ms, request.t, True, grace_ms)
    for (queue, epoch, commit), given in zip(request.kept, body["items"], strict=True):
        verdict = _verdict(given)
        if commit is not None:
            yield from _commit_response(frame, commit, verdict)
        if verdict is ItemVerdict.OK:
            if epoch is None:
                request.lost = "LOCK with a grant"
            replays = tuple((each["key"], each["next"], each.get("drop", False)) for each in given.get("replays") or ())
            grant = given["epoch"], given["offset"], given["generation"], given.get("attempts", 0), epoch is not None, grace_ms
            yield frame.responded(locks.LockGranted, request, queue, *grant, _done(given), replays)
            yield frame.received(locks.GrantReceived, request, queue, *grant, _done(given), replays)
            continue
        yield frame.responded(locks.LockRefused, request, queue, epoch, verdict)
        yield PlaceReached(*frame.server, f"LOCK returned {verdict.value}", str(queue))
        if epoch is not None:
            yield frame.received(locks.StaleReceived, request, queue, epoch, "LOCK")


def _sync(frame: Frame) -> Events:
    frame.kept += (_commit_sent(frame, frame.item_key(item), item, "SYNC") for item in frame.body().get("items", ()))
    yield from frame.kept


def _sync_response(frame: Frame, request: Frame) -> Events:
    link = frame.link
    if not frame.ok:
        return
    yield locks.ProofReceived(*frame.client, link.broker, link.session, link.connection, request.boot_ms, request.t, False)
    if not request.kept:
        return
    request.lost = "SYNC"
    for commit, given in zip(request.kept, frame.body()["items"], strict=True):
        verdict = _verdict(given)
        yield from _commit_response(frame, commit, verdict)
        if verdict is ItemVerdict.OK:
            continue
        yield PlaceReached(*frame.server, f"SYNC returned {verdict.value}", str(commit.queue))
        # For the client the epoch ends with anything but OK, or for a release with STALE only.
        if commit.epoch is not None and (verdict is ItemVerdict.STALE or not commit.released):
            yield frame.received(locks.StaleReceived, request, commit.queue, commit.epoch, "SYNC")


def _update_offset(frame: Frame) -> Events:
    return _keep(frame, _commit_sent(frame, frame.field_key(), {"offset": frame.fields["commitOffset"]}, "UPDATE"))


def _update_response(frame: Frame, request: Frame) -> Events:
    return _commit_response(frame, request.kept[0], ItemVerdict.OK if frame.ok else ItemVerdict.REFUSED)


def _commit_sent(frame: Frame, queue: QueueKey, item: dict[str, Any], by: str) -> progress.CommitSent:
    facts = item.get("epoch"), item.get("generation"), item.get("offset"), item.get("attempts", 0), item.get("release", False)
    return frame.sent(progress.CommitSent, queue, *facts, by, _done(item), frame.boot_ms)


def _commit_response(frame: Frame, sent: progress.CommitSent, verdict: ItemVerdict) -> Events:
    facts = *_common(sent), verdict
    yield progress.CommitResponded(*frame.server, *facts)
    yield progress.CommitReceived(*frame.client, *facts)


def _done(item: dict[str, Any]) -> tuple[int, ...]:
    return tuple(item.get("done") or ())


def _queue_free(frame: Frame) -> Events:
    for item in frame.body()["queues"]:
        yield PlaceReached(*frame.server, "QUEUE_FREE pushed", f"{frame.item_key(item)} → {frame.link.client.machine.name}")


# --------------------------------------------------------------------------------------------------------------- pulls, progress


def _pull(frame: Frame) -> Events:
    fields = frame.fields
    frame.kept += frame.field_key(), fields.get("epoch"), fields["queueOffset"], fields.get("key")
    yield from ()


def _pull_response(frame: Frame, request: Frame) -> Events:
    queue, epoch, offset, key = request.kept
    fields, code = frame.fields, frame.command.code
    first, end = fields.get("gapFirst"), fields.get("gapEnd")
    gap = None if first is None or end is None else (first, end)
    next_offset = fields.get("nextBeginOffset") if code in PULLED else None
    yield frame.received(progress.PullReceived, request, queue, epoch, code, offset, next_offset, gap, frame.t, key)
    if code == ResponseCode.STALE_EPOCH and epoch is not None:
        yield frame.received(locks.StaleReceived, request, queue, epoch, "PULL")


def _query(frame: Frame) -> Events:
    if frame.fields.get("where") is not None:
        frame.kept.append(frame.field_key())
    yield from ()


def _query_response(frame: Frame, request: Frame) -> Events:
    if not request.kept:
        return
    request.lost = "QUERY"
    generation = frame.fields.get("generation")
    if frame.ok and generation is not None:
        yield frame.responded(progress.ProgressResponded, request, request.kept[0], generation, frame.fields["offset"])


def _reset(frame: Frame) -> Events:
    body = frame.body()
    for one in body["queues"]:
        queue = frame.key(body["group"], body["topic"], one["queueId"])
        yield from _keep(frame, frame.sent(progress.ResetSent, queue, one["offset"]))


def _reset_response(frame: Frame, request: Frame) -> Events:
    request.lost = "a reset"
    if frame.ok:
        for sent, before in zip(request.kept, frame.body()["queues"], strict=True):
            yield frame.responded(progress.ProgressReset, request, sent.queue, sent.offset, before["offset"])


# ------------------------------------------------------------------------------------------------------------------------- sends


def _send_records(frame: Frame) -> Events:
    fields = frame.fields
    queue = frame.field_key("")
    try:
        bodies, compressed = record_bodies(frame.command.body)
    except RemoteProtocolError:
        bodies, compressed = (), 0
    counter, writer = fields.get("layoutCounter"), fields.get("layoutWriter")
    layout = None if counter is None or writer is None else (counter, writer)
    sequence = (fields.get("partition", 0), fields.get("producerEpoch", 0), fields.get("firstSequence", 0))
    facts = bodies, layout, fields.get("producerId"), sequence, fields.get("durable")
    if fields.get("room") is None:
        yield from _keep(frame, frame.sent(sends.FrameWritten, queue, *facts))
    else:
        waits = *facts, fields.get("began", 0)
        sent = frame.sent(sends.HalvesWritten, queue, *waits)
        yield from _keep(frame, frame.sent(sends.TimersWritten, queue, *waits) if fields["room"] == TIMER_TOPIC else sent)
    if compressed:
        yield PlaceReached(*frame.client, "compressed bodies sent", f"{compressed} of {len(bodies)}")


def _send_message(frame: Frame) -> Events:
    fields = frame.fields
    queue, body = frame.field_key(""), decompress_body(bytes(frame.command.body), fields.get("sysFlag", 0))
    return _keep(frame, frame.sent(sends.FrameWritten, queue, (body,), None, None, (0, 0, 0)))


def _send_response(frame: Frame, request: Frame) -> Events:
    (sent,), fields = request.kept, frame.fields
    queue = sent.queue
    if request.command.code == RequestCode.SEND_MESSAGE and "queueId" in fields:
        queue = queue._replace(queue=fields["queueId"])
    offset, position = (fields.get("queueOffset", -1), fields.get("physicalOffset", -1)) if frame.ok else (-1, -1)
    facts = frame.command.code, offset, position, fields.get("storeTimestamp", 0) if frame.ok else 0
    if isinstance(sent, sends.HalvesWritten):
        request.lost = "a send of half messages" if frame.ok else ""
        yield frame.responded(sends.HalvesResponded, request, queue, *facts)
    elif isinstance(sent, sends.TimersWritten):
        request.lost = "a send of timers" if frame.ok else ""
        yield frame.responded(sends.TimersResponded, request, queue, *facts)
    else:
        request.lost = "a send" if frame.ok else ""
        yield frame.responded(sends.FrameResponded, request, queue, *facts)


def _end(frame: Frame) -> Events:
    fields = frame.fields
    frame.kept += fields["commitOrRollback"], tuple(half["messageId"] for half in frame.body()["halves"])
    yield from ()


def _end_response(frame: Frame, request: Frame) -> Events:
    outcome, message_ids = request.kept
    request.lost = "the end of a transaction" if frame.ok and outcome != UNKNOWN else ""
    of_client = frame.link.broker, frame.link.client.number
    yield sends.EndResponded(*frame.server, *of_client, outcome, message_ids, frame.command.code)


def _recall(frame: Frame) -> Events:
    yield from ()


def _recall_response(frame: Frame, request: Frame) -> Events:
    request.lost = "a recall" if frame.ok else ""
    yield sends.RecallResponded(*frame.server, frame.link.broker, frame.link.client.number, frame.command.code)


def _send_back(frame: Frame) -> Events:
    fields, link = frame.fields, frame.link
    group, broker, client = fields["group"], link.broker, link.client.number
    position, level, retries_max = fields["offset"], fields.get("delayLevel", 0), fields.get("maxReconsumeTimes")
    return _keep(frame, sends.SendBackSent(*frame.client, group, broker, client, frame.request, position, level, retries_max))


# ------------------------------------------------------------------------------------------------------ dead letters, parked keys


def _dead_letter(frame: Frame) -> Events:
    fields = frame.fields
    facts = fields["epoch"], fields["offset"], fields.get("attempts", 0), fields.get("advance", True)
    return _keep(frame, frame.sent(sends.DeadLetterSent, frame.field_key(), *facts))


def _park(frame: Frame) -> Events:
    fields = frame.fields
    facts = fields["epoch"], fields["offset"], fields.get("attempts", 0)
    return _keep(frame, frame.sent(parks.ParkSent, frame.field_key(), *facts))


def _park_end(frame: Frame) -> Events:
    fields = frame.fields
    frame.kept += frame.field_key(), fields["epoch"], fields["key"], fields["next"], fields.get("pulled") is not None
    yield from ()


def _park_end_response(frame: Frame, request: Frame) -> Events:
    queue, epoch, key, next_offset, ends = request.kept
    request.lost = "" if not frame.ok else "the end of a replay" if ends else "the progress of a replay"
    code = frame.command.code
    until, upto = (frame.fields.get("until"), frame.fields.get("upto")) if frame.ok else (None, None)
    facts = epoch, key, next_offset, ends, code, until, upto
    yield frame.responded(parks.ParkEndResponded, request, queue, *facts)
    yield frame.received(parks.ParkEndReceived, request, queue, *facts)
    if code == ResponseCode.STALE_EPOCH:
        yield frame.received(locks.StaleReceived, request, queue, epoch, "PARK_END")


def _park_control(frame: Frame) -> Events:
    body = frame.body()
    return _keep(frame, parks.ParkControlSent(*frame.client, frame.link.broker, body["action"], body.get("group") or "", body.get("key")))


def _park_control_response(frame: Frame, request: Frame) -> Events:
    listing = request.kept[0].action == "list"
    if frame.ok and listing:
        rows = tuple(parks.ParkedRow(frame.item_key(row), row["key"], row["next"], row["state"]) for row in frame.body()["keys"])
        yield parks.ParkedListed(*frame.server, frame.link.broker, rows)
    request.lost = "PARK_CONTROL" if frame.ok and not listing else ""


# -------------------------------------------------------------------------------------------- layouts, clients without a session


def _layout(frame: Frame) -> Events:
    if frame.command.body:
        body = frame.body()
        yield sends.LayoutSent(*frame.client, frame.link.broker, body["topic"], body["version"]["counter"], not body["entries"])


def _name_classic(frame: Frame, body: Any) -> None:
    """Note the queues that LOCK_BATCH_MQ or UNLOCK_BATCH_MQ names, with its client."""
    client_id = body["clientId"]
    frame.kept += ((frame.key(body["consumerGroup"], ref["topic"], ref["queueId"]), client_id) for ref in body["mqSet"])


def _classic_lock_response(frame: Frame, request: Frame) -> Events:
    if frame.ok:
        given = {(ref["topic"], ref["queueId"]) for ref in frame.body()["lockOKMQSet"]}
        for queue, client_id in request.kept:
            yield frame.responded(locks.ClassicLocked, request, queue, client_id, (queue.topic, queue.queue) in given)


def _classic_unlock(frame: Frame) -> Events:
    _name_classic(frame, frame.body())
    yield from (frame.sent(locks.ClassicUnlockSent, *named) for named in frame.kept)


def _classic_unlock_response(frame: Frame, request: Frame) -> Events:
    if frame.ok:
        yield from (frame.responded(locks.ClassicUnlocked, request, *named) for named in request.kept)


def _register_read(frame: Frame) -> Events:
    frame.kept.append(frame.fields["brokerName"])
    yield from ()


def _register_read_response(frame: Frame, request: Frame) -> Events:
    if frame.ok and frame.fields["version"]:
        yield register_seen(frame.t, frame.server[1], request.kept[0], frame.fields["version"], bytes(frame.command.body))


def _register_swap(frame: Frame) -> Events:
    frame.kept += frame.fields["brokerName"], frame.fields["version"], bytes(frame.command.body)
    yield from ()


def _register_swap_response(frame: Frame, request: Frame) -> Events:
    if frame.ok and frame.fields["swapped"]:
        name, version, value = request.kept
        yield register_seen(frame.t, frame.server[1], name, version + 1, value)


REQUESTS: dict[int, tuple[Callable[[Frame], Events], ReadResponse | None]] = {
    RequestCode.HEART_BEAT: (_heartbeat, _heartbeat_response),
    RequestCode.UNREGISTER_CLIENT: (_unregister, None),
    RequestCode.LOCK_BATCH_MQ: (_lock, _lock_response),
    RequestCode.UNLOCK_BATCH_MQ: (_classic_unlock, _classic_unlock_response),
    RequestCode.SYNC: (_sync, _sync_response),
    RequestCode.UPDATE_CONSUMER_OFFSET: (_update_offset, _update_response),
    RequestCode.QUERY_CONSUMER_OFFSET: (_query, _query_response),
    RequestCode.RESET_OFFSETS: (_reset, _reset_response),
    RequestCode.PULL_MESSAGE: (_pull, _pull_response),
    RequestCode.SEND_RECORDS: (_send_records, _send_response),
    RequestCode.SEND_MESSAGE: (_send_message, _send_response),
    RequestCode.RECALL_MESSAGE: (_recall, _recall_response),
    RequestCode.END_TRANSACTION: (_end, _end_response),
    RequestCode.CONSUMER_SEND_MSG_BACK: (_send_back, _answered("SEND_MSG_BACK", sends.SendBackResponded)),
    RequestCode.DEAD_LETTER: (_dead_letter, _answered("DEAD_LETTER", sends.DeadLetterResponded)),
    RequestCode.PARK: (_park, _answered("PARK", parks.ParkResponded, parks.ParkReceived)),
    RequestCode.PARK_END: (_park_end, _park_end_response),
    RequestCode.PARK_CONTROL: (_park_control, _park_control_response),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (_layout, None),
    RequestCode.REGISTER_READ: (_register_read, _register_read_response),
    RequestCode.REGISTER_SWAP: (_register_swap, _register_swap_response),
}
"""Code → the readers of a request and of its response."""
PUSHES: dict[int, Callable[[Frame], Events]] = {RequestCode.QUEUE_FREE: _queue_free}
"""Requests that a broker sends."""

"""The recorder of connections: bytes in, events of the history out."""

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.protocol.bodies import (
    ConsumerGroup,
    FreeQueue,
    HeartbeatBody,
    LockBatchBody,
    LockBatchReply,
    LockItem,
    LockResult,
    LockVerdict,
    QueueFreeBody,
    QueueOffset,
    QueueRef,
    ResetBody,
    ResetReply,
    SessionLockBody,
    SessionLockReply,
    Subscription,
    SyncBody,
    SyncItem,
    SyncReply,
    SyncResult,
)
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, Command
from lockstep.protocol.fields import to_plain
from lockstep.protocol.frame import encode_frame
from lockstep.protocol.headers.clients import UnregisterClientHeader
from lockstep.protocol.headers.offsets import UpdateConsumerOffsetHeader
from lockstep.protocol.headers.pull import PullHeader, PullReply
from lockstep.protocol.headers.send import SendRecordsHeader, SendRecordsReply
from lockstep.protocol.messages.record import encode_record
from sweep.events import locks
from sweep.events.progress import CommitReceived, CommitResponded, CommitSent, ProgressReset, PullReceived, ResetSent
from sweep.events.sends import FrameResponded, FrameWritten
from sweep.history import Event, History, ItemVerdict, PlaceReached, QueueKey
from sweep.wire_recorder import WireRecorder

Q0 = QueueKey("billing", "broker-a", "orders", 0)
Q1 = QueueKey("billing", "broker-a", "orders", 1)
SESSION = "5" * 32


def process(wire: "Wire", machine: str, number: int) -> Any:
    """Return what the recorder reads of a process. Its boot time is 7 s ahead of the simulation's time."""
    clock = SimpleNamespace(boot_ms=lambda: round(wire.now * 1000) + 7_000)
    return SimpleNamespace(number=number, machine=SimpleNamespace(name=machine), host=SimpleNamespace(clock=clock))


class Wire:
    """One connection of client C (process 9) to broker-a on machine B (process 2), fed by the test."""

    def __init__(self, server: str = "B") -> None:
        self.now = 1.0
        self.history = History()
        self.recorder = WireRecorder(self.history, lambda: self.now, {"B": "broker-a"})
        self.recorder.opened(1, process(self, "C", 9), process(self, server, 2), 10911)
        self._opaque = 0
        self._unread = 0

    def send_request(self, code: RequestCode, header: object = None, body: bytes = b"") -> int:
        self._opaque += 1
        fields = {} if header is None else to_plain(header)
        self.recorder.sent(1, True, encode_frame(Command(code, self._opaque, fields=fields, body=body)))
        return self._opaque

    def response(self, opaque: int, code: int = 0, header: object = None, body: bytes = b"", *, arrives: float | None = None) -> None:
        """Write a response now. If `arrives` is given, it is received that many seconds later."""
        fields = {} if header is None else to_plain(header)
        data = encode_frame(Command(code, opaque, RESPONSE_FLAG, fields=fields, body=body))
        self.recorder.sent(1, False, data)
        self._unread += len(data)
        if arrives is not None:
            self.now += arrives
            self.read()

    def read(self) -> None:
        self.recorder.delivered(1, False, self._unread)
        self._unread = 0

    def heartbeat(self, *groups: str) -> int:
        consumers = tuple(ConsumerGroup(group, (Subscription("orders"),)) for group in groups)
        return self.send_request(RequestCode.HEART_BEAT, body=encode_body(HeartbeatBody("C@9#1", consumers, (), SESSION, 3)))

    def bound(self) -> "Wire":
        self.response(self.heartbeat("billing"), arrives=0.001)
        self.history.events.clear()
        return self

    def reported(self, *kinds: type[Event]) -> list[Event]:
        return [event for event in self.history if not kinds or type(event) in kinds]


def about(queue: QueueKey, request: int, request_t: float, session: str | None = SESSION) -> tuple[QueueKey, str | None, int, int, float]:
    """Return the facts that all events of a request have."""
    return queue, session, 9, request, request_t


def lock(wire: Wire, *items: LockItem) -> int:
    return wire.send_request(RequestCode.LOCK_BATCH_MQ, body=encode_body(SessionLockBody(items)))


def locked(*items: LockResult) -> bytes:
    return encode_body(SessionLockReply(items, {}, 3_000, 20_000))


GRANT = LockResult("billing", "orders", 0, LockVerdict.OK, epoch=17, offset=5, attempts=2, generation=4)
NOT_YOURS = LockResult("billing", "orders", 1, LockVerdict.NOT_YOURS, epoch=11)


def test_session_bound_is_recorded_when_the_heartbeat_response_arrives() -> None:
    wire = Wire()
    opaque = wire.heartbeat("billing")
    wire.response(opaque)
    assert wire.reported() == []
    wire.now = 2.0
    wire.read()
    assert wire.reported() == [locks.SessionBound(2.0, "C", 9, "broker-a", SESSION, "C@9#1", 1, 3)]


def test_refused_heartbeat_binds_no_session_and_is_counted() -> None:
    wire = Wire()
    wire.response(wire.heartbeat("billing"), ResponseCode.DUPLICATE_CLIENT_ID, arrives=0.001)
    assert [event.name for event in wire.history.of(PlaceReached)] == ["DUPLICATE_CLIENT_ID returned"]
    assert wire.reported(locks.SessionBound) == []


def test_lock_is_recorded_when_sent_answered_and_received() -> None:
    wire = Wire().bound()
    opaque = lock(wire, LockItem("billing", "orders", 0), LockItem("billing", "orders", 1, 11, 8, 1))
    commit = (*about(Q1, 2, 1.001), 11, None, 8, 1, False, "LOCK", ())
    assert wire.reported() == [
        locks.LockSent(1.001, "C", 9, "broker-a", SESSION, ((Q0, None), (Q1, 11))),
        CommitSent(1.001, "C", 9, *commit, 8_001),
    ]
    wire.history.events.clear()
    wire.now = 1.5
    wire.response(opaque, body=locked(GRANT, NOT_YOURS))
    assert wire.reported() == [
        locks.LockGranted(1.5, "B", 2, *about(Q0, 2, 1.001), 17, 5, 4, 2, False, 3_000, (), ()),
        CommitResponded(1.5, "B", 2, *commit, ItemVerdict.NOT_YOURS),
        locks.LockRefused(1.5, "B", 2, *about(Q1, 2, 1.001), 11, ItemVerdict.NOT_YOURS),
        PlaceReached(1.5, "B", 2, "LOCK returned not yours", str(Q1)),
    ]
    wire.history.events.clear()
    wire.now = 2.0
    wire.read()
    assert wire.reported() == [
        locks.ProofReceived(2.0, "C", 9, "broker-a", SESSION, 1, 8_001, 1.001, True, 3_000),
        locks.GrantReceived(2.0, "C", 9, *about(Q0, 2, 1.001), 17, 5, 4, 2, False, 3_000, (), ()),
        CommitReceived(2.0, "C", 9, *commit, ItemVerdict.NOT_YOURS),
        locks.StaleReceived(2.0, "C", 9, *about(Q1, 2, 1.001), 11, "LOCK"),
    ]


def test_grant_requested_with_its_epoch_is_recorded_as_a_renewal() -> None:
    wire = Wire().bound()
    wire.response(lock(wire, LockItem("billing", "orders", 0, 17)), body=locked(GRANT), arrives=0.1)
    assert [event.renewal for event in wire.history.of(locks.GrantReceived)] == [True]


def test_sync_is_recorded_as_commits_and_releases_and_an_empty_one_as_proof() -> None:
    wire = Wire().bound()
    items = (SyncItem("billing", "orders", 0, 17, None, 6, 0, False), SyncItem("billing", "orders", 1, 11, None, None, 0, True))
    opaque = wire.send_request(RequestCode.SYNC, body=encode_body(SyncBody(items)))
    empty = wire.send_request(RequestCode.SYNC, body=encode_body(SyncBody()))
    wire.response(empty, body=encode_body(SyncReply((), {})), arrives=0.1)
    assert len(wire.reported(locks.ProofReceived)) == 1
    responses = (SyncResult(LockVerdict.STALE, 17), SyncResult(LockVerdict.OK, 11))
    wire.response(opaque, body=encode_body(SyncReply(responses, {})), arrives=0.1)
    assert [(event.offset, event.released, event.verdict) for event in wire.history.of(CommitReceived)] == [
        (6, False, ItemVerdict.STALE),
        (None, True, ItemVerdict.OK),
    ]
    assert [(event.queue, event.epoch, event.by) for event in wire.history.of(locks.StaleReceived)] == [(Q0, 17, "SYNC")]
    assert [proof.lock for proof in wire.history.of(locks.ProofReceived)] == [False, False]


def test_undelivered_response_is_recorded_as_lost_when_the_connection_is_cut() -> None:
    wire = Wire().bound()
    wire.response(lock(wire, LockItem("billing", "orders", 0)), body=locked(GRANT))
    wire.now = 3.0
    wire.recorder.cut(1)
    assert wire.reported(locks.GrantReceived, locks.ProofReceived) == []
    assert wire.reported(locks.ConnectionCut) == [locks.ConnectionCut(3.0, "C", 9, "broker-a", SESSION, 1)]
    assert [event.name for event in wire.reported(PlaceReached)] == ["response to LOCK with a grant lost"]
    wire.recorder.sent(1, True, b"late")
    wire.recorder.delivered(1, False, 4)


def test_response_delivered_before_the_cut_is_not_recorded_as_lost() -> None:
    wire = Wire().bound()
    wire.response(lock(wire, LockItem("billing", "orders", 0)), body=locked(GRANT), arrives=0.1)
    wire.recorder.cut(1)
    assert wire.reported(PlaceReached) == []


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
def test_any_split_of_the_bytes_yields_the_same_events_at_the_last_byte(piece: int) -> None:
    whole, split = Wire().bound(), Wire().bound()
    request = encode_frame(Command(RequestCode.LOCK_BATCH_MQ, 9, body=encode_body(SessionLockBody((LockItem("billing", "orders", 0),)))))
    reply = encode_frame(Command(0, 9, RESPONSE_FLAG, body=locked(GRANT)))
    for wire, size in ((whole, len(reply)), (split, piece)):
        for data, upstream in ((request, True), (reply, False)):
            for at in range(0, len(data), size):
                wire.recorder.sent(1, upstream, data[at : at + size])
        for count in [size] * (len(reply) // size) + [len(reply) % size]:
            assert wire.reported(locks.GrantReceived) == []
            wire.recorder.delivered(1, False, count) if count else None
            if wire.reported(locks.GrantReceived):
                break
    assert split.reported() == whole.reported()
    assert len(split.reported(locks.GrantReceived)) == 1


def test_pull_is_recorded_when_its_response_arrives() -> None:
    wire = Wire().bound()
    header = PullHeader("billing", "orders", 0, 5, epoch=17)
    wire.response(wire.send_request(RequestCode.PULL_MESSAGE, header), 0, PullReply(7, 0, 9, 0, 5, 6), b"records", arrives=0.1)
    wire.response(wire.send_request(RequestCode.PULL_MESSAGE, header), ResponseCode.STALE_EPOCH, arrives=0.1)
    first, second = wire.history.of(PullReceived)
    assert (first.epoch, first.code, first.offset, first.next_offset, first.gap, first.request_t) == (17, 0, 5, 7, (5, 6), 1.001)
    assert (second.code, second.next_offset) == (ResponseCode.STALE_EPOCH, None)
    assert [(event.epoch, event.by) for event in wire.history.of(locks.StaleReceived)] == [(17, "PULL")]


def record(body: bytes) -> bytes:
    return encode_record(b"orders", 0, body, b"", born_ms=1)


def test_send_is_recorded_with_bodies_layout_and_offset() -> None:
    wire = Wire()
    header = SendRecordsHeader("orders", 0, 2, 4, 77, "p" * 32, 1, 2, 3)
    opaque = wire.send_request(RequestCode.SEND_RECORDS, header, record(b"one") + record(b"two"))
    wire.now = 1.5
    wire.response(opaque, 0, SendRecordsReply(8, 900, 1), arrives=0.1)
    queue = QueueKey("", "broker-a", "orders", 0)
    assert wire.reported() == [
        FrameWritten(1.0, "C", 9, *about(queue, 1, 1.0, None), (b"one", b"two"), (4, 77), "p" * 32, (1, 2, 3)),
        FrameResponded(1.5, "B", 2, *about(queue, 1, 1.0, None), 0, 8, 900, 1),
    ]


@pytest.mark.parametrize("code", [ResponseCode.DUPLICATE, ResponseCode.OUT_OF_SEQUENCE, ResponseCode.LAYOUT_STALE])
def test_send_that_was_not_stored_is_recorded_without_an_offset_and_counted(code: ResponseCode) -> None:
    wire = Wire()
    wire.response(
        wire.send_request(RequestCode.SEND_RECORDS, SendRecordsHeader("orders", 0, 1), record(b"one")), code, SendRecordsReply(3, 4, 1)
    )
    (responded,) = wire.history.of(FrameResponded)
    assert (responded.code, responded.offset, responded.position) == (code, -1, -1)
    assert [event.name for event in wire.history.of(PlaceReached)] == [f"{code.name} returned"]


def test_queue_free_leave_and_classic_commit_are_recorded() -> None:
    wire = Wire().bound()
    body = encode_body(QueueFreeBody((FreeQueue("billing", "orders", 0), FreeQueue("billing", "orders", 1))))
    wire.recorder.sent(1, False, encode_frame(Command(RequestCode.QUEUE_FREE, 5, ONEWAY_FLAG, body=body)))
    assert wire.reported() == [PlaceReached(1.001, "B", 2, "QUEUE_FREE pushed", f"{queue} → C") for queue in (Q0, Q1)]
    wire.send_request(RequestCode.UNREGISTER_CLIENT, UnregisterClientHeader("c", consumer_group="billing"))
    assert wire.reported(locks.LeaveSent) == [locks.LeaveSent(1.001, "C", 9, "broker-a", SESSION, "billing")]
    opaque = wire.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("billing", "orders", 0, 4))
    wire.response(opaque, ResponseCode.NO_PERMISSION)
    assert [(event.by, event.offset, event.verdict) for event in wire.history.of(CommitResponded)] == [("UPDATE", 4, ItemVerdict.REFUSED)]


def test_lock_and_unlock_of_a_classic_client_are_recorded_for_each_queue() -> None:
    wire = Wire()
    refs = tuple(QueueRef("orders", "broker-a", queue) for queue in (0, 1))
    body = encode_body(LockBatchBody("classic", "billing", refs))
    wire.response(wire.send_request(RequestCode.LOCK_BATCH_MQ, body=body), body=encode_body(LockBatchReply(refs[:1])), arrives=0.5)
    wire.response(wire.send_request(RequestCode.UNLOCK_BATCH_MQ, body=body), arrives=0.5)
    assert wire.reported() == [
        locks.ClassicLocked(1.0, "B", 2, *about(Q0, 1, 1.0, None), "classic", True),
        locks.ClassicLocked(1.0, "B", 2, *about(Q1, 1, 1.0, None), "classic", False),
        *(locks.ClassicUnlockSent(1.5, "C", 9, *about(queue, 2, 1.5, None), "classic") for queue in (Q0, Q1)),
        *(locks.ClassicUnlocked(1.5, "B", 2, *about(queue, 2, 1.5, None), "classic") for queue in (Q0, Q1)),
    ]


def test_reset_is_recorded_when_sent_and_when_it_is_confirmed() -> None:
    wire = Wire()
    body = encode_body(ResetBody("billing", "orders", (QueueOffset(0, 5), QueueOffset(1, 6))))
    opaque = wire.send_request(RequestCode.RESET_OFFSETS, body=body)
    facts = [(*about(queue, 1, 1.0, None), offset) for queue, offset in ((Q0, 5), (Q1, 6))]
    assert wire.reported() == [ResetSent(1.0, "C", 9, *each) for each in facts]
    wire.response(opaque, body=encode_body(ResetReply((QueueOffset(0, 2), QueueOffset(1, -1)))))
    assert wire.reported(ProgressReset) == [ProgressReset(1.0, "B", 2, *facts[0], 2), ProgressReset(1.0, "B", 2, *facts[1], -1)]


def test_heartbeat_that_omits_a_group_is_recorded_as_a_leave() -> None:
    wire = Wire().bound()
    wire.heartbeat("billing", "audit")
    assert wire.reported(locks.LeaveSent) == []
    wire.heartbeat("audit")
    assert [event.group for event in wire.history.of(locks.LeaveSent)] == ["billing"]
    wire.heartbeat("audit")
    assert len(wire.history.of(locks.LeaveSent)) == 1


def test_connections_to_other_servers_than_brokers_are_not_recorded() -> None:
    wire = Wire(server="N")
    wire.heartbeat("billing")
    wire.recorder.cut(1)
    assert wire.reported() == []


def test_unreadable_bytes_are_recorded_and_do_not_stop_the_recorder() -> None:
    wire = Wire().bound()
    wire.send_request(RequestCode.LOCK_BATCH_MQ, body=b"\xc1")
    wire.send_request(RequestCode.PULL_MESSAGE)
    assert [event.name for event in wire.history.of(PlaceReached)] == ["unreadable request"] * 2
    wire.response(lock(wire, LockItem("billing", "orders", 0)), body=locked(GRANT), arrives=0.1)
    assert len(wire.reported(locks.GrantReceived)) == 1
    wire.recorder.sent(1, True, b"\xff" * 64)
    wire.heartbeat()
    assert [event.name for event in wire.history.of(PlaceReached)][2:] == ["unreadable bytes sent"]

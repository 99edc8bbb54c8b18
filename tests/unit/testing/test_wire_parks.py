"""The recorder for parked keys: PARK, the progress and the end of replays, what operators request, and the keys that a LOCK names."""

from dataclasses import replace

import pytest

from lockstep.protocol.bodies import LockItem, ParkAction, ParkControlBody, ParkControlReply, ParkedKey, ParkState, ReplayKey
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.headers.park import ParkEndHeader, ParkEndReply, ParkHeader
from lockstep.protocol.headers.pull import PullHeader, PullReply
from sweep.events import parks
from sweep.events.locks import GrantReceived, LockGranted, StaleReceived
from sweep.events.progress import PullReceived
from sweep.history import PlaceReached
from unit.testing.test_wire_recorder import GRANT, Q0, Wire, about, lock, locked


@pytest.mark.parametrize("code", [0, ResponseCode.PARK_REFUSED, ResponseCode.STALE_EPOCH])
def test_park_is_recorded_when_sent_answered_and_received(code: int) -> None:
    wire = Wire()
    opaque = wire.send_request(RequestCode.PARK, ParkHeader("billing", "orders", 0, 17, 8, 3, "poisoned"))
    wire.now = 1.5
    wire.response(opaque, code, arrives=0.5)
    assert wire.reported(parks.ParkSent, parks.ParkResponded, parks.ParkReceived) == [
        parks.ParkSent(1.0, "C", 9, *about(Q0, 1, 1.0, None), 17, 8, 3),
        parks.ParkResponded(1.5, "B", 2, *about(Q0, 1, 1.0, None), 17, 8, 3, code),
        parks.ParkReceived(2.0, "C", 9, *about(Q0, 1, 1.0, None), 17, 8, 3, code),
    ]
    assert not wire.reported(StaleReceived), "the member does not end the grant for this"


@pytest.mark.parametrize(
    ("pulled", "reply", "until", "upto"),
    [(None, ParkEndReply(), None, None), (30, ParkEndReply(until=40), 40, None), (30, ParkEndReply(upto=25), None, 25)],
)
def test_progress_and_end_of_a_replay_are_recorded(pulled: int | None, reply: ParkEndReply, until: int | None, upto: int | None) -> None:
    wire = Wire()
    opaque = wire.send_request(RequestCode.PARK_END, ParkEndHeader("billing", "orders", 0, 17, "k", 25, pulled))
    wire.now = 1.5
    wire.response(opaque, 0, reply, arrives=0.5)
    facts = (*about(Q0, 1, 1.0, None), 17, "k", 25, pulled is not None, 0, until, upto)
    assert wire.reported() == [parks.ParkEndResponded(1.5, "B", 2, *facts), parks.ParkEndReceived(2.0, "C", 9, *facts)]


def test_stale_commit_of_a_replay_ends_the_grant() -> None:
    wire = Wire()
    wire.response(
        wire.send_request(RequestCode.PARK_END, ParkEndHeader("billing", "orders", 0, 17, "k", 25)), ResponseCode.STALE_EPOCH, arrives=0.1
    )
    assert [(event.queue, event.epoch, event.by) for event in wire.history.of(StaleReceived)] == [(Q0, 17, "PARK_END")]


def test_what_an_operator_requests_is_recorded_and_the_keys_that_are_listed() -> None:
    wire = Wire()
    row = ParkedKey("billing", "orders", 0, "k", 8, ParkState.REPLAYING, 3, "poisoned", 1_000)
    for action, key in ((ParkAction.DROP, "k"), (ParkAction.LIST, None)):
        opaque = wire.send_request(RequestCode.PARK_CONTROL, body=encode_body(ParkControlBody(action, "billing", None, key)))
        wire.response(opaque, body=encode_body(ParkControlReply((row,))))
    assert wire.reported() == [
        parks.ParkControlSent(1.0, "C", 9, "broker-a", "drop", "billing", "k"),
        parks.ParkControlSent(1.0, "C", 9, "broker-a", "list", "billing", None),
        parks.ParkedListed(1.0, "B", 2, "broker-a", (parks.ParkedRow(Q0, "k", 8, "replaying"),)),
    ]


def test_grant_is_recorded_with_the_keys_to_replay_and_a_pull_with_its_key() -> None:
    wire = Wire().bound()
    granted = locked(replace(GRANT, replays=(ReplayKey("k", 8), ReplayKey("d", 9, True))))
    wire.response(lock(wire, LockItem("billing", "orders", 0)), body=granted, arrives=0.1)
    (responded,), (received,) = wire.history.of(LockGranted), wire.history.of(GrantReceived)
    assert responded.replays == received.replays == (("k", 8, False), ("d", 9, True))
    for key in (None, "k"):
        pull = PullHeader("billing", "orders", 0, 5, epoch=17, key=key)
        wire.response(wire.send_request(RequestCode.PULL_MESSAGE, pull), 0, PullReply(7, 0, 9), arrives=0.1)
    assert [event.key for event in wire.history.of(PullReceived)] == [None, "k"]


@pytest.mark.parametrize(
    ("code", "header", "lost"),
    [
        (RequestCode.PARK, ParkHeader("billing", "orders", 0, 17, 8), "PARK"),
        (RequestCode.PARK_END, ParkEndHeader("billing", "orders", 0, 17, "k", 25), "the progress of a replay"),
        (RequestCode.PARK_END, ParkEndHeader("billing", "orders", 0, 17, "k", 25, 30), "the end of a replay"),
    ],
)
def test_response_that_does_not_arrive_is_counted_as_lost(code: RequestCode, header: object, lost: str) -> None:
    wire = Wire()
    wire.response(wire.send_request(code, header), 0, ParkEndReply() if code == RequestCode.PARK_END else None)
    wire.recorder.cut(1)
    assert [event.name for event in wire.reported(PlaceReached)] == [f"response to {lost} lost"]

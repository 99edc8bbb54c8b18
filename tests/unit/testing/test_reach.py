"""A reach counter counts the effect of a fault, not the fault."""

from typing import Any

import pytest

from support.broadcast_histories import AGAIN, BroadcastHistoryBuilder
from support.histories import C1, HistoryBuilder, Q
from support.pull_histories import PullHistoryBuilder, R
from sweep.events.consumers import ConsumerStarted, QueueGapSeen
from sweep.events.locks import LeaveSent, SessionBound
from sweep.events.readers import ReaderStarted
from sweep.events.universe import BrokerOpened, Fault
from sweep.journal import LogRecorder
from sweep.reach import REACH


@pytest.fixture
def log() -> LogRecorder:
    """Return a recorder that nothing has logged to."""
    return LogRecorder(lambda: (0.0, "", 0), debug=False)


@pytest.mark.parametrize(("machine", "count"), [("B", 1), ("C", 0)])
def test_snapshot_ignored_is_reached_only_if_its_broker_opens(log: LogRecorder, machine: str, count: int) -> None:
    builder = HistoryBuilder().add(Fault, 1, ("B", 0), kind="disk rot", target="B")
    assert REACH["snapshot ignored"](builder.history(), log) == 0
    builder = builder.add(BrokerOpened, 2, (machine, 2), term=101).add(BrokerOpened, 3, (machine, 3), term=102)
    assert REACH["snapshot ignored"](builder.history(), log) == count


def test_power_cut_alone_does_not_reach_a_lost_connection_or_a_log_hole(log: LogRecorder) -> None:
    builder = HistoryBuilder().add(Fault, 1, ("B", 0), kind="power", target="B")
    names = ("half-open connection given up", "unsynced hole in a log, valid records after it")
    assert [REACH[name](builder.history(), log) for name in names] == [0, 0]
    log.seen("log.holed")
    assert [REACH[name](builder.history(), log) for name in names] == [0, 1]


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("kill", "member killed, continues from its file"),
        ("power", "member lost power, continues from its file"),
        ("stop", "member stopped in order, continues after its last message"),
    ],
)
def test_member_resumption_is_reached_when_its_next_process_starts_after_the_first_message(log: LogRecorder, how: str, name: str) -> None:
    builder = BroadcastHistoryBuilder().joined(1).called(2, 2.1, 0)
    builder = builder.stopped(3) if how == "stop" else builder.killed(3, C1, how)
    assert REACH[name](builder.history(), log) == 0
    builder = builder.joined(4, 1, AGAIN)
    others = [other for other in REACH if other.startswith("member ") and other != name]
    assert REACH[name](builder.history(), log) == 1
    assert [REACH[other](builder.history(), log) for other in others] == [0] * len(others)


def test_repetition_is_reached_for_a_message_handled_by_an_earlier_process(log: LogRecorder) -> None:
    name = "member repeats handled messages"
    builder = BroadcastHistoryBuilder().joined(1).called(2, 2.1, 0).called(2.2, None, 1).killed(3, C1).joined(4, 0, AGAIN)
    assert REACH[name](builder.called(5, 6, 1, where=AGAIN).history(), log) == 0
    assert REACH[name](builder.called(5, 6, 0, where=AGAIN).history(), log) == 1


@pytest.mark.parametrize(("expression", "count"), [("A", 2), ("*", 0)])
def test_messages_skipped_by_polls_count_as_filtered_except_after_a_seek(log: LogRecorder, expression: str, count: int) -> None:
    builder = (
        PullHistoryBuilder().reader(expression=expression).given(1).polled(2, 0).polled(2.1, 2).polled(2.2, 4, 5).sought(3, 9).polled(4, 9)
    )
    assert REACH["pull: filtered by tags"](builder.history(), log) == count


def test_gap_of_a_pull_group_is_counted_as_a_pull_gap(log: LogRecorder) -> None:
    builder = (
        PullHistoryBuilder().reader().add(QueueGapSeen, 1, C1, queue=R, first=0, end=2).add(QueueGapSeen, 2, C1, queue=Q, first=0, end=2)
    )
    assert [REACH[name](builder.history(), log) for name in ("pull: gap reported", "gap reported")] == [1, 2]


@pytest.mark.parametrize(("policy", "name"), [
    ({"each": True}, "pull: read by async for"),
    ({"where": "LAST_OFFSET"}, "pull: queue of a group that began late"),
])  # fmt: skip
def test_pull_reach_depends_on_the_kind_of_reader(log: LogRecorder, policy: dict[str, Any], name: str) -> None:
    for facts, count in ((policy, 1), ({}, 0)):
        builder = PullHistoryBuilder()
        builder = builder.add(ReaderStarted, 0.5, C1, reader=1, group="readers", by_hand=False, auto=False, **facts)
        assert REACH[name](builder.given(1).polled(2, 0).history(), log) == count


def test_grace_is_reached_once_per_session_and_broker(log: LogRecorder) -> None:
    name = "grace used: renewed on a new connection"
    builder = HistoryBuilder().granted(1, 1).add(SessionBound, 2, C1, number=2).granted(2.1, 1, renewal=True).granted(3, 1, renewal=True)
    assert REACH[name](builder.history(), log) == 1
    elsewhere = HistoryBuilder().granted(1, 1).add(SessionBound, 2, C1, number=2, broker="broker-b").granted(2.1, 1, renewal=True)
    assert REACH[name](elsewhere.history(), log) == 0


@pytest.mark.parametrize(("offset", "count"), [(1, 0), (2, 1)])
def test_late_result_is_reached_only_if_it_was_unconfirmed(log: LogRecorder, offset: int, count: int) -> None:
    builder = HistoryBuilder().granted(1, 1).committed(2, 1, 1).committed(5, 1, offset, by="LOCK")
    assert REACH["result offered late and accepted"](builder.history(), log) == count


def test_leave_before_drain_is_reached_once_per_leave(log: LogRecorder) -> None:
    builder = HistoryBuilder().granted(1, 1).add(LeaveSent, 2, C1).committed(2.1, 1, 1, released=True)
    assert REACH["leave before drain"](builder.history(), log) == 1
    builder = builder.add(ConsumerStarted, 3, C1).granted(4, 2).committed(5, 2, 1, released=True)
    assert REACH["leave before drain"](builder.history(), log) == 1
    other = HistoryBuilder().granted(1, 1).add(LeaveSent, 2, C1, group="another").committed(2.1, 1, 1, released=True)
    assert REACH["leave before drain"](other.history(), log) == 0

"""M1 to M5: the copies of a log. And what a loss is for the checkers of brokers with replicas."""

from typing import Any

from lockstep.protocol.codes import ResponseCode
from support.copies_pair import BROKER, RECORD, Pair
from support.histories import ADMIN, LOG, B, HistoryBuilder, assert_faults
from sweep.checkers.facts import Brokers
from sweep.checkers.replicas import check
from sweep.checkers.services import LAW
from sweep.checkers.services import check as check_services
from sweep.events.elections import RegisterSeen
from sweep.events.replicas import CopiesAsked, LogsCompared, MasterOpened, MemberLacked
from sweep.events.sends import FrameResponded
from sweep.events.universe import Fault, PowerCut, ServerFailed

REGISTER = {
    **{"broker": BROKER, "version": 1, "log": "log", "term": 1, "master": "b", "in_sync": ("b",), "replicas": (), "write": "b-1"},
    **{"why": "created", "assumed_loss": False},
}
R = ("R", 5)
"""The promoted replica."""


def opened(t: float, where: tuple[str, int] = B, /, **facts: Any) -> HistoryBuilder:
    return HistoryBuilder().add(MasterOpened, t, where, **{"broker": BROKER, "term": 1, "may_lack": "", "assumes_loss": False, **facts})


def then(builder: HistoryBuilder, t: float = 9, where: tuple[str, int] = R, /, **facts: Any) -> HistoryBuilder:
    return builder.add(MasterOpened, t, where, **{"broker": BROKER, "term": 2, "may_lack": "", "assumes_loss": True, **facts})


def responded(builder: HistoryBuilder, t: float, where: tuple[str, int]) -> HistoryBuilder:
    return builder.add(FrameResponded, t, where, queue=LOG, code=int(ResponseCode.SUCCESS), offset=0, position=0)


def test_each_law_of_the_copies_of_a_log() -> None:
    missing, asked = ("the record at 5",), opened(1)
    assert_faults(check, {
        "a promotion": (responded(then(responded(opened(1), 2, B)), 10, R), ""),
        "nothing of it may be missing": (then(opened(1), missing=missing), "M1"),
        "unless a reason is known": (then(opened(1), missing=missing, may_lack="it was not in the set"), ""),
        "the old master goes on": (responded(then(opened(1)), 10, B), "M3"),
        "or its last responses, under a register": (responded(then(opened(1).add(RegisterSeen, 1, **REGISTER)), 10, B), ""),
        "a term that does not rise": (then(opened(1), term=1), "M3"),
        "a member that lacks something": (asked.add(MemberLacked, 3, B, broker=BROKER, member="R", position=7), "M4"),
        "equal logs": (asked.add(LogsCompared, 9, ADMIN, broker=BROKER, replica="R", since=0, until=9, differs_at=None), ""),
        "other bytes": (asked.add(LogsCompared, 9, ADMIN, broker=BROKER, replica="R", since=0, until=9, differs_at=4), "M2"),
        "one master": (asked.add(CopiesAsked, 9, ADMIN, broker=BROKER, masters=("B",), outside=()), ""),
        "no master": (asked.add(CopiesAsked, 9, ADMIN, broker=BROKER, masters=(), outside=()), "M5"),
        "two masters": (asked.add(CopiesAsked, 9, ADMIN, broker=BROKER, masters=("B", "R"), outside=()), "M5"),
        "a replica outside": (asked.add(CopiesAsked, 9, ADMIN, broker=BROKER, masters=("B",), outside=("R: None",)), "M5"),
    })  # fmt: skip


def test_master_that_may_not_open_is_excused_after_a_promotion_or_a_power_cut() -> None:
    def failed(builder: HistoryBuilder) -> HistoryBuilder:
        return builder.add(ServerFailed, 12, B, exit_code=4, error="RoleError()")

    assert_faults(check_services, {
        "nothing happened": (failed(opened(1)), LAW),
        "it was promoted elsewhere": (failed(then(opened(1))), ""),
        "its machine lost power": (failed(opened(1).add(PowerCut, 3, ("B", 0))), ""),
        "an operator tried": (failed(opened(1).add(Fault, 3, ADMIN, kind="started as master", target="B")), ""),
    })  # fmt: skip


def test_loss_of_a_broker_with_replicas_is_where_a_master_opens_that_may_lack_something() -> None:
    lacking = then(opened(1).add(PowerCut, 3, ("B", 0)), may_lack="it was not in the set").history()
    keeping = then(opened(1).add(PowerCut, 3, ("B", 0))).history()
    assert (Brokers(lacking).lossy_cuts(BROKER), Brokers(lacking).assumed_cuts(BROKER)) == ([3], [3])
    assert (Brokers(keeping).lossy_cuts(BROKER), Brokers(keeping).assumed_cuts(BROKER)) == ([], [3])
    assert Brokers(keeping).removing_cut(BROKER, 1, 0, 2.0) is None
    assert Brokers(keeping).removing_cut(BROKER, 1, 0, 2.0, written=True) == 3


def test_member_of_the_stored_set_has_each_record_when_it_is_acknowledged() -> None:
    pair = Pair()
    pair.write("B", 0, RECORD * 2)
    pair.write("R", 0, RECORD)
    assert pair.acknowledge(0) == []
    assert pair.acknowledge(12, durable=False) == []
    (lacked,) = pair.acknowledge(12, request=2)
    assert isinstance(lacked, MemberLacked)
    assert (lacked.member, lacked.position) == ("R", 12)
    pair.identity("B", role="master", member="b", members={})
    assert pair.acknowledge(12, request=3) == []


def test_member_with_sync_flush_has_it_on_its_disk() -> None:
    pair = Pair(sync=True)
    for machine in "BR":
        pair.write(machine, 0, RECORD)
    assert [type(event) for event in pair.acknowledge(0)] == [MemberLacked]
    pair.write("R", 0, RECORD, synced=True)
    assert pair.acknowledge(0) == []


def test_member_that_starts_under_its_old_id_has_everything() -> None:
    pair = Pair()
    for machine in "BR":
        pair.write(machine, 0, RECORD)
    pair.acknowledge(0)
    pair.watch.replica_started("R", (3.0, "R", 5))
    assert pair.events == []
    pair.write("R", 4, b"another!")
    pair.watch.replica_started("R", (3.0, "R", 5))
    assert [type(event) for event in pair.events] == [MemberLacked]


def test_promoted_member_lacks_nothing_and_another_replica_may() -> None:
    for members, lacks in (({"r": "R:1"}, False), ({}, True)):
        pair = Pair()
        pair.write("B", 0, RECORD)
        pair.write("R", 0, b"")
        pair.identity("B", role="master", member="b", members={})
        pair.acknowledge(0)
        pair.identity("B", role="master", member="b", members=members)
        opened = pair.promote()
        assert opened.missing == ("the record at 0",)
        assert bool(opened.may_lack) is lacks
        assert opened.assumes_loss


def test_promoted_copy_that_was_complete_assumes_no_loss() -> None:
    pair = Pair()
    pair.identity("R", role="replica", member="r", complete=True)
    assert not pair.promote().assumes_loss


def test_power_cut_of_a_master_is_a_loss_only_if_no_member_has_kept_its_bytes() -> None:
    pair = Pair()
    pair.watch.lost_power("B")
    assert pair.opens("B").may_lack == ""
    pair.watch.lost_power("R")
    pair.watch.lost_power("B")
    assert "lost power" in pair.opens("B").may_lack
    pair.watch.lost_power("R")
    pair.watch.replica_started("R", (3.0, "R", 5))  # under its old id, which says that it has everything
    pair.watch.lost_power("B")
    assert pair.opens("B").may_lack == ""

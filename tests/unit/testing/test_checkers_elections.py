"""M6 to M10: masters that are elected by a register. And what the universe reads from disks and connections for them."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from msgpack import packb  # type: ignore[import-untyped]

from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from support.copies_pair import BROKER, RECORD, Pair
from support.histories import C1, B, HistoryBuilder, Where, assert_faults, epoch
from sweep.checkers.elections import check
from sweep.connections import Frame, Link
from sweep.elections_watch import ElectionsWatch, etcd_seen
from sweep.events.elections import ConfirmedLost, CopiesInStep, DeposedAnswered, Elected, RegisterSeen, TermLacked, TermServed
from sweep.events.locks import LeaveSent, LockRefused
from sweep.events.progress import CommitSent
from sweep.events.replicas import MasterOpened
from sweep.events.sends import FrameResponded
from sweep.history import ItemVerdict
from sweep.sim_etcd import EtcdWrite

R = ("R", 5)
"""The replica, which is elected in term 2."""
ADDRESSES = (("b", "B:1"), ("r", "R:1"))


def seen(builder: HistoryBuilder, t: float, version: int, **facts: Any) -> HistoryBuilder:
    usual = {"log": "log", "term": 1, "master": "b", "in_sync": ("b", "r"), "replicas": ADDRESSES, "why": "grown", "assumed_loss": False}
    usual |= facts
    usual.setdefault("write", f"{usual['master']}-{version}")
    return builder.add(RegisterSeen, t, ("E", 0), broker=BROKER, version=version, **usual)


BASE = seen(HistoryBuilder(), 1, 1)


def elected(**facts: Any) -> HistoryBuilder:
    return seen(BASE, 5, 2, **{"term": 2, "master": "r", "why": "elected", **facts})


def by(builder: HistoryBuilder, **facts: Any) -> HistoryBuilder:
    usual = {"broker": BROKER, "term": 2, "why": "elected", "is_present": True, "others": ()}
    return builder.add(Elected, 5, ("R", 0), **{**usual, **facts})


def serves(builder: HistoryBuilder, t: float, where: Where, term: int) -> HistoryBuilder:
    return builder.add(TermServed, t, where, broker=BROKER, term=term)


def opens(builder: HistoryBuilder, t: float, where: Where, term: int) -> HistoryBuilder:
    return builder.add(MasterOpened, t, where, broker=BROKER, term=term, may_lack="", assumes_loss=False)


def answers(response: int = ResponseCode.SUCCESS, code: int = RequestCode.LOCK_BATCH_MQ) -> HistoryBuilder:
    facts = {"broker": BROKER, "term": 1, "code": int(code), "response": int(response), "request_t": 7.0, "opened_t": 6.0}
    return elected().add(DeposedAnswered, 8, B, **facts)


def test_each_law_of_elections() -> None:
    lost = {"broker": BROKER, "term": 2, "position": 7}
    alone = {"assumed_loss": True, "in_sync": ("r",), "why": "roll_call"}
    assert_faults(check, {
        "an election": (by(elected()), ""),
        "the register names the term": (serves(elected(), 6, R, 2), ""),
        "the register names no such term": (serves(elected(), 6, R, 3), "M6"),
        "the register names it later": (serves(elected(), 4, R, 2), "M6"),
        "another copy serves it": (serves(elected(), 6, B, 2), "M6"),
        "another copy opens in it": (opens(elected(), 6, B, 2), "M6"),
        "another process serves it": (serves(opens(elected(), 6, R, 2), 7, ("R", 6), 2), "M6"),
        "its bytes are others": (elected().add(ConfirmedLost, 6, R, **lost, may_lack=""), "M7"),
        "and all have lost their power": (elected().add(ConfirmedLost, 6, R, **lost, may_lack="power"), ""),
        "a deposed master answers": (answers(), "M8"),
        "that it is none": (answers(ResponseCode.NOT_LEADER), ""),
        "by its status": (answers(code=RequestCode.REPLICA_STATUS), ""),
        "by what is confirmed": (answers(code=RequestCode.PULL_MESSAGE), ""),
        "that nothing is there yet": (answers(ResponseCode.PULL_NOT_FOUND, RequestCode.PULL_MESSAGE), ""),
        "by an offset that has moved": (answers(ResponseCode.PULL_OFFSET_MOVED, RequestCode.PULL_MESSAGE), "M8"),
        "the set shrinks": (seen(BASE, 5, 2, in_sync=("b",)), ""),
        "a member changes it": (seen(BASE, 5, 2, in_sync=("b",), write="r-2"), "M9"),
        "the value is read again": (seen(BASE, 5, 1, in_sync=("b",), write="r-2"), ""),
        "an election with another set": (elected(in_sync=("r",)), "M9"),
        "somebody from outside": (seen(seen(BASE, 2, 2, in_sync=("b",)), 5, 3, term=2, master="r", in_sync=("b", "r")), "M9"),
        "an election in the same term": (elected(term=1), "M9"),
        "in an earlier one": (elected(term=0), "M9"),
        "of another log": (elected(log="other"), "M9"),
        "another member than it was": (by(elected(), is_present=False), "M9"),
        "a roll call": (by(elected(**alone)), ""),
        "with others in the set": (elected(assumed_loss=True), "M9"),
        "in step": (BASE.add(CopiesInStep, 9, ("", 0), seconds=20.0), ""),
        "in step too late": (BASE.add(CopiesInStep, 9, ("", 0), seconds=20.1), "M11"),
        "who may be elected lacks the term": (elected().add(TermLacked, 6, R, broker=BROKER, member="B", term=2), "M6"),
        "while one has everything": (by(elected(**alone), others=("B",)), "M10"),
    })  # fmt: skip


def holds(builder: HistoryBuilder, **opened: Any) -> HistoryBuilder:
    """A session that is granted a queue, and proven; then another master opens."""
    builder = builder.granted(2, 1).proven(3).add(FrameResponded, 3.1, B)
    facts = {"broker": BROKER, "term": 2, "may_lack": "", "assumes_loss": False, **opened}
    return builder.add(MasterOpened, 6, R, **facts)


def stale(builder: HistoryBuilder, t: float = 6.5, number: int = 1) -> HistoryBuilder:
    return builder.add(LockRefused, t, R, epoch=epoch(number), verdict=ItemVerdict.STALE, request_t=t - 0.1)


def test_who_held_a_queue_is_renewed_by_the_next_master() -> None:
    base = holds(elected())
    assert_faults(check, {
        "his epoch is over": (stale(base), "M10"),
        "and a loss was assumed": (stale(holds(elected(), assumes_loss=True)), ""),
        "by a master that ended before it told him": (
            stale(opens(seen(holds(elected(), assumes_loss=True), 6.1, 3, term=3, master="r", why="elected"), 6.2, R, 3)),
            "",
        ),
        "he was silent before": (stale(holds(elected().add(FrameResponded, 4, B))), ""),
        "another epoch is": (stale(base, number=7), ""),
        "he was late": (stale(base, t=7.5), ""),
        "he had released it": (stale(base.add(CommitSent, 5.5, C1, released=True)), ""),
        "he had left": (stale(base.add(LeaveSent, 5.5, C1, group="billing")), ""),
    })  # fmt: skip


class Elections(Pair):
    """The same pair under a register; B is open in term 1."""

    def __init__(self, *, sync: bool = False) -> None:
        super().__init__(sync=sync)
        machines = {BROKER: ["B", "R"]}
        self.running = {"B": 1, "R": 5}
        self.watch: Any = ElectionsWatch(machines, self.disks.__getitem__, 1 << 10, self.events.append, sync=sync, alive=self.running.get)
        self.version = 0
        self.register()
        self.watch.opened(BROKER, 1, (1.0, "B", 1))
        self.events.clear()

    def register(self, **facts: Any) -> list[Any]:
        self.version += 1
        entry = {"log": "log", "term": 1, "master": "b", "in_sync": ["b", "r"], "replicas": dict(ADDRESSES), "why": "grown", "write": "b-1"}
        value = json.dumps({"format": 1, "assumed_loss": False, **entry, **facts}).encode()
        self.watch.noted(etcd_seen(EtcdWrite(5.0, f"lockstep/x/brokers/{BROKER}", self.version, 0, value)))
        found, self.events[:] = list(self.events), []
        return found


def test_members_of_the_set_in_the_register_have_each_record() -> None:
    pair = Elections()
    pair.write("B", 0, RECORD)
    assert len(pair.acknowledge(0)) == 1
    pair.register(in_sync=["b"])
    assert pair.acknowledge(0) == []


@pytest.mark.parametrize(
    ("cut", "is_present", "others"), [((), True, ("B",)), (("R",), False, ("B",)), (("B",), True, ()), (("B", "R"), False, ())]
)
def test_election_tells_who_has_kept_everything(cut: tuple[str, ...], is_present: bool, others: tuple[str, ...]) -> None:
    pair = Elections()
    for machine in cut:
        pair.running.pop(machine)
        pair.watch.lost_power(machine)
    found = pair.register(term=2, master="r", why="elected")
    assert (found[0].machine, found[0].is_present, found[0].others) == ("R", is_present, others)
    assert len(found) == (1 if "B" in cut else 2)  # and that the old master runs


def test_power_cut_under_sync_flush_loses_nothing() -> None:
    pair = Elections(sync=True)
    pair.watch.lost_power("R")
    assert pair.register(term=2, master="r", why="elected")[0].is_present


@pytest.mark.parametrize("everybody", [False, True])
def test_assumed_loss_is_one_if_nobody_has_kept_everything(everybody: bool) -> None:
    pair = Elections()
    pair.write("B", 0, RECORD)
    pair.write("R", 0, b"")
    pair.acknowledge(0)
    pair.watch.lost_power("R")
    if everybody:
        pair.watch.lost_power("B")
    pair.identity("R", role="replica", member="r2")
    pair.register(term=2, master="r2", in_sync=["r2"], replicas={"r2": "R:1"}, why="roll_call", assumed_loss=True)
    pair.watch.opened(BROKER, 2, (9.0, "R", 2))
    (opened,) = (event for event in pair.events if isinstance(event, MasterOpened))
    assert opened.assumes_loss
    assert (opened.missing, bool(opened.may_lack)) == (("the record at 0",), everybody)


def answered(pair: Elections, where: Where, code: RequestCode, t: float, **fields: Any) -> list[Any]:
    """Let the process at a place answer a request that was written at `t`."""
    client, server = (SimpleNamespace(number=number, machine=SimpleNamespace(name=name)) for name, number in (("C", 21), where))
    link = Link(1, client, server, BROKER, {})  # type: ignore[arg-type]
    response = Command(int(ResponseCode.SUCCESS), fields=fields)
    pair.watch.answered(Frame(link, response, 12.0), Frame(link, Command(int(code)), t))
    found, pair.events[:] = list(pair.events), []
    return found


def test_answer_counts_by_when_its_request_was_written() -> None:
    pair = Elections()
    assert answered(pair, B, RequestCode.SYNC, 11.0) == []
    pair.register(term=2, master="r", why="elected")
    pair.watch.opened(BROKER, 2, (9.0, "R", 2))
    pair.events.clear()
    (late,) = answered(pair, B, RequestCode.SYNC, 9.5)
    assert (late.machine, late.term, late.code, late.opened_t) == ("B", 1, RequestCode.SYNC, 9.0)
    assert answered(pair, B, RequestCode.SYNC, 8.5) == []
    assert answered(pair, ("R", 2), RequestCode.SYNC, 9.5) == []


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_master_told_as_confirmed_is_compared_with_the_next_one(kept: bool) -> None:
    pair = Elections()
    pair.write("B", 0, RECORD)
    reply = {"number": 1, "term": 1, "crc": 0, "confirmed": 12, "logStart": 0, "written": 12, "timeMs": 0, "complete": False}
    assert [type(event) for event in answered(pair, B, RequestCode.REPLICA_FETCH, 3.0, **reply)] == [TermServed]
    assert answered(pair, B, RequestCode.REPLICA_FETCH, 3.0, **reply) == []
    pair.write("R", 0, RECORD if kept else RECORD[:7] + b"other")
    pair.register(term=2, master="r", why="elected")
    pair.watch.opened(BROKER, 2, (9.0, "R", 2))
    lost = [event.position for event in pair.events if isinstance(event, ConfirmedLost)]
    assert lost == ([] if kept else [7])


def test_member_without_the_term_of_an_open_master_is_noticed() -> None:
    pair = Elections()
    pair.register(term=2, master="r", why="elected")
    pair.watch.opened(BROKER, 2, (9.0, "R", 2))
    assert [event.member for event in pair.events if isinstance(event, TermLacked)] == ["B"]
    pair.write("B", 0, packb(["log.term", 2, 0, False, 1]))
    pair.events.clear()
    pair.watch.opened(BROKER, 2, (9.0, "R", 2))
    assert not any(isinstance(event, TermLacked) for event in pair.events)

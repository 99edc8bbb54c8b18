"""A place counts as reached by what came of a fault, not by the fault."""

from typing import Any, cast

import pytest

from lockstep.testing.sweep.events import BrokerOpened, Fault
from lockstep.testing.sweep.journal import LogTap
from lockstep.testing.sweep.reach import REACH
from support.member_stories import AGAIN, MemberStory
from support.stories import Story


@pytest.fixture
def log() -> LogTap:
    """Of no universe: nothing is logged in it."""
    return LogTap(cast(Any, None), debug=False)


@pytest.mark.parametrize(("machine", "count"), [("B", 1), ("C", 0)])
def test_a_snapshot_is_ignored_when_its_broker_opens_all_the_same(log: LogTap, machine: str, count: int) -> None:
    story = Story().add(Fault, 1, ("B", 0), kind="disk rot", target="B")
    assert REACH["snapshot ignored"](story.history(), log) == 0
    story.add(BrokerOpened, 2, (machine, 2), term=101).add(BrokerOpened, 3, (machine, 3), term=102)
    assert REACH["snapshot ignored"](story.history(), log) == count


def test_a_power_cut_alone_gives_up_no_connection_and_leaves_no_hole(log: LogTap) -> None:
    story = Story().add(Fault, 1, ("B", 0), kind="power", target="B")
    names = ("half-open connection given up", "unsynced hole in a log, good records behind it")
    assert [REACH[name](story.history(), log) for name in names] == [0, 0]
    log.seen("log.holed")
    assert [REACH[name](story.history(), log) for name in names] == [0, 1]


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("kill", "member killed, goes on from its file"),
        ("power", "member without power, goes on from its file"),
        ("stop", "member stopped in order, goes on behind"),
    ],
)
def test_a_member_goes_on_when_its_next_process_does_behind_the_first_message(log: LogTap, how: str, name: str) -> None:
    story = MemberStory().joined(1).called(2, 2.1, 0)
    story = story.stopped(3) if how == "stop" else story.killed(3, how=how)
    assert REACH[name](story.history(), log) == 0
    story.joined(4, 1, AGAIN)
    others = [other for other in REACH if other.startswith("member ") and other != name]
    assert REACH[name](story.history(), log) == 1
    assert [REACH[other](story.history(), log) for other in others] == [0] * len(others)


def test_a_repeat_is_what_another_process_of_the_machine_has_handled(log: LogTap) -> None:
    name = "member repeats what it had handled"
    story = MemberStory().joined(1).called(2, 2.1, 0).called(2.2, None, 1).killed(3).joined(4, 0, AGAIN)
    assert REACH[name](story.called(5, 6, 1, where=AGAIN).history(), log) == 0
    assert REACH[name](story.called(5, 6, 0, where=AGAIN).history(), log) == 1

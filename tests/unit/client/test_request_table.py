"""A request is answered by the first reply before its deadline, and by no other."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from lockstep.client.producer.machines.request_table import ReplyVerdict, RequestTable

V = ReplyVerdict


def waiting(*ids: str, count_max: int = 4) -> RequestTable[str]:
    """Return a table in which these requests wait until 100 ms."""
    table: RequestTable[str] = RequestTable(count_max)
    for each in ids:
        table.add(each, 100, f"waiter of {each}")
    return table


@pytest.mark.parametrize(("now_ms", "verdict"), [(99, V.COUNTED), (100, V.LATE), (101, V.LATE)])
def test_reply_counts_before_the_deadline_even_if_the_timer_is_late(now_ms: int, verdict: ReplyVerdict) -> None:
    table = waiting("a")
    waiter = "waiter of a" if verdict is V.COUNTED else None
    assert table.take("a", "r", now_ms) == (verdict, waiter)
    assert table.dropped_count == int(verdict is V.LATE)
    assert table.waits("a") is (verdict is V.LATE), "its timer ends it"


def test_second_reply_is_dropped_and_the_first_one_repeated_is_not() -> None:
    table = waiting("a")
    assert table.take("a", "first", 1)[0] is V.COUNTED
    assert table.take("a", "second", 2) == (V.ANSWERED, None)
    assert table.take("a", "first", 500) == (V.REPEATED, None)
    assert table.dropped_count == 1


def test_replies_without_an_id_are_not_taken_for_one() -> None:
    table = waiting("a")
    assert table.take("a", "", 1)[0] is V.COUNTED
    assert table.take("a", "", 1)[0] is V.ANSWERED


def test_reply_after_the_end_of_its_request_is_told_why_it_is_dropped() -> None:
    table = waiting("late", "cancelled")
    assert table.expire("late") == "waiter of late"
    table.abandon("cancelled")
    assert [table.take(each, "r", 1)[0] for each in ("late", "cancelled", "never")] == [V.LATE, V.ABANDONED, V.UNKNOWN]
    assert table.dropped_count == 3
    assert all(verdict.value for verdict in V if not verdict.is_accepted)


def test_request_ends_once() -> None:
    table = waiting("a")
    table.take("a", "r", 1)
    assert table.expire("a") is None
    table.abandon("a")
    assert table.take("a", "s", 1)[0] is V.ANSWERED


def test_limit_counts_those_that_wait_and_as_many_that_have_ended_are_remembered() -> None:
    table = waiting("a", "b", count_max=2)
    assert table.is_full
    assert list(table) == ["waiter of a", "waiter of b"]
    for each in "abcd":
        if each > "b":
            assert not table.is_full
            table.add(each, 100, each)
        table.take(each, "r", 1)
    assert [table.knows(each) for each in "abcd"] == [False, False, True, True]
    assert len(table) == 0


class Model(RuleBasedStateMachine):
    """Any order of events: the table agrees with what has happened to each request."""

    requests = Bundle("requests")
    COUNT_MAX = 3

    def __init__(self) -> None:
        super().__init__()
        self.table: RequestTable[str] = RequestTable(self.COUNT_MAX)
        self.now_ms = 0
        self.number = 0
        self.deadlines: dict[str, int] = {}
        """Of those that wait."""
        self.ended: dict[str, tuple[ReplyVerdict, str]] = {}
        """In the order in which they ended."""
        self.counted: list[str] = []
        self.dropped = 0

    @rule(target=requests, timeout_ms=st.integers(1, 5))
    def begin(self, timeout_ms: int) -> str:
        if self.table.is_full:
            return "refused"
        self.number += 1
        name = str(self.number)
        self.table.add(name, self.now_ms + timeout_ms, name)
        self.deadlines[name] = self.now_ms + timeout_ms
        return name

    @rule(ms=st.integers(0, 4))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @rule(name=requests, reply_id=st.sampled_from(["", "r", "s"]))
    def reply(self, name: str, reply_id: str) -> None:
        verdict, waiter = self.table.take(name, reply_id, self.now_ms)
        expected = self.expected(name, reply_id)
        assert verdict is expected
        assert waiter == (name if expected is V.COUNTED else None)
        if expected is V.COUNTED:
            self.counted.append(name)
            self.end(name, V.ANSWERED, reply_id)
        self.dropped += not expected.is_accepted

    def expected(self, name: str, reply_id: str) -> ReplyVerdict:
        if name in self.deadlines:
            return V.COUNTED if self.now_ms < self.deadlines[name] else V.LATE
        verdict, answer = dict(list(self.ended.items())[-self.COUNT_MAX :]).get(name, (V.UNKNOWN, ""))
        return V.REPEATED if answer and answer == reply_id else verdict

    @rule(name=requests, end=st.sampled_from(["expire", "abandon"]))
    def stop(self, name: str, end: str) -> None:
        getattr(self.table, end)(name)
        self.end(name, V.LATE if end == "expire" else V.ABANDONED, "")

    def end(self, name: str, *how: Any) -> None:
        if self.deadlines.pop(name, None) is not None:
            self.ended[name] = how

    @invariant()
    def agrees(self) -> None:
        assert list(self.table) == list(self.deadlines)
        assert len(self.counted) == len(set(self.counted)), "at most one reply counts"
        assert self.table.dropped_count == self.dropped
        assert self.table.is_full is (len(self.deadlines) == self.COUNT_MAX)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

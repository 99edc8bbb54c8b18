"""The start of a group: by its policy, known for all queues at once, and no later message is skipped."""

import pytest

from support.histories import C1, C2, LOG, B, HistoryBuilder, Q
from support.pull_histories import PullHistoryBuilder
from sweep.checkers.starts import check
from sweep.events.consumers import ConsumerStarted
from sweep.events.locks import LockRefused
from sweep.events.readers import ReaderStarted
from sweep.events.sends import LayoutSent
from sweep.events.universe import BrokerOpened, PowerCut, ProcessEnded
from sweep.history import ItemVerdict


def begins(where: str, offset: int, *, t: float = 2.5, since_t: float = 0.0, flush: str = "async") -> HistoryBuilder:
    """m0 … m3 are sent at 1, 2, 3 and 4. C1 is the first to request the queue, and it is granted at `t` with `offset`."""
    builder = HistoryBuilder(flush=flush).add(ConsumerStarted, 0.5, C1, where=where, since_t=since_t)
    for number in range(4):
        builder.sent(number + 1, b"m%d" % number, number)
    return builder.granted(t, 1, offset=offset).read(9, b"m0", b"m1", b"m2", b"m3")


@pytest.mark.parametrize(("offset", "laws"), [(0, ["start"]), (1, ["start"]), (2, []), (3, ["O5"]), (4, ["O5"])])
def test_last_offset_is_the_end_of_the_queue_at_the_first_lock(offset: int, laws: list[str]) -> None:
    """m0 and m1 were stored, m2 and m3 arrived later."""
    assert begins("LAST_OFFSET", offset).broken(check) == laws


@pytest.mark.parametrize(("created_t", "offset", "laws"), [(0.4, 0, ["start"]), (2.49, 0, ["start"]), (2.6, 0, []), (2.6, 1, ["start"])])
def test_group_that_ran_when_its_topic_was_created_begins_at_the_first_message(created_t: float, offset: int, laws: list[str]) -> None:
    """The consumer starts at 0.5, and has joined every broker 2 s later."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, where="LAST_OFFSET", since_t=0.0)
    builder.add(LayoutSent, created_t, ("A", 31), counter=1, deleted=False)
    builder.sent(3, b"m0", 0).granted(4, 1, offset=offset).read(9, b"m0")
    assert builder.broken(check) == laws


def test_message_between_a_lock_and_its_response_may_be_before_or_after_the_start() -> None:
    for offset in (1, 2):
        assert begins("LAST_OFFSET", offset, t=2.002).broken(check) == []


@pytest.mark.parametrize(("since_t", "offset", "laws"), [
    (1.5, 1, []),
    (1.5, 0, ["start"]),
    (1.5, 2, ["O5"]),
    (2.0, 1, []),
    (2.001, 2, []),
    (1.75, 2, []),
    (1.7, 2, ["O5"]),
    (2.25, 1, []),
    (2.3, 1, ["start"]),
    (0.0, 0, []),
    (0.0, 1, ["O5"]),
])  # fmt: skip
def test_timestamp_start_selects_the_first_message_at_or_after_it(since_t: float, offset: int, laws: list[str]) -> None:
    assert begins("TIMESTAMP", offset, t=3.5, since_t=since_t).broken(check) == laws


@pytest.mark.parametrize(("offset", "laws"), [(0, []), (1, ["start"])])
def test_first_offset_is_the_beginning_of_the_log(offset: int, laws: list[str]) -> None:
    assert begins("FIRST_OFFSET", offset).broken(check) == laws


@pytest.mark.parametrize(
    ("verdict", "laws"), [(ItemVerdict.HELD, ["O5"]), (ItemVerdict.WAIT, ["O5"]), (ItemVerdict.NOT_YOURS, []), (ItemVerdict.REFUSED, [])]
)
def test_broker_that_responded_for_one_queue_has_the_start_of_all_queues(verdict: ItemVerdict, laws: list[str]) -> None:
    """The response at 1.5 is for queue 1. Queue 0, which C1 gets at 2.5, starts before m1 (sent at 2). NOT_YOURS may mean no member."""
    builder = begins("LAST_OFFSET", 2).add(LockRefused, 1.5, B, queue=Q._replace(queue=1), verdict=verdict, epoch=None)
    assert builder.broken(check) == laws


@pytest.mark.parametrize(("flush", "laws"), [("sync", ["O5"]), ("async", [])])
def test_crash_loses_the_start_only_with_a_lost_suffix(flush: str, laws: list[str]) -> None:
    """Queue 1 was granted at 1.5, the power was cut at 1.7; under async flush the record may be gone."""
    builder = begins("LAST_OFFSET", 2, flush=flush).granted(1.5, 2, C2, queue=Q._replace(queue=1))
    builder.add(ProcessEnded, 1.7, B, how="power").add(PowerCut, 1.7, ("B", 0)).add(BrokerOpened, 1.8, ("B", 2), term=101, flush=flush)
    assert builder.broken(check) == laws


def test_added_queue_may_start_at_0_with_any_policy() -> None:
    assert begins("LAST_OFFSET", 0).add(LayoutSent, 0.9, ("A", 31), counter=2, deleted=False).broken(check) == []
    assert begins("LAST_OFFSET", 0).add(LayoutSent, 1.1, ("A", 31), counter=2, deleted=False).broken(check) == ["start"]
    assert begins("LAST_OFFSET", 3).add(LayoutSent, 0.9, ("A", 31), counter=2, deleted=False).broken(check) == ["O5"]


def test_unkeyed_message_in_two_queues_counts_from_its_arrival_in_each() -> None:
    other = LOG._replace(queue=1)
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, where="LAST_OFFSET").sent(1, b"m0", 0, key=None, queue=other)
    builder.granted(2.5, 1, offset=0).sent(3, b"m0", 0, key=None).read(9, b"m0").read(9, b"m0", queue=other)
    assert builder.broken(check) == []


@pytest.mark.parametrize(("where", "since_t", "offset", "laws"), [
    ("FIRST_OFFSET", 0.0, 0, []),
    ("FIRST_OFFSET", 0.0, 1, ["start"]),
    ("LAST_OFFSET", 0.0, 1, ["start"]),
    ("LAST_OFFSET", 0.0, 2, []),
    ("LAST_OFFSET", 0.0, 3, ["O5"]),
    ("TIMESTAMP", 1.5, 0, ["start"]),
    ("TIMESTAMP", 1.5, 1, []),
    ("TIMESTAMP", 1.5, 2, ["O5"]),
])  # fmt: skip
def test_start_policies_apply_to_pull_consumers(where: str, since_t: float, offset: int, laws: list[str]) -> None:
    """m0 … m3 are sent at 1, 2, 3 and 4. The first member starts at 2.4 and receives the start offset at 2.5."""
    builder = PullHistoryBuilder()
    builder.add(ReaderStarted, 2.4, C1, reader=1, group="readers", by_hand=False, auto=True, where=where, since_t=since_t)
    for number in range(4):
        builder.sent(number + 1, b"m%d" % number, number)
    assert builder.given(2.5, offset).read(9, b"m0", b"m1", b"m2", b"m3").broken(check) == laws

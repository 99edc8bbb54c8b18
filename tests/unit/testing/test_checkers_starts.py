"""The start of a group: by its policy, known for all queues at once, and no later message is skipped."""

from typing import TypeVar

from support.histories import ADMIN, C1, C2, LOG, B, HistoryBuilder, Q, assert_faults
from support.pull_histories import PullHistoryBuilder
from sweep.checkers.starts import check
from sweep.events.consumers import ConsumerStarted
from sweep.events.locks import LockRefused
from sweep.events.readers import ReaderStarted
from sweep.events.sends import LayoutSent
from sweep.history import ItemVerdict

Builder = TypeVar("Builder", bound=HistoryBuilder)


def four_sent(builder: Builder) -> Builder:
    """Send m0 … m3 at 1, 2, 3 and 4."""
    for number in range(4):
        builder = builder.sent(number + 1, b"m%d" % number, number)
    return builder.read(9, b"m0", b"m1", b"m2", b"m3")


def begins(where: str, offset: int, *, t: float = 2.5, since_t: float = 0.0, flush: str = "async") -> HistoryBuilder:
    """C1 is the first to request the queue, and it is granted at `t` with `offset`."""
    builder = HistoryBuilder(flush=flush).add(ConsumerStarted, 0.5, C1, where=where, since_t=since_t)
    return four_sent(builder).granted(t, 1, offset=offset)


def test_group_begins_where_its_policy_says() -> None:
    """At 2.5 m0 and m1 were stored, m2 and m3 arrived later. A time may be a quarter of a second off."""
    last = ((0, "start"), (1, "start"), (2, ""), (3, "O5"), (4, "O5"))
    stamps = [(1.5, 1, ""), (1.5, 0, "start"), (1.5, 2, "O5"), (2.0, 1, ""), (2.001, 2, ""), (1.75, 2, ""), (1.7, 2, "O5")]
    stamps += ((2.25, 1, ""), (2.3, 1, "start"), (0.0, 0, ""), (0.0, 1, "O5"))
    assert_faults(check, {
        "FIRST_OFFSET at the first message": (begins("FIRST_OFFSET", 0), ""),
        "FIRST_OFFSET at the second message": (begins("FIRST_OFFSET", 1), "start"),
        **{f"LAST_OFFSET at {offset}": (begins("LAST_OFFSET", offset), laws) for offset, laws in last},
        **{f"LAST_OFFSET at {offset}, which was sent with the LOCK": (begins("LAST_OFFSET", offset, t=2.002), "") for offset in (1, 2)},
        **{f"TIMESTAMP {t} at {offset}": (begins("TIMESTAMP", offset, t=3.5, since_t=t), laws) for t, offset, laws in stamps},
    })  # fmt: skip


def test_start_policies_apply_to_pull_consumers() -> None:
    """The first member starts at 2.4 and receives the start offset at 2.5."""

    def given(where: str, since_t: float, offset: int) -> HistoryBuilder:
        facts = {"reader": 1, "group": "readers", "by_hand": False, "auto": True, "where": where, "since_t": since_t}
        return four_sent(PullHistoryBuilder().add(ReaderStarted, 2.4, C1, **facts)).given(2.5, offset)

    offsets = {"FIRST_OFFSET": ((0, ""), (1, "start")), "LAST_OFFSET": ((1, "start"), (2, ""), (3, "O5"))}
    offsets["TIMESTAMP"] = ((0, "start"), (1, ""), (2, "O5"))
    rows = {f"{where} at {offset}": (given(where, 1.5, offset), laws) for where, each in offsets.items() for offset, laws in each}
    assert_faults(check, rows)


def test_group_that_ran_when_its_topic_was_created_begins_at_the_first_message() -> None:
    """The consumer starts at 0.5, and has joined every broker 2 s later."""

    def created(t: float, offset: int) -> HistoryBuilder:
        builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, where="LAST_OFFSET", since_t=0.0)
        builder = builder.add(LayoutSent, t, ADMIN, counter=1, deleted=False)
        return builder.sent(3, b"m0", 0).granted(4, 1, offset=offset).read(9, b"m0")

    assert_faults(check, {
        "before the consumer": (created(0.4, 0), "start"), "before it has joined": (created(2.49, 0), "start"),
        "after it has joined": (created(2.6, 0), ""), "after it has joined, at the end": (created(2.6, 1), "start"),
    })  # fmt: skip


def test_broker_that_responded_for_one_queue_has_the_start_of_all_queues() -> None:
    """Queue 0, which C1 gets at 2.5, starts before m1 (sent at 2). Under async flush the record may be gone."""
    other = Q._replace(queue=1)
    responses = {ItemVerdict.HELD: "O5", ItemVerdict.WAIT: "O5", ItemVerdict.NOT_YOURS: "", ItemVerdict.REFUSED: ""}

    def refused(verdict: ItemVerdict) -> HistoryBuilder:
        return begins("LAST_OFFSET", 2).add(LockRefused, 1.5, B, queue=other, verdict=verdict, epoch=None)

    def granted(flush: str) -> HistoryBuilder:
        return begins("LAST_OFFSET", 2, flush=flush).granted(1.5, 2, C2, queue=other).power_cut(1.7, 1.8)

    rows = {str(verdict): (refused(verdict), laws) for verdict, laws in responses.items()}
    assert_faults(check, {**rows, "granted, sync": (granted("sync"), "O5"), "granted, async": (granted("async"), "")})


def test_added_queue_may_start_at_0_with_any_policy() -> None:
    """An unkeyed message in two queues counts from its arrival in each."""

    def added(t: float, offset: int) -> HistoryBuilder:
        return begins("LAST_OFFSET", offset).add(LayoutSent, t, ADMIN, counter=2, deleted=False)

    other = LOG._replace(queue=1)
    moved = HistoryBuilder().add(ConsumerStarted, 0.5, C1, where="LAST_OFFSET").sent(1, b"m0", 0, key=None, queue=other)
    moved = moved.granted(2.5, 1, offset=0).sent(3, b"m0", 0, key=None).read(9, b"m0").read(9, b"m0", queue=other)
    assert_faults(check, {
        "added before its first message": (added(0.9, 0), ""), "added after its first message": (added(1.1, 0), "start"),
        "added, and begun at its end": (added(0.9, 3), "O5"), "a message in two queues": (moved, ""),
    })  # fmt: skip

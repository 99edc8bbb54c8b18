"""P1, O5 and R5 of pull consumers: polls, commits, the result of commit(), no skipped message, the end is reached."""

from typing import Any

from lockstep.protocol.codes import ResponseCode
from support.histories import C1, C2, LOG, B, assert_faults
from support.pull_histories import PullHistoryBuilder, R
from sweep.checkers.concurrent import check as check_generations
from sweep.checkers.progress import check as check_progress
from sweep.checkers.readers import check
from sweep.events.consumers import QueueGapSeen
from sweep.events.progress import CommitReceived, CommitResponded, ProgressResponded, PullReceived
from sweep.history import ItemVerdict

STALE = ItemVerdict.STALE
Builder = PullHistoryBuilder
BEGAN = Builder().reader().given(1)
POLLED = BEGAN.polled(2, 0, 1)
AUTO = Builder().reader(auto=True).given(1).polled(2, 0, 1)


def done(*offsets: int, t: float = 2.5) -> Builder:
    """C1 has polled these messages and reported them as done."""
    return BEGAN.polled(2, *(offsets or (0, 1))).done(t)


def gap(builder: Builder, t: float, first: int, end: int) -> Builder:
    return builder.add(QueueGapSeen, t, C1, queue=R, first=first, end=end)


def test_polls_return_consecutive_offsets_once() -> None:
    back, forward = POLLED.sought(2.5, 0), POLLED.sought(2.5, 5)
    another = POLLED.reader(0.6, C2).given(4, 0, where=C2).polled(5, 0, 1, where=C2)
    assert_faults(check, {
        "in order": (BEGAN.polled(2, 0, 1, 2), ""), "later": (BEGAN.polled(2, 1, 2), "P1"), "a hole": (BEGAN.polled(2, 0, 2), "P1"),
        "twice": (BEGAN.polled(2, 0, 0), "P1"), "the next": (POLLED.polled(3, 2), ""), "again": (POLLED.polled(3, 1), "P1"),
        "left out": (POLLED.polled(3, 3), "P1"),
        "no gap": (BEGAN.polled(2, 3), "P1"), "a gap": (gap(BEGAN.polled(2, 3), 1.5, 0, 3), ""),
        "sought back": (back.polled(3, 0), ""), "sought forward": (forward.polled(3, 5), ""), "not back": (back.polled(3, 2), "P1"),
        "not forward": (forward.polled(3, 2), "P1"), "further": (forward.polled(3, 6), "P1"),
        "sought before the grant": (Builder().reader().sought(0.7, 4).given(1).polled(2, 4), ""),
        "not sought": (Builder().reader().sought(0.7, 4).given(1).polled(2, 0), "P1"),
        "another member": (another, ""), "and again": (another.polled(6, 1, where=C2), "P1"),
    })  # fmt: skip


def test_polls_are_of_assigned_queues_that_are_not_paused() -> None:
    # A seek and a pause apply only while the queue is assigned.
    left = Builder().reader().sought(0.7, 4).paused(0.7, 9).unassigned(0.8).given(1).polled(2, 0)
    reader = Builder().reader()
    assert_faults(check, {
        "revoked": (BEGAN.taken(2).polled(2.1, 0), "P1"), "never granted": (Builder().reader().polled(2, 0), "P1"),
        "not assigned": (BEGAN.polled(2, 0, assigned=False), "P1"), "granted again": (BEGAN.taken(2).given(3).polled(3.1, 0), ""),
        "paused": (BEGAN.paused(2, 4).polled(3, 0), "P1"), "resumed": (BEGAN.paused(2, 2.5).polled(3, 0), ""),
        "unassigned": (left, ""), "at the seek of before": (left.polled(3, 4), "P1"),
        "granted where the broker responded": (reader.given(1, 3, responded=3), ""), "before": (reader.given(1, 3, responded=2), "P1"),
        "after": (reader.given(1, 3, responded=4), "P1"),
    })  # fmt: skip


def tagged(expression: str, tags: str = "ABAB") -> Builder:
    """m0, m1 and so on have these tags and exist from the beginning. C1 reads those that its subscription selects."""
    builder = Builder().reader(expression=expression).given(1)
    for number, tag in enumerate(tags):
        builder = builder.sent(0.1 + number / 100, b"m%d" % number, number, tags=tag)
    return builder


def test_polled_message_without_a_matching_tag_is_a_violation() -> None:
    """Polls and commits skip only filtered messages, and removed ones that other members have committed."""
    selected = (("A", 0, ""), ("A", 1, "P1 P1"), ("B", 1, ""), ("B", 0, "P1"), ("A || B", 0, ""), ("*", 0, ""), ("C || *", 0, ""))

    def lagging(removed: tuple[int, int] | None, committed: int) -> Builder:
        """C2 handled m2 to m4 while C1 was suspended."""
        builder = POLLED.done(2.1).reader(2.2, C2).given(2.5, 0, where=C2).polled(2.6, 0, 1, 2, 3, 4, where=C2)
        return builder.done(2.7, where=C2).moved(2.8, committed, where=C2).pulled(3, 2, 7, removed).polled(3.1, 7).done(3.2).moved(3.3, 8)

    assert_faults(check, {
        **{f"m{offset} for {expression}": (tagged(expression).polled(2, offset), laws) for expression, offset, laws in selected},
        "the selected ones": (tagged("A").polled(2, 0, 2).done(3).moved(4, 4), ""),
        "up to the next": (tagged("A").polled(2, 0).done(3).moved(4, 2), ""),
        "past it": (tagged("A").polled(2, 0).done(3).moved(4, 3), "P1"), "m1 too": (tagged("A || B").polled(2, 0, 2), "P1"),
        "committed by another": (lagging((5, 7), 5), ""), "not committed": (lagging((5, 7), 4), "P1 P1"),
        "not removed": (lagging(None, 5), "P1 P1"),
    })  # fmt: skip


def test_backward_commit_requires_a_reset_to_the_next_selected_message_by_the_same_client() -> None:
    def back(expression: str) -> Builder:
        """All messages are done, then it seeks to m1. The next message that A selects is m2."""
        polled = (0, 2) if expression == "A" else (0, 1, 2, 3)
        return tagged(expression).polled(2, *polled).done(2.5).moved(2.8, 4).returned(2.9).sought(3, 1).done(3.5)

    to_0 = done().moved(2.8, 2).returned(2.9).sought(3, 0).done(3.5)

    def rest() -> Builder:
        """Only m2 and m3 are filtered, to which it seeks back."""
        builder = tagged("A", "AABB").polled(2, 0, 1).done(2.5).moved(2.8, 4).returned(2.9)
        return builder.sought(3, 2).done(3.5).returned(4)

    assert_faults(check, {
        "to m1": (back("A").reset(3.8, 1, C1).returned(4), ""), "to m2": (back("A").reset(3.8, 2, C1).returned(4), ""),
        "to m3": (back("A").reset(3.8, 3, C1).returned(4), "P1"), "to m2 for all": (back("*").reset(3.8, 2, C1).returned(4), "P1"),
        "no reset": (back("A").returned(4), "P1"), "over filtered ones": (rest(), ""),
        "over others": (rest().sought(5, 1).done(5.5).returned(6), "P1"), "no reset to m0": (to_0.returned(4), "P1"),
        "another's": (to_0.reset(3.8, 0).returned(4), "P1"), "its own": (to_0.reset(3.8, 0, C1).returned(4), ""),
        "no response": (to_0.reset(3.8, 0, C1, responded=False).returned(4), "P1"),
    })  # fmt: skip


def test_commit_past_the_messages_reported_as_done_is_a_violation() -> None:
    more = done(t=3).polled(4, 2, 3)
    auto = AUTO.moved(3, 2)

    def other(builder: Builder, offset: int) -> Builder:
        return builder.reader(0.6, C2).given(3, offset, where=C2).done(3.2, where=C2).moved(4, offset + 1, where=C2)

    sought = BEGAN.polled(2, 0).sought(2.5, 5).done(3)

    def revoked() -> Builder:
        """Revoked right after its grant at 5, it is released there."""
        builder = done(0, t=2.1).moved(2.3, 1).taken(2.5)
        return builder.add(ProgressResponded, 3, B, queue=R, generation=1, offset=5, client=11).moved(3.5, 5)

    assert_faults(check, {
        "none": (more.moved(5, 0), ""), "those": (more.moved(5, 2), ""), "more": (more.moved(5, 3), "P1"),
        "not reported": (auto, "P1"), "reported by a poll": (auto.done(2.5, "poll"), ""), "polled by another": (other(done(0), 0), "P1"),
        "committed by another": (other(done(0).moved(2.8, 1).polled(3.1, 1, where=C2), 1), ""),
        "past a seek": (sought.moved(4, 5), ""), "further": (sought.moved(4, 6), "P1"),
        "past a gap": (gap(done(0, t=3).moved(4, 4), 2.5, 1, 4), ""),
        "the start offset": (revoked(), ""), "past it": (revoked().moved(3.6, 6), "P1"),
    })  # fmt: skip


def test_commit_that_returns_before_the_broker_has_the_offset_is_a_violation() -> None:
    """A new grant at or after the offset confirms it."""

    def moved(upto: int, **facts: Any) -> Builder:
        return done(t=3).moved(3.5, upto, **facts)

    lost = done(t=3).taken(3.2)
    assert_faults(check, {
        "no commit": (done(t=3).returned(4), "P1"), "less": (moved(1).returned(4), "P1"), "that": (moved(2).returned(4), ""),
        "stale": (moved(2, verdict=STALE).returned(4), "P1"), "polled later": (moved(2).polled(3.6, 2).returned(4), ""),
        "granted after it": (lost.given(3.5, 4, generation=2).returned(4), ""),
        "granted before it": (lost.given(3.5, 1, generation=2).returned(4), "P1"),
    })  # fmt: skip


def test_commit_must_fail_exactly_if_its_grant_was_lost() -> None:
    """Once, and not under auto-commit. It may fail while it has received no response."""
    lost = POLLED.taken(2.5).done(3)
    stale = done(t=2.2).moved(2.3, 2).done(3).failed(3.1)

    def unread(*received: tuple[float, ItemVerdict]) -> Builder:
        builder = done(t=3).add(CommitResponded, 3.1, B, queue=R, epoch=None, generation=1, offset=2).failed(4)
        for t, verdict in received:
            builder = builder.add(CommitReceived, t, C1, queue=R, epoch=None, generation=1, offset=2, verdict=verdict)
        return builder

    read = (3.2, ItemVerdict.OK)
    automatic = AUTO.taken(2.5).done(3, "poll").done(3.2).returned(3.3)
    pulled = stale.add(PullReceived, 3.05, C1, queue=R, epoch=None, code=ResponseCode.STALE_EPOCH, next_offset=None)
    assert_faults(check, {
        "lost": (lost.failed(3.1), ""), "lost, and returned": (lost.returned(3.1), "P1"),
        "committed before": (done(t=2.2).moved(2.3, 2).taken(2.5).done(3).failed(3.1), "P1"),
        "a stale response": (done(t=2.2).taken(2.3).failed(2.5), ""), "another error": (done(t=2.2).failed(2.5, stale=False), ""),
        "not lost": (stale, "P1"), "a stale pull": (pulled, ""), "not received": (unread(), ""), "received": (unread(read), "P1"),
        "received, and asked for again": (unread(read, (3.3, STALE)), ""), "reported once": (lost.failed(3.1).done(3.2).returned(3.3), ""),
        "twice": (lost.failed(3.1).done(3.2).returned(3.3).done(3.4).failed(3.5), "P1"), "auto-commit": (automatic, ""),
    })  # fmt: skip


def test_generations_and_progress_are_checked_as_for_other_consumers() -> None:
    def moved(requested: float, generation: int = 1) -> Builder:
        return done().reset(3, 0).moved(requested + 0.002, 2, generation)

    below = done().moved(3, 2).reader(3.1, C2).given(4, 1, where=C2)
    assert_faults(check_generations, {
        "older": (moved(4.0), "C1"), "requested before": (moved(2.999), ""), "newer": (moved(4.0, 2), ""),
        "a power cut may revert a reset": (moved(3.998).power_cut(3.1), ""), "a grant below": (below, "C1"),
    })  # fmt: skip
    assert_faults(check_progress, {"a grant below": (below, "O6")})


def sent(builder: Builder, second: bytes = b"m1", **facts: Any) -> Builder:
    """m0 and m1 are in the log at the end. Faults end at 5."""
    return builder.sent(1, b"m0", 0).sent(1.1, second, 1).calm(5).read(500, b"m0", second, **facts)


def ended(*offsets: int, t: float = 4) -> Builder:
    builder = sent(BEGAN)
    return builder.polled(2, *offsets).done(3).moved(t, len(offsets)) if offsets else builder


def test_message_that_was_never_polled_is_a_violation() -> None:
    """Except before the start of the group, or if it was not acknowledged, or if a gap, a reset or a seek passed it."""
    rest = ended().given(6, 2, 2)

    def late() -> Builder:
        """Nobody knows that m2 was acknowledged."""
        builder = Builder().reader().given(1, 1).sent(1, b"m0", 0).sent(1.1, b"m1", 1).calm(5).read(500, b"m0", b"m1", b"m2")
        return builder.polled(2, 1).done(3).moved(4, 3)

    assert_faults(check, {
        "polled": (ended(0, 1), ""), "not polled": (ended(0), "O5 R5"), "another message": (sent(done(t=3).moved(4, 2), b"other"), "O5"),
        "no cause": (rest, "O5 O5"), "a reset": (rest.reset(5.9, 2, before=0), ""),
        "a reset over one": (rest.reset(5.9, 2, before=1), "O5"), "a gap": (gap(rest, 5.5, 0, 2), ""),
        "a seek": (ended().sought(3, 2).done(3.1).moved(4, 2), ""),
        "a seek over one": (ended().sought(3, 1).done(3.1).polled(3.2, 1).done(3.3).moved(4, 2), ""),
        "not acknowledged": (late(), "P1"), "polled later": (late().polled(3.5, 2).done(3.6), ""),
        "no reader": (Builder().sent(1, b"m0", 0).calm(5).read(500, b"m0"), ""),
    })  # fmt: skip


def test_unpolled_message_removed_by_retention_without_a_reported_gap_is_a_violation() -> None:
    def rest(expression: str = "*") -> Builder:
        """m0 and m1 are removed at the end, m1 has the tag B."""
        builder = Builder().reader(expression=expression).given(1).polled(2, 0).done(2.5).pulled(2.8, 1, 2, (1, 2)).moved(3, 2)
        builder = builder.sent(0.1, b"m0", 0, tags="A").sent(0.2, b"m1", 1, tags="B").sent(0.3, b"m2", 2, tags="A")
        return builder.polled(4, 2).done(4.1).moved(4.2, 3).calm(5).read(500, b"m2", first=2)

    assert_faults(check, {
        "removed": (rest(), "O5"), "not wanted": (rest("A"), ""), "a gap": (gap(rest(), 2.8, 1, 2), ""),
        "another gap": (gap(rest(), 2.8, 0, 1), "O5"), "a reset": (rest().reset(2.4, 2, before=1), ""), "a cut": (rest().power_cut(6), ""),
    })  # fmt: skip


def test_readers_must_reach_the_end_within_90_s_in_the_last_generation() -> None:
    reset = ended(0, 1).reset(4.5, 0).given(5, 0, 2)
    never = Builder().reader().sent(1, b"m0", 0).calm(5).read(500, b"m0", queue=LOG)
    assert_faults(check, {
        "in time": (ended(0, 1, t=94.9), ""), "late": (ended(0, 1, t=95.2), "R5"), "in the generation before": (reset, "R5"),
        "in the last": (reset.polled(6, 0, 1).done(6.1).moved(7, 2, 2), ""), "never granted": (never, "O5 R5"),
    })  # fmt: skip

"""C1 and R5 of concurrent groups: progress, generations, every message handled in the end."""

from support.concurrent_histories import ConcurrentHistoryBuilder, M, R
from support.histories import C1, C2, assert_faults
from sweep.checkers.concurrent import check
from sweep.checkers.progress import check as check_progress
from sweep.events.consumers import QueueGapSeen
from sweep.history import CallResult

Builder = ConcurrentHistoryBuilder
BEGUN = Builder().joined().begun(1)


def test_commit_past_the_lowest_unfinished_message_is_a_violation() -> None:
    """Finished are messages that a call of this process has acknowledged, or that a broker has accepted as sent back."""
    mixed, partly = BEGUN.shared(2, 2.5, 0, 1).shared(2, None, 2).shared(2.1, 2.2, 3), BEGUN.shared(2, 2.5, 0, 1, 2, done=2)
    passed = BEGUN.shared(2, 2.5, 1).moved(3, 2)

    def back(code: int | None) -> Builder:
        return BEGUN.shared(2, 2.5, 0, done=0).back(2.6, 0, code=code).moved(3, 1)

    def other(builder: Builder, first: int) -> Builder:
        return builder.begun(3, first, where=C2).shared(3.1, 3.2, 1, where=C2).moved(4, 2, where=C2)

    assert_faults(check, {
        "less": (mixed.moved(3, 1), ""), "up to it": (mixed.moved(3, 2), ""), "past it": (mixed.moved(3, 3), "C1"),
        "what a call acknowledged": (partly.moved(3, 2), ""), "what it did not": (partly.moved(3, 3), "C1"),
        "sent back": (back(0), ""), "refused": (back(1), "C1"), "no response": (back(None), "C1"),
        "the response comes later": (BEGUN.shared(2, 2.5, 0, done=0).moved(2.602, 1).back(2.601, 0), "C1"),
        "no gap": (passed, "C1"), "a gap": (passed.add(QueueGapSeen, 1.5, C1, queue=M, first=0, end=1), ""),
        "handled by another process": (other(BEGUN.shared(2, 2.5, 0), 0), "C1"),
        "committed by another process": (other(BEGUN.shared(2, 2.5, 0).moved(2.8, 1), 1), ""),
        "handled in an older generation": (
            BEGUN.shared(2, 2.5, 0).begun(3, 0, generation=2).shared(3.1, 3.2, 1).moved(4, 2, generation=2), "C1"),
        "no grant": (Builder().joined().shared(2, 2.5, 0), "C1"),
    })  # fmt: skip


def test_grants_and_commits_are_of_the_newest_generation_and_at_its_accepted_offset() -> None:
    def again(offset: int, generation: int) -> Builder:
        return BEGUN.shared(2, 2.5, 0).moved(3, 1).begun(4, offset, generation, C2)

    newer = BEGUN.begun(3, 0, generation=2, where=C2)
    lost = BEGUN.shared(2, 2.5, 0).moved(3, 1).begun(5, 0, generation=2, where=C2)
    assert_faults(check, {
        "at it": (again(1, 1), ""), "below it": (again(0, 1), "C1"), "below it, in a new generation": (again(0, 2), ""),
        "a commit in an older one": (newer.shared(2, 2.5, 0).moved(4, 1, generation=1), "C1"),
        "a grant in an older one": (newer.begun(4, 0, generation=1), "C1"),
        "a commit on its way": (newer.shared(2, 2.5, 0).moved(3.001, 1, generation=1), ""),
    })  # fmt: skip
    assert_faults(check_progress, {"lost by a kill": (lost.killed(3.1), "O6"), "lost by a power cut": (lost.power_cut(3.1), "")})


def ended(first: int = 0) -> Builder:
    """m0 and m1 are in the log at the end. The group begins at `first`."""
    return Builder().joined().begun(1, first).sent(1, b"m0", 0).sent(1.1, b"m1", 1).calm(5).read(500, b"m0", b"m1")


def test_every_message_must_be_handled_or_dead_lettered() -> None:
    retried = ended().shared(2, 3, 0, 1, done=1).back(3, 1).begun(12, queue=R)
    ordered = Builder().granted(1, 1).call(2, 2.1, 1, 0, result=CallResult.ERROR).calm(5).read(500, b"m0")
    assert_faults(check, {
        "handled": (ended().shared(2, 3, 0, 1), ""), "left": (ended().shared(2, 3, 0), "R5"),
        "dead-lettered": (ended().shared(2, 3, 0).copy(b"m1", 3), ""), "partly": (ended().shared(2, 3, 0, 1, done=1), "R5"),
        "the call runs": (ended().shared(2, 3, 0).shared(2, None, 1), "R5"), "a retry is pending": (retried, "R5"),
        "a retry was handled": (retried.shared(13, 14, 0, queue=R, retries=1, bodies=(b"m1",)), ""),
        "before the start of the group": (ended(1).shared(2, 3, 1), ""), "an ordered group": (ordered, ""),
    })  # fmt: skip

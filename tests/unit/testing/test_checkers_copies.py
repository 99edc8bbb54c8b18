"""C2 and R9 of concurrent groups: retry counts rise by one up to the limit, and only requested copies exist."""

from support.concurrent_histories import DEAD, ConcurrentHistoryBuilder, R
from support.histories import C2, assert_faults
from sweep.checkers.copies import check, possible_duplicates

RETRY = R._replace(group="")
Builder = ConcurrentHistoryBuilder
BEGUN = Builder().joined().begun(1)


def failed(level: int = 0) -> Builder:
    """m0 failed and was sent back."""
    return BEGUN.shared(2, 2.5, 0, done=0).back(3, 0, level=level)


def retried(times: int) -> Builder:
    """m0 failed `times` times and was sent back each time; mailing allows 2 retries."""
    builder = failed()
    for number in range(1, times):
        builder = builder.shared(10 * number, 10 * number + 1, number, queue=R, retries=number, bodies=(b"m0",), done=0)
        builder = builder.back(10 * number + 2, number, queue=R)
    return builder


def test_message_is_given_again_only_as_it_was_sent_back() -> None:
    def again(builder: Builder, retries: int) -> Builder:
        return builder.begun(12, queue=R).shared(13, 14, 0, queue=R, retries=retries, bodies=(b"m0",))

    assert_faults(check, {
        "sent back": (again(failed(), 1), ""), "not sent back": (again(BEGUN, 1), "C2"),
        "no retry count": (again(failed(), 0), "C2"), "a higher one": (again(failed(), 2), "C2"),
        "one in the first delivery": (BEGUN.shared(2, 2.5, 0, retries=1), "C2"), "as often as the group allows": (retried(3), ""),
        "more often": (retried(3).shared(50, 51, 9, queue=R, retries=3, bodies=(b"m0",)), "C2"),
        "another message than it was given": (BEGUN.shared(2, 2.5, 0, done=0).back(3, 1), "C2"),
        "by another consumer": (BEGUN.shared(2, 2.5, 0, done=0).back(3, 0, where=C2), "C2"),
    })  # fmt: skip


def test_dead_letter_with_retries_left_is_a_violation() -> None:
    """Unless the listener asked for it."""
    assert_faults(check, {
        "none left": (retried(3).copy(b"m0", 3), ""), "one left": (retried(2).copy(b"m0", 2), "C2"),
        "another count": (retried(2).copy(b"m0", 3), "C2"), "a retry with none left": (retried(3).copy(b"m0", 3, queue=RETRY), "C2"),
        "asked for": (failed(-1).copy(b"m0", 1), ""),
        "and a retry": (failed(-1).copy(b"m0", 1).copy(b"m0", 1, queue=RETRY, offset=1), "C2"),
        "a copy of a message that was not sent": (failed().copy(b"m7", 1, queue=RETRY), "C2"),
        "a copy of a handled message": (BEGUN.shared(2, 3, 0).copy(b"m0", 1, queue=RETRY), "C2"),
    })  # fmt: skip


def test_only_as_many_copies_exist_as_were_requested() -> None:
    """A start may repeat a retry copy, not a dead letter."""
    once = failed().copy(b"m0", 1, queue=RETRY)
    twice = failed().copy(b"m0", 1, queue=RETRY).copy(b"m0", 1, queue=RETRY, offset=1)
    requested = twice.back(4, 0)
    assert [possible_duplicates(builder.history()) for builder in (once, requested)] == [0, 1]
    assert_faults(check, {
        "once": (once, ""), "twice": (twice, "R9"), "requested twice": (requested, ""), "a start": (twice.opened(20), ""),
        "two dead letters": (failed(-1).copy(b"m0", 1).copy(b"m0", 1, queue=DEAD, offset=1).opened(20), "R9"),
    })  # fmt: skip

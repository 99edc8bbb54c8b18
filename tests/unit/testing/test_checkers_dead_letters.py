"""C2 and R1 of ordered groups that dead-letter."""

from support.concurrent_histories import BILLING_DEAD, ConcurrentHistoryBuilder
from support.histories import C1, C2, assert_faults
from sweep.checkers.dead_letters import check
from sweep.checkers.delivery import check as check_delivery
from sweep.checkers.steps import check as check_steps
from sweep.events.locks import ConnectionCut, SessionBound
from sweep.history import CallResult

ERROR = CallResult.ERROR
Builder = ConcurrentHistoryBuilder


def failed(calls: int = 2, *, attempts_max: int | None = 2) -> Builder:
    """m0 failed `calls` times; billing allows 2 attempts."""
    builder = Builder().joined(attempts_max=attempts_max).granted(1, 1)
    for number in range(calls):
        builder = builder.call(2 + number, 2.5 + number, 1, 0, attempt=number, result=ERROR)
    return builder


def stored(builder: Builder, *bodies: bytes) -> Builder:
    """Add the dead letters that the final reading finds."""
    for offset, body in enumerate(bodies or (b"m0",)):
        builder = builder.copy(body, 1, queue=BILLING_DEAD, offset=offset)
    return builder


def test_one_dead_letter_after_the_last_attempt_with_progress_after_it_is_allowed() -> None:
    def attempts(number: int) -> Builder:
        return stored(failed().letter(4, 1, 0, attempts=number))

    def granted(offset: int, generation: int = 1) -> Builder:
        return stored(failed().letter(4, 1, 0)).granted(9, 2, C2, offset=offset, generation=generation)

    unlimited = Builder().joined().granted(1, 1).call(2, 2.5, 1, 0, result=ERROR).letter(4, 1, 0)
    assert_faults(check, {
        "before the last attempt": (attempts(1), "C2"), "after it": (attempts(2), ""), "later": (attempts(3), ""),
        "without a limit": (stored(unlimited), "C2"), "never requested": (stored(failed().letter(4, 1, 0), b"m0", b"m7"), "C2"),
        "progress before it": (granted(0), "C2"), "progress after it": (granted(1), ""), "a new generation": (granted(0, 2), ""),
    })  # fmt: skip


def test_extra_attempt_is_a_violation_unless_the_dead_letter_could_not_be_written() -> None:
    """The second call ends at 3.5."""

    def cut(t: float) -> Builder:
        return failed().call(6, 6.1, 1, 0, attempt=2).add(ConnectionCut, t, C1, connection=1, session="s1")

    assert_faults(check, {
        "requested in vain": (failed().letter(3.6, 1, 0, code=None).call(4, 4.1, 1, 0, attempt=2), ""), "not requested": (failed(3), "C2"),
        "disconnected before": (cut(3.4), ""), "disconnected after": (cut(3.6), ""), "disconnected later": (cut(4.5), "C2"),
        "connected again": (cut(2.9).add(SessionBound, 3.2, C1, connection=2, session="s1"), "C2"),
        "another group connected again": (cut(2.9).add(SessionBound, 3.2, C1, connection=2, session="s2"), ""),
    })  # fmt: skip


def test_second_dead_letter_is_a_violation_unless_progress_could_not_advance_or_the_broker_ended_during_the_write() -> None:
    def twice(*, advance: bool) -> Builder:
        return stored(failed().letter(4, 1, 0, advance=advance).letter(5, 1, 0, advance=advance), b"m0", b"m0")

    def unanswered(ended: float) -> Builder:
        """Requested at 4 without a response, requested again at 6."""
        return stored(failed().letter(4, 1, 0, code=None).killed(ended, how="exit").letter(6, 1, 0), b"m0", b"m0")

    assert_faults(check, {
        "advanced": (twice(advance=True), "C2"), "could not": (twice(advance=False), ""), "ended meanwhile": (unanswered(4.002), ""),
        "ended later": (unanswered(5.5), "C2"), "ended before": (unanswered(3.9), "C2"),
    })  # fmt: skip


def test_acknowledged_dead_letter_must_be_stored_unless_lost_by_a_power_cut() -> None:
    def lost(flush: str) -> Builder:
        builder = Builder(flush=flush).joined(attempts_max=2).granted(1, 1).call(2, 2.5, 1, 0, 1, result=ERROR)
        return stored(builder.call(3, 3.5, 1, 0, 1, attempt=1, result=ERROR).letter(4, 1, 0).letter(4.1, 1, 1))

    assert_faults(check, {
        "lost": (lost("async"), "R1"), "cut, async": (lost("async").killed(4.2, how="power"), ""),
        "cut, sync": (lost("sync").killed(4.2, how="power"), "R1"),
    })  # fmt: skip


def test_progress_may_pass_a_dead_letter_and_it_counts_as_handled() -> None:
    passed = failed().letter(4, 1, 0).call(5, 5.1, 1, 1).committed(6, 1, 2)
    assert_faults(check_steps, {"dead letter": (passed, ""), "none": (failed().call(5, 5.1, 1, 1).committed(6, 1, 2), "O5 R4a")})
    assert_faults(check_delivery, {"the end": (passed.sent(1, b"m0", 0).sent(1.1, b"m1", 1).calm(5).read(500, b"m0", b"m1"), "")})

"""R4a and the safety part of O5: consecutive offsets, and only messages that were done are committed."""

from support.histories import C1, C2, HELD, HistoryBuilder, P, assert_faults, epoch
from sweep.checkers import subscriptions
from sweep.checkers.steps import check
from sweep.events.consumers import ConsumerStarted, QueueGapSeen
from sweep.events.producers import SendBegan
from sweep.events.progress import CommitSent, PullReceived
from sweep.events.sends import FrameResponded, FrameWritten, LayoutSent
from sweep.history import CallResult

COUNTED, IGNORED = CallResult.COUNTED, CallResult.CANCEL_IGNORED


def calls(*offsets: int) -> HistoryBuilder:
    """C1 is granted the queue at offset 5, and its first call has these messages."""
    return HistoryBuilder().granted(1, 1, offset=5).call(2, 2.1, 1, *offsets)


def test_calls_of_an_epoch_start_at_its_grants_offset_and_are_consecutive() -> None:
    assert_faults(check, {
        "offset after offset": (calls(5, 6).call(2.2, 2.3, 1, 7).committed(2.4, 1, 8), ""), "begins before the offset": (calls(4), "R4a"),
        "begins after the offset": (calls(6), "R4a"), "a batch with a gap": (calls(5, 7), "R4a"),
        "a batch with a repetition": (calls(5, 5), "R4a"), "a batch in another order": (calls(6, 5), "R4a R4a"),
        "the next call repeats the batch": (calls(5, 6).call(2.2, 2.3, 1, 5), "R4a"),
        "the next call repeats a message": (calls(5, 6).call(2.2, 2.3, 1, 6), "R4a"),
        "the next call leaves a message out": (calls(5, 6).call(2.2, 2.3, 1, 8), "R4a"),
    })  # fmt: skip


def test_failed_batch_is_repeated_from_its_first_message_and_a_rollback_from_the_first_uncommitted_one() -> None:
    def failed(result: CallResult) -> HistoryBuilder:
        return HELD.call(2, 2.1, 1, 0).call(2.2, 2.3, 1, 1, 2, result=result)

    rolled_back = HELD.call(2, 2.1, 1, 0).call(2.2, 2.3, 1, 1, result=COUNTED).call(2.4, 2.5, 1, 2, result=CallResult.ROLLBACK)
    results = (CallResult.SUSPEND, CallResult.ERROR, CallResult.CANCELLED)
    assert_faults(check, {
        **{f"{result} and repeated": (failed(result).call(2.4, 2.5, 1, 1), "") for result in results},
        **{f"{result} and skipped": (failed(result).call(2.4, 2.5, 1, 3), "R4a") for result in results},
        "rolled back to the first uncommitted message": (rolled_back.call(2.6, 2.7, 1, 1), ""),
        "rolled back to its own message": (rolled_back.call(2.6, 2.7, 1, 2), "R4a"),
    })  # fmt: skip


def test_only_messages_that_a_call_of_the_epoch_has_done_are_committed() -> None:
    running = HELD.call(2, 2.1, 1, 0, 1).call(2.2, None, 1, 2)
    assert_faults(check, {
        "less than what is done": (running.committed(2.4, 1, 1), ""), "what is done": (running.committed(2.4, 1, 2), ""),
        "a running call": (running.committed(2.4, 1, 3), "O5"),
        "done in another epoch": (HELD.call(2, 2.1, 1, 0).granted(3, 2, C2).committed(3.4, 2, 1, C2), "O5"),
        "failed": (HELD.call(2, 2.1, 1, 0, result=CallResult.ERROR).committed(2.4, 1, 1), "O5"),
        "counted": (HELD.call(2, 2.1, 1, 0, result=COUNTED).committed(2.4, 1, 1), ""),
    })  # fmt: skip


def subscribed(first: str, body: bytes = b"m0", expression: str = "A || C") -> HistoryBuilder:
    """C1 subscribes to the expression; offset 0 has the tag `first`, offset 1 has A."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", expression),)).granted(1, 1)
    return builder.sent(0.6, body, 0, tags=first).sent(0.7, b"m1", 1, tags="A")


def test_only_filtered_messages_and_reported_gaps_are_passed_over() -> None:
    def filtered(tags: str) -> HistoryBuilder:
        return subscribed(tags).call(2, 2.1, 1, 1).committed(2.4, 1, 2).read(9, b"m0", b"m1")

    passed = HELD.call(2, 2.1, 1, 3).committed(2.4, 1, 4)
    assert_faults(check, {
        "filtered": (filtered("B"), ""), "wanted": (filtered("C"), "O5 R4a"), "no gap": (passed, "O5 R4a"),
        "a gap": (passed.add(QueueGapSeen, 1.5, C1, first=0, end=3), ""),
        "a shorter gap": (passed.add(QueueGapSeen, 1.5, C1, first=0, end=2), "O5 R4a"),
        "a gap in a pull response": (passed.add(PullReceived, 1.5, C1, gap=(0, 3), epoch=epoch(1)), ""),
    })  # fmt: skip


def test_message_that_its_member_does_not_subscribe_to_is_a_violation() -> None:
    rows = {tag: (subscribed(tag).call(2, 2.1, 1, 0, 1), laws) for tag, laws in (("A", ""), ("C", ""), ("B", "O5"))}
    assert_faults(subscriptions.check, rows)


def test_filtered_message_may_be_lost_and_its_offset_reused() -> None:
    """The member passes over offset 0, where a message with the given tag was. At the end m0 is there, with the tag A, which it wants."""

    def passed(tag: str, named: float | None = 0.601, *, pulled: float = 1.9, code: int = 0) -> HistoryBuilder:
        """`named`: when a response named the place of that message, if ever. `pulled`: when the response to a pull arrived, sent at 1.9."""
        builder = HELD.add(ConsumerStarted, 0.5, C1, expressions=(("orders", "A"),)).sent(0.7, b"m1", 1, tags="A")
        builder = builder.add(SendBegan, 0.6, P, body=b"lost", tags=tag).add(FrameWritten, 0.6, P, bodies=(b"lost",), request=9)
        builder = builder if named is None else builder.add(FrameResponded, named, offset=0, request=9)
        return builder.add(PullReceived, pulled, C1, epoch=epoch(1), code=code, response_t=1.9).call(2, 2.1, 1, 1)

    def replaced(builder: HistoryBuilder, t: float = 3) -> HistoryBuilder:
        return builder.sent(t, b"m0", 0, tags="A").committed(3.4, 1, 2).read(9, b"m0", b"m1")

    def cut(builder: HistoryBuilder) -> HistoryBuilder:
        return replaced(builder.power_cut(2.5, 2.6))

    rows = {}
    for tag, laws in (("A", "O5 R4a"), ("B", "")):
        rows |= {
            f"{tag}, named before": (cut(passed(tag)), laws),
            f"{tag}, named in the response to a repetition": (cut(passed(tag, 2.2)), laws),
            f"{tag}, the topic deleted": (replaced(passed(tag, 2.2).add(LayoutSent, 2.5, P, counter=2, deleted=True)), laws),
            f"{tag}, lost before the pull arrives": (replaced(passed(tag, pulled=1.99).power_cut(1.95, 1.96), 1.97), laws),
            f"{tag}, never named": (cut(passed(tag, None)), ""),
            f"{tag}, never named and not lost": (replaced(passed(tag, None)), "O5 R4a"),
            **{f"{tag}, pulled with {code}": (cut(passed(tag, code=code)), laws or ("O5" if code == 21 else "")) for code in (19, 20, 21)},
        }
    assert_faults(check, rows)


def test_commit_of_a_call_that_ignored_its_cancellation_needs_a_release_that_was_lost_or_sent_later() -> None:
    ignored = HELD.call(2, 3, 1, 0, result=IGNORED)

    def unanswered(by: str) -> HistoryBuilder:
        return ignored.add(CommitSent, 2.9, C1, epoch=epoch(1), offset=None, released=True).committed(4, 1, 1, by=by)

    assert_faults(check, {
        "released while it ran": (ignored.committed(4, 1, 1).committed(2.9, 1, None, released=True), "O5"),
        "released after it": (ignored.committed(4, 1, 1).committed(3.1, 1, None, released=True), ""),
        "granted again": (ignored.granted(4, 2).call(5, 6, 2, 0).committed(7, 2, 1), ""),
        "the release was lost, and a LOCK offers the result": (unanswered("LOCK"), ""),
        "the release was lost, and a SYNC offers the result": (unanswered("SYNC"), "O5"),
        "the release was confirmed": (ignored.committed(2.9, 1, None, released=True).committed(4, 1, 1, by="LOCK"), "O5"),
    })  # fmt: skip

"""R4a and the safety part of O5: consecutive offsets, and only messages that were done are committed."""

import pytest

from support.histories import C1, C2, HistoryBuilder, P, epoch
from sweep.checkers import subscriptions
from sweep.checkers.steps import check
from sweep.events.consumers import ConcurrentCallBegan, ConsumerStarted, QueueGapSeen, ReceivedMessage
from sweep.events.producers import SendBegan
from sweep.events.progress import CommitSent, PullReceived
from sweep.history import CallResult, QueueKey


def test_calls_of_an_epoch_start_at_its_grants_offset_and_are_consecutive() -> None:
    builder = HistoryBuilder().granted(1, 1, offset=5).call(2, 2.1, 1, 5, 6).call(2.2, 2.3, 1, 7).committed(2.4, 1, 8)
    assert builder.broken(check) == []


@pytest.mark.parametrize("first", [4, 6])
def test_first_call_of_an_epoch_at_another_offset_is_a_violation(first: int) -> None:
    assert HistoryBuilder().granted(1, 1, offset=5).call(2, 2.1, 1, first).broken(check) == ["R4a"]


@pytest.mark.parametrize("offsets", [(5, 7), (5, 5), (6, 5)])
def test_batch_with_a_gap_or_a_repetition_is_a_violation(offsets: tuple[int, ...]) -> None:
    assert set(HistoryBuilder().granted(1, 1, offset=5).call(2, 2.1, 1, *offsets).broken(check)) == {"R4a"}


@pytest.mark.parametrize("next_offset", [5, 6, 8])
def test_call_at_another_than_the_next_offset_is_a_violation(next_offset: int) -> None:
    builder = HistoryBuilder().granted(1, 1, offset=5).call(2, 2.1, 1, 5, 6).call(2.2, 2.3, 1, next_offset)
    assert builder.broken(check) == ["R4a"]


@pytest.mark.parametrize("result", [CallResult.SUSPEND, CallResult.ERROR, CallResult.CANCELLED])
def test_failed_batch_must_be_repeated_from_its_first_message(result: CallResult) -> None:
    failed = HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0).call(2.2, 2.3, 1, 1, 2, result=result)
    assert failed.call(2.4, 2.5, 1, 1).broken(check) == []
    skipped = HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0).call(2.2, 2.3, 1, 1, 2, result=result).call(2.4, 2.5, 1, 3)
    assert skipped.broken(check) == ["R4a"]


def test_rollback_must_return_to_the_first_uncommitted_message() -> None:
    def builder() -> HistoryBuilder:
        counted = HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0).call(2.2, 2.3, 1, 1, result=CallResult.COUNTED)
        return counted.call(2.4, 2.5, 1, 2, result=CallResult.ROLLBACK)

    assert builder().call(2.6, 2.7, 1, 1).broken(check) == []
    assert builder().call(2.6, 2.7, 1, 2).broken(check) == ["R4a"]


@pytest.mark.parametrize(("upto", "laws"), [(1, []), (2, []), (3, ["O5"])])
def test_commit_of_a_message_that_no_call_has_done_is_a_violation(upto: int, laws: list[str]) -> None:
    assert HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0, 1).call(2.2, None, 1, 2).committed(2.4, 1, upto).broken(check) == laws


def test_commit_of_a_message_done_in_another_epoch_is_a_violation() -> None:
    builder = HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0).granted(3, 2, C2).committed(3.4, 2, 1, C2)
    assert builder.broken(check) == ["O5"]


def test_commit_after_a_failed_call_is_a_violation_and_after_a_counted_one_is_allowed() -> None:
    assert HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0, result=CallResult.ERROR).committed(2.4, 1, 1).broken(check) == ["O5"]
    assert HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0, result=CallResult.COUNTED).committed(2.4, 1, 1).broken(check) == []


def filtered(tags: str) -> HistoryBuilder:
    """C1 subscribes to A; offset 0 has `tags`, offset 1 has A."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", "A || C"),)).granted(1, 1)
    builder.sent(0.6, b"m0", 0, tags=tags).sent(0.7, b"m1", 1, tags="A").read(9, b"m0", b"m1")
    return builder.call(2, 2.1, 1, 1).committed(2.4, 1, 2)


def test_only_filtered_messages_may_be_skipped() -> None:
    assert filtered("B").broken(check) == []
    assert filtered("C").broken(check) == ["O5", "R4a"]


@pytest.mark.parametrize(("tags", "laws"), [("A", []), ("C", []), ("B", ["O5"])])
def test_message_that_its_member_does_not_subscribe_to_is_a_violation(tags: str, laws: list[str]) -> None:
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", "A || C"),)).granted(1, 1)
    builder.sent(0.6, b"m0", 0, tags=tags).sent(0.7, b"m1", 1, tags="A").call(2, 2.1, 1, 0, 1)
    assert builder.broken(subscriptions.check) == laws


def test_filtered_message_may_be_lost_by_a_power_cut_and_its_offset_reused() -> None:
    def builder(lost: str) -> HistoryBuilder:
        builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", "A"),)).granted(1, 1)
        builder.sent(0.6, b"lost", 0, tags=lost).sent(0.7, b"m1", 1, tags="A").call(2, 2.1, 1, 1).committed(2.4, 1, 2)
        return builder.sent(3, b"m0", 0, tags="A").read(9, b"m0", b"m1")

    assert builder("B").broken(check) == []
    assert builder("A").broken(check) == ["O5", "R4a"]


def test_lost_filtered_message_may_be_known_only_from_calls_of_other_groups() -> None:
    """A delayed message: its sender does not learn its offset."""

    def builder(lost: str, *, sent_t: float = 0.6) -> HistoryBuilder:
        builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", "A"),)).granted(1, 1)
        builder.add(SendBegan, sent_t, P, body=b"lost", tags=lost).sent(0.7, b"m1", 1, tags="A")
        builder.add(
            ConcurrentCallBegan,
            2.2,
            C2,
            queue=QueueKey("mailing", "broker-a", "orders", 0),
            given=(ReceivedMessage(0, b"lost", 0, 0),),
            call=9,
        )
        return builder.call(2, 2.1, 1, 1).committed(2.4, 1, 2).sent(3, b"m0", 0, tags="A").read(9, b"m0", b"m1")

    assert builder("B").broken(check) == []
    assert builder("A").broken(check) == ["O5", "R4a"]
    assert builder("B", sent_t=2.5).broken(check) == ["O5", "R4a"], "it was not there yet"


@pytest.mark.parametrize("code", [0, 19, 20, 21])
def test_late_commit_is_checked_against_the_pulled_messages_and_not_their_replacements(code: int) -> None:
    def builder(lost: str) -> HistoryBuilder:
        builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", "A"),)).granted(1, 1)
        builder.sent(0.6, b"lost", 0, tags=lost).sent(0.7, b"m1", 1, tags="A").add(PullReceived, 1.9, C1, epoch=epoch(1), code=code)
        return builder.call(2, 2.1, 1, 1).sent(3, b"m0", 0, tags="A").committed(3.4, 1, 2).read(9, b"m0", b"m1")

    assert builder("B").broken(check) == ([] if code != 21 else ["O5"])
    assert builder("A").broken(check) == ["O5", "R4a"]


def test_reported_gap_may_be_skipped() -> None:
    def builder() -> HistoryBuilder:
        return HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 3).committed(2.4, 1, 4)

    assert builder().broken(check) == ["O5", "R4a"]
    assert builder().add(QueueGapSeen, 1.5, C1, first=0, end=3).broken(check) == []
    assert builder().add(QueueGapSeen, 1.5, C1, first=0, end=2).broken(check) == ["O5", "R4a"]
    assert builder().add(PullReceived, 1.5, C1, gap=(0, 3), epoch=epoch(1)).broken(check) == []


def test_commit_of_a_call_that_ignored_its_cancellation_is_a_violation() -> None:
    def builder(released_t: float) -> HistoryBuilder:
        reported = HistoryBuilder().granted(1, 1).call(2, 3, 1, 0, result=CallResult.CANCEL_IGNORED).committed(4, 1, 1)
        return reported.committed(released_t, 1, None, released=True)

    assert builder(2.9).broken(check) == ["O5"]
    assert builder(3.1).broken(check) == [], "what it did before the release left may be offered with it"
    again = (
        HistoryBuilder().granted(1, 1).call(2, 3, 1, 0, result=CallResult.CANCEL_IGNORED).granted(4, 2).call(5, 6, 2, 0).committed(7, 2, 1)
    )
    assert again.broken(check) == []


@pytest.mark.parametrize(("responded", "by", "laws"), [(False, "LOCK", []), (False, "SYNC", ["O5"]), (True, "LOCK", ["O5"])])
def test_release_lost_with_its_connection_may_be_repeated_with_the_finished_offset(responded: bool, by: str, laws: list[str]) -> None:
    reported = HistoryBuilder().granted(1, 1).call(2, 3, 1, 0, result=CallResult.CANCEL_IGNORED)
    if responded:
        reported.committed(2.9, 1, None, released=True)
    else:
        reported.add(CommitSent, 2.9, C1, epoch=epoch(1), offset=None, released=True)
    assert reported.committed(4, 1, 1, by=by).broken(check) == laws

"""C2 and R9 of concurrent groups: retry counts rise by one up to the limit, and only requested copies exist."""

import pytest

from support.concurrent_histories import DEAD, B, ConcurrentHistoryBuilder, R
from support.histories import C2, TERM
from sweep.checkers.copies import check, possible_duplicates
from sweep.events.universe import BrokerOpened

RETRY = R._replace(group="")


def builder(*, failed: bool = True) -> ConcurrentHistoryBuilder:
    reported = ConcurrentHistoryBuilder().joined().begun(1)
    return reported.shared(2, 2.5, 0, done=0).back(3, 0) if failed else reported


def test_redelivery_without_a_send_back_is_a_violation() -> None:
    assert builder().begun(12, queue=R).shared(13, 14, 0, queue=R, retries=1, bodies=(b"m0",)).broken(check) == []
    assert builder(failed=False).begun(12, queue=R).shared(13, 14, 0, queue=R, retries=1, bodies=(b"m0",)).broken(check) == ["C2"]


@pytest.mark.parametrize("retries", [0, 2])
def test_redelivery_with_a_wrong_retry_count_is_a_violation(retries: int) -> None:
    assert builder().begun(12, queue=R).shared(13, 14, 0, queue=R, retries=retries, bodies=(b"m0",)).broken(check) == ["C2"]


def test_first_delivery_with_a_retry_count_is_a_violation() -> None:
    assert builder(failed=False).shared(2, 2.5, 0, retries=1).broken(check) == ["C2"]


def retried(times: int) -> ConcurrentHistoryBuilder:
    """m0 failed `times` times and was sent back each time; mailing allows 2 retries."""
    reported = builder()
    for number in range(1, times):
        reported.shared(10 * number, 10 * number + 1, number, queue=R, retries=number, bodies=(b"m0",), done=0)
        reported.back(10 * number + 2, number, queue=R)
    return reported


def test_more_retries_than_the_group_allows_are_a_violation() -> None:
    assert retried(3).broken(check) == []
    assert retried(3).shared(50, 51, 9, queue=R, retries=3, bodies=(b"m0",)).broken(check) == ["C2"]


def test_dead_letter_with_retries_left_is_a_violation() -> None:
    assert retried(3).copy(b"m0", 3).broken(check) == []
    assert retried(2).copy(b"m0", 2).broken(check) == ["C2"]
    assert retried(2).copy(b"m0", 3).broken(check) == ["C2"]


def test_retry_copy_of_a_message_without_retries_left_is_a_violation() -> None:
    assert retried(3).copy(b"m0", 3, queue=RETRY).broken(check) == ["C2"]


def test_listener_may_dead_letter_a_message_immediately() -> None:
    reported = builder(failed=False).shared(2, 2.5, 0, done=0).back(3, 0, level=-1)
    assert reported.copy(b"m0", 1).broken(check) == []
    assert reported.copy(b"m0", 1, queue=RETRY, offset=1).broken(check) == ["C2"]


def test_unrequested_copy_is_a_violation() -> None:
    assert builder().copy(b"m7", 1, queue=RETRY).broken(check) == ["C2"]
    assert builder(failed=False).shared(2, 3, 0).copy(b"m0", 1, queue=RETRY).broken(check) == ["C2"]


def test_send_back_of_a_message_never_delivered_to_the_consumer_is_a_violation() -> None:
    assert builder(failed=False).shared(2, 2.5, 0, done=0).back(3, 1).broken(check) == ["C2"]
    assert builder(failed=False).shared(2, 2.5, 0, done=0).back(3, 0, where=C2).broken(check) == ["C2"]


def test_more_copies_than_requested_are_a_violation_and_requested_duplicates_are_counted() -> None:
    once = builder().copy(b"m0", 1, queue=RETRY)
    assert once.broken(check) == []
    assert possible_duplicates(once.history()) == 0
    twice = once.copy(b"m0", 1, queue=RETRY, offset=1)
    assert twice.broken(check) == ["R9"]
    asked_twice = twice.back(4, 0)
    assert asked_twice.broken(check) == []
    assert possible_duplicates(asked_twice.history()) == 1


def test_restart_may_duplicate_a_retry_copy_but_not_a_dead_letter() -> None:
    retry = builder().copy(b"m0", 1, queue=RETRY).copy(b"m0", 1, queue=RETRY, offset=1)
    assert retry.add(BrokerOpened, 20, (B[0], 2), term=TERM + 1).broken(check) == []
    dead = builder(failed=False).shared(2, 2.5, 0, done=0).back(3, 0, level=-1).copy(b"m0", 1).copy(b"m0", 1, queue=DEAD, offset=1)
    assert dead.add(BrokerOpened, 20, (B[0], 2), term=TERM + 1).broken(check) == ["R9"]

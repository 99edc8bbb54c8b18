"""C2 and R9 of concurrent groups: tries rise by one, none too many, copies that were asked for and no others."""

import pytest

from support.shared_stories import DEAD, B, R, SharedStory
from support.stories import C2, TERM
from sweep.checkers.copies import check, possible_duplicates
from sweep.events import BrokerOpened

RETRY = R._replace(group="")


def story(*, failed: bool = True) -> SharedStory:
    told = SharedStory().joined().begun(1)
    return told.shared(2, 2.5, 0, done=0).back(3, 0) if failed else told


def test_what_was_sent_back_comes_again_one_try_further() -> None:
    assert story().begun(12, queue=R).shared(13, 14, 0, queue=R, retries=1, bodies=(b"m0",)).broken(check) == []
    assert story(failed=False).begun(12, queue=R).shared(13, 14, 0, queue=R, retries=1, bodies=(b"m0",)).broken(check) == ["C2"]


@pytest.mark.parametrize("retries", [0, 2])
def test_another_number_of_tries_is_found(retries: int) -> None:
    assert story().begun(12, queue=R).shared(13, 14, 0, queue=R, retries=retries, bodies=(b"m0",)).broken(check) == ["C2"]


def test_a_first_try_has_no_retries_behind_it() -> None:
    assert story(failed=False).shared(2, 2.5, 0, retries=1).broken(check) == ["C2"]


def retried(times: int) -> SharedStory:
    """m0 failed `times` times and was sent back each time; mailing allows 2 retries."""
    told = story()
    for number in range(1, times):
        told.shared(10 * number, 10 * number + 1, number, queue=R, retries=number, bodies=(b"m0",), done=0)
        told.back(10 * number + 2, number, queue=R)
    return told


def test_no_more_retries_than_the_group_allows() -> None:
    assert retried(3).broken(check) == []
    assert retried(3).shared(50, 51, 9, queue=R, retries=3, bodies=(b"m0",)).broken(check) == ["C2"]


def test_a_dead_letter_has_no_try_left() -> None:
    assert retried(3).copy(b"m0", 3).broken(check) == []
    assert retried(2).copy(b"m0", 2).broken(check) == ["C2"]
    assert retried(2).copy(b"m0", 3).broken(check) == ["C2"]


def test_a_message_without_a_try_left_does_not_come_again() -> None:
    assert retried(3).copy(b"m0", 3, queue=RETRY).broken(check) == ["C2"]


def test_a_listener_may_give_a_message_up_at_once() -> None:
    told = story(failed=False).shared(2, 2.5, 0, done=0).back(3, 0, level=-1)
    assert told.copy(b"m0", 1).broken(check) == []
    assert told.copy(b"m0", 1, queue=RETRY, offset=1).broken(check) == ["C2"]


def test_a_copy_that_was_never_requested_is_found() -> None:
    assert story().copy(b"m7", 1, queue=RETRY).broken(check) == ["C2"]
    assert story(failed=False).shared(2, 3, 0).copy(b"m0", 1, queue=RETRY).broken(check) == ["C2"]


def test_a_message_that_its_consumer_was_never_given_is_not_sent_back() -> None:
    assert story(failed=False).shared(2, 2.5, 0, done=0).back(3, 1).broken(check) == ["C2"]
    assert story(failed=False).shared(2, 2.5, 0, done=0).back(3, 0, where=C2).broken(check) == ["C2"]


def test_as_many_copies_as_were_asked_for_and_they_are_counted() -> None:
    once = story().copy(b"m0", 1, queue=RETRY)
    assert once.broken(check) == []
    assert possible_duplicates(once.history()) == 0
    twice = once.copy(b"m0", 1, queue=RETRY, offset=1)
    assert twice.broken(check) == ["R9"]
    asked_twice = twice.back(4, 0)
    assert asked_twice.broken(check) == []
    assert possible_duplicates(asked_twice.history()) == 1


def test_a_restart_may_cut_in_two_the_write_that_ends_the_waiting_but_no_dead_letters() -> None:
    retry = story().copy(b"m0", 1, queue=RETRY).copy(b"m0", 1, queue=RETRY, offset=1)
    assert retry.add(BrokerOpened, 20, (B[0], 2), term=TERM + 1).broken(check) == []
    dead = story(failed=False).shared(2, 2.5, 0, done=0).back(3, 0, level=-1).copy(b"m0", 1).copy(b"m0", 1, queue=DEAD, offset=1)
    assert dead.add(BrokerOpened, 20, (B[0], 2), term=TERM + 1).broken(check) == ["R9"]

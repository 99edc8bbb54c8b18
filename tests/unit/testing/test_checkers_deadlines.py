"""R9: a send ends by its deadline, which counts from the call."""

import pytest

from support.histories import HistoryBuilder, P
from sweep.checkers.deadlines import check
from sweep.events.producers import SendAcked, SendBegan, SendFailed
from sweep.events.universe import PauseBegan, PauseEnded
from sweep.history import SendOutcome


def failed(key: str | None, at: float) -> HistoryBuilder:
    return HistoryBuilder().add(SendBegan, 1, P, key=key).add(SendFailed, at, P, outcome=SendOutcome.NOT_STORED)


@pytest.mark.parametrize(("key", "at", "broken"), [(None, 5.1, []), (None, 5.2, ["R9"]), ("k", 33.4, []), ("k", 33.6, ["R9"])])
def test_failed_send_past_its_deadline_is_a_violation(key: str | None, at: float, broken: list[str]) -> None:
    assert failed(key, at).broken(check) == broken


def test_acknowledged_send_past_its_deadline_is_a_violation() -> None:
    assert HistoryBuilder().add(SendBegan, 1, P, key=None).add(SendAcked, 9, P).broken(check) == ["R9"]


def test_send_of_a_suspended_process_may_end_late() -> None:
    assert (
        HistoryBuilder().add(SendBegan, 1, P, key=None).add(PauseBegan, 2, P).add(PauseEnded, 8, P).add(SendAcked, 9, P).broken(check) == []
    )


def test_unfinished_send_is_not_checked() -> None:
    assert HistoryBuilder().add(SendBegan, 1, P).broken(check) == []

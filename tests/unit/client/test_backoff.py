"""Backoff of a producer's queue: pauses after refusals, distrust after frames that were moved to another broker."""

import pytest

from lockstep.client.producer.machines.backoff import QueueBackoff
from lockstep.client.producer.machines.broker_state import RESPONSES, BrokerResponses


@pytest.mark.parametrize(
    ("refusals", "hint_ms", "pause_ms"),
    [
        (1, None, 50),
        (2, None, 100),
        (5, None, 800),
        (6, None, 1_000),
        (60, None, 1_000),
        (1, 200, 200),
        (9, 0, 1),
        (1, -5, 1),
        (1, 1_000, 1_000),
        (1, 1_001, 1_000),
        (1, "200", 50),
        (1, True, 50),
    ],
)
def test_refused_queue_pauses_for_the_brokers_hint_or_a_doubling_backoff(refusals: int, hint_ms: object, pause_ms: int) -> None:
    patience = QueueBackoff()
    patience.refusals = refusals
    patience.refused(hint_ms, 10_000)
    assert (patience.not_before_ms, patience.trusted_ms) == (10_000 + pause_ms, 0)


def test_distrust_of_a_broker_doubles_up_to_ten_seconds_and_resets_after_a_stored_frame() -> None:
    patience = QueueBackoff()
    for seconds in (1, 2, 4, 8, 10, 10):
        patience.frame_lost(5_000)
        assert patience.trusted_ms == 5_000 + seconds * 1_000
    patience.refused(None, 5_000)
    patience.stored()
    assert patience.not_before_ms == 0
    patience.frame_lost(5_000)
    assert patience.trusted_ms == 6_000
    patience.refused(None, 5_000)
    patience.reconnected()
    assert (patience.not_before_ms, patience.trusted_ms) == (0, 0)


def test_expected_response_time_is_twice_the_slowest_recent_response() -> None:
    broker = BrokerResponses("a")
    assert broker.expected_ms == 0
    broker.record_response(300)
    broker.record_response(20)
    assert broker.expected_ms == 600
    for _ in range(RESPONSES - 1):
        broker.record_response(20)
    assert broker.expected_ms == 40

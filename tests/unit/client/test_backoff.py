"""How long a queue is left alone: pauses after refusals, distrust after frames that ended elsewhere."""

import pytest

from lockstep.client.producer.backoff import QueueBackoff
from lockstep.client.producer.broker_state import RESPONSES, BrokerState


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
def test_a_refusal_is_followed_by_the_brokers_pause_or_a_doubled_one(refusals: int, hint_ms: object, pause_ms: int) -> None:
    patience = QueueBackoff()
    patience.refusals = refusals
    patience.refused(hint_ms, 10_000)
    assert (patience.not_before_ms, patience.trusted_ms) == (10_000 + pause_ms, 0)


def test_distrust_doubles_to_ten_seconds_and_ends_with_a_stored_frame() -> None:
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


def test_a_response_is_expected_within_twice_the_slowest_of_the_recent_ones() -> None:
    broker = BrokerState("a")
    assert broker.expected_ms == 0
    broker.record_response(300)
    broker.record_response(20)
    assert broker.expected_ms == 600
    for _ in range(RESPONSES - 1):
        broker.record_response(20)
    assert broker.expected_ms == 40

"""R9: the outcome of a send is correct."""

import pytest

from support.histories import C2, LOG, HistoryBuilder, P, Q
from sweep.checkers.sends import check
from sweep.events.producers import SendAcked, SendBegan, SendFailed
from sweep.events.sends import FrameWritten, LayoutSent
from sweep.events.universe import BrokerOpened, PowerCut
from sweep.history import SendOutcome

OTHER = LOG._replace(queue=1)


def failed(outcome: SendOutcome) -> HistoryBuilder:
    return HistoryBuilder().add(SendBegan, 1, P).add(SendFailed, 2, P, outcome=outcome)


def test_send_of_unknown_outcome_is_stored_at_most_once() -> None:
    assert failed(SendOutcome.UNKNOWN).read(9).broken(check) == []
    assert failed(SendOutcome.UNKNOWN).read(9, b"m0").broken(check) == []
    assert failed(SendOutcome.UNKNOWN).read(9, b"m0", b"m0").broken(check) == ["R9"]


def test_not_stored_message_in_a_log_or_a_call_is_a_violation() -> None:
    assert failed(SendOutcome.NOT_STORED).read(9).broken(check) == []
    assert failed(SendOutcome.NOT_STORED).read(9, b"m0").broken(check) == ["R9"]
    assert failed(SendOutcome.NOT_STORED).call(3, 3.1, 1, 0).broken(check) == ["R9"]


def test_message_that_was_never_sent_is_a_violation() -> None:
    assert HistoryBuilder().sent(1, b"m0", 0).read(9, b"m0", b"x").broken(check) == ["R9"]
    assert HistoryBuilder().sent(1, b"m0", 0).call(3, 3.1, 1, 1).broken(check) == ["R9"]


def test_keyed_message_stored_in_two_queues_is_a_violation() -> None:
    assert HistoryBuilder().sent(1, b"m0", 0).read(9, b"m0").read(9, b"m0", queue=OTHER).broken(check) == ["R9"]


def test_unkeyed_message_may_be_stored_once_per_abandoned_queue() -> None:
    def builder(*epochs: int) -> HistoryBuilder:
        reported = HistoryBuilder().sent(1, b"m0", 0, key=None)
        for number, producer_epoch in enumerate(epochs, 50):
            reported.add(FrameWritten, 1.1, P, layout=None, request=number, sequence=(0, producer_epoch, 0))
        return reported

    assert builder().read(9, b"m0", b"m0").broken(check) == ["R9"]
    assert builder(0).read(9, b"m0", b"m0").broken(check) == ["R9"]
    assert builder(1).read(9, b"m0", b"m0").broken(check) == []
    assert builder().add(FrameWritten, 1.1, P, queue=OTHER, request=9).read(9, b"m0").read(9, b"m0", queue=OTHER).broken(check) == []


def test_keyed_message_delivered_from_two_offsets_is_a_violation_except_after_a_power_cut() -> None:
    def builder() -> HistoryBuilder:
        return HistoryBuilder().sent(1, b"m0", 0).call(3, 3.1, 1, 0).call(4, 4.1, 2, 1, where=C2, bodies=(b"m0",))

    assert builder().broken(check) == ["R9"]
    moved = builder().add(PowerCut, 3.5, ("B", 0)).add(BrokerOpened, 3.6, ("B", 2), term=101)
    assert moved.broken(check) == []


@pytest.mark.parametrize(
    ("newer", "acked", "topic", "laws"),
    [(3, 9.0, "orders", []), (3, 2.0, "orders", ["R9"]), (1, 9.0, "orders", ["R9"]), (3, 9.0, "other", ["R9"])],
)
def test_unacknowledged_message_may_be_stored_again_after_a_deletion_of_its_topic(
    newer: int, acked: float, topic: str, laws: list[str]
) -> None:
    """m0 was written and delivered under layout 1, layout 2 deleted the topic, and m0 was written again at 3.5 under a newer layout."""
    reported = HistoryBuilder().add(SendBegan, 1, P).add(FrameWritten, 1, P, layout=(1, 7), request=50).call(2, 2.1, 1, 0)
    reported.add(LayoutSent, 3, P, topic=topic, counter=2, deleted=True)
    reported.add(FrameWritten, 3.5, P, queue=OTHER, layout=(newer, 7), request=51).add(SendAcked, acked, P, queue=OTHER)
    assert reported.call(4, 4.1, 2, 1, queue=Q._replace(queue=1), bodies=(b"m0",)).broken(check) == laws

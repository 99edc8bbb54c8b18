"""R9: the outcome of a send is correct, and a send ends by its deadline, which counts from the call."""

from support.histories import B2, C2, LOG, HistoryBuilder, P, Q, assert_faults
from sweep.checkers import deadlines
from sweep.checkers.sends import check
from sweep.events.producers import SendAcked, SendBegan, SendFailed
from sweep.events.sends import FrameWritten, LayoutSent
from sweep.events.universe import BrokerOpened, PowerCut
from sweep.history import SendOutcome

OTHER = LOG._replace(queue=1)
UNKNOWN, NOT_STORED = SendOutcome.UNKNOWN, SendOutcome.NOT_STORED


SENT = HistoryBuilder().sent(1, b"m0", 0)


def test_outcome_of_a_send_is_true() -> None:
    def failed(outcome: SendOutcome) -> HistoryBuilder:
        return HistoryBuilder().add(SendBegan, 1, P).add(SendFailed, 2, P, outcome=outcome)

    assert_faults(check, {
        "unknown, not stored": (failed(UNKNOWN).read(9), ""), "unknown, stored": (failed(UNKNOWN).read(9, b"m0"), ""),
        "unknown, stored twice": (failed(UNKNOWN).read(9, b"m0", b"m0"), "R9"), "not stored": (failed(NOT_STORED).read(9), ""),
        "not stored, in a log": (failed(NOT_STORED).read(9, b"m0"), "R9"), "in a call": (failed(NOT_STORED).call(3, 3.1, 1, 0), "R9"),
        "never sent, in a log": (SENT.read(9, b"m0", b"x"), "R9"), "never sent, in a call": (SENT.call(3, 3.1, 1, 1), "R9"),
        "keyed, in two queues": (SENT.read(9, b"m0").read(9, b"m0", queue=OTHER), "R9"),
    })  # fmt: skip


def test_unkeyed_message_may_be_stored_once_per_abandoned_queue_and_a_keyed_one_twice_only_by_a_power_cut() -> None:
    twice = SENT.call(3, 3.1, 1, 0).call(4, 4.1, 2, 1, where=C2, bodies=(b"m0",))

    def written(*epochs: int) -> HistoryBuilder:
        builder = HistoryBuilder().sent(1, b"m0", 0, key=None)
        for number, producer_epoch in enumerate(epochs, 50):
            builder = builder.add(FrameWritten, 1.1, P, layout=None, request=number, sequence=(0, producer_epoch, 0))
        return builder.read(9, b"m0", b"m0")

    moved = HistoryBuilder().sent(1, b"m0", 0, key=None).add(FrameWritten, 1.1, P, queue=OTHER, request=9)
    assert_faults(check, {
        "written once": (written(), "R9"), "again with its sequence": (written(0), "R9"), "under another epoch": (written(1), ""),
        "in another queue": (moved.read(9, b"m0").read(9, b"m0", queue=OTHER), ""), "keyed, delivered twice": (twice, "R9"),
        "keyed, after a power cut": (twice.add(PowerCut, 3.5, ("B", 0)).add(BrokerOpened, 3.6, B2, term=101), ""),
    })  # fmt: skip


def test_unacknowledged_message_may_be_stored_again_after_a_deletion_of_its_topic() -> None:
    """m0 was written and delivered under layout 1, layout 2 deleted the topic, and m0 was written again at 3.5 under a newer layout."""

    def again(newer: int, acked: float, topic: str = "orders") -> HistoryBuilder:
        builder = HistoryBuilder().add(SendBegan, 1, P).add(FrameWritten, 1, P, layout=(1, 7), request=50).call(2, 2.1, 1, 0)
        builder = builder.add(LayoutSent, 3, P, topic=topic, counter=2, deleted=True)
        builder = builder.add(FrameWritten, 3.5, P, queue=OTHER, layout=(newer, 7), request=51).add(SendAcked, acked, P, queue=OTHER)
        return builder.call(4, 4.1, 2, 1, queue=Q._replace(queue=1), bodies=(b"m0",))

    assert_faults(check, {
        "unacknowledged": (again(3, 9.0), ""), "acknowledged before": (again(3, 2.0), "R9"), "an older layout": (again(1, 9.0), "R9"),
        "another topic": (again(3, 9.0, "other"), "R9"),
    })  # fmt: skip


def test_send_past_its_deadline_is_a_violation() -> None:
    """Except if its process was suspended."""

    def began(key: str | None = None) -> HistoryBuilder:
        return HistoryBuilder().add(SendBegan, 1, P, key=key)

    def failed(key: str | None, t: float) -> HistoryBuilder:
        return began(key).add(SendFailed, t, P, outcome=NOT_STORED)

    assert_faults(deadlines.check, {
        "failed in time": (failed(None, 5.1), ""), "failed late": (failed(None, 5.2), "R9"),
        "keyed, in time": (failed("k", 33.4), ""), "keyed, late": (failed("k", 33.6), "R9"),
        "acknowledged late": (began().add(SendAcked, 9, P), "R9"),
        "suspended": (began().suspended(2, 8, P).add(SendAcked, 9, P), ""), "unfinished": (began("k"), ""),
    })  # fmt: skip

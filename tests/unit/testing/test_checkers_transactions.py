"""H1 to H5 of half messages."""

from typing import Any, Self

from lockstep.protocol.headers.transactions import COMMIT, ROLLBACK
from support.concurrent_histories import ConcurrentHistoryBuilder
from support.histories import LOG, B, P, assert_faults
from sweep.checkers.transactions import check
from sweep.events.producers import DelayedSendAcked, LocalEnded, SendBegan
from sweep.events.sends import EndResponded, HalvesWritten, LayoutSent
from sweep.events.universe import MessageStored, PowerCut, ReadingEnded

TRANSACTION = "0ddf15a9"


class Builder(ConcurrentHistoryBuilder):
    """m0 is a half message of one transaction."""

    def half(self, t: float, *, acked: bool = True, sequence: tuple[int, int, int] = (0, 1, 0)) -> Self:
        sent = self.add(SendBegan, t, P, body=b"m0", key="k", transaction=TRANSACTION)
        facts: dict[str, Any] = {"bodies": (b"m0",), "producer": "p", "sequence": sequence, "began": 1, "layout": None}
        written = sent.add(HalvesWritten, t, P, queue=LOG, request=7_000, **facts)
        return written.add(DelayedSendAcked, t + 0.002, P, body=b"m0", queue=LOG) if acked else written

    def local(self, t: float, *, committed: bool) -> Self:
        return self.add(LocalEnded, t, P, transaction=TRANSACTION, committed=committed)

    def placed(self, t: float, offset: int = 0) -> Self:
        return self.add(MessageStored, t, ("", 0), queue=LOG, offset=offset, body=b"m0")

    def final(self, t: float, first: int = 0) -> Self:
        return self.add(ReadingEnded, t, ("", 0), queue=LOG, first=first, end=9)

    def ended(self, t: float, outcome: int, code: int = 0) -> Self:
        return self.add(EndResponded, t, B, broker="broker-a", client=1, outcome=outcome, message_ids=("id",), code=code)


def begun() -> Builder:
    return Builder().joined().begun(1)


def committed() -> Builder:
    return begun().half(2).local(3, committed=True)


def test_message_of_a_committed_transaction_that_is_in_no_queue_is_a_violation() -> None:
    assert_faults(check, {
        "stored": (committed().placed(90).final(99), ""),
        "lost": (committed().final(99), "H1"),
        "not acknowledged": (begun().half(2, acked=False).local(3, committed=True).final(99), ""),
        "not decided": (begun().half(2).final(99), ""),
        "rolled back": (begun().half(2).local(3, committed=False).final(99), ""),
        "removed by retention": (committed().final(99, first=1), ""),
        "topic deleted": (
            committed().add(LayoutSent, 4, ("A", 1), broker="broker-a", topic=LOG.topic, counter=2, deleted=True).final(99), "",
        ),
        "queue not read": (committed(), ""),
    })  # fmt: skip


def test_message_that_is_stored_twice_is_a_violation() -> None:
    twice = committed().placed(90).placed(90, 1).final(99)
    assert_faults(check, {
        "twice": (twice, "H1"),
        "in two streams": (committed().half(2.5, sequence=(0, 2, 0)).placed(90).placed(90, 1).final(99), ""),
    })  # fmt: skip


def test_message_that_is_given_without_a_commit_is_a_violation() -> None:
    """The database decides, at one moment."""

    def given(builder: Builder, t: float) -> Builder:
        return builder.shared(t, t + 0.1, 0).read(500, b"m0")

    assert_faults(check, {
        "after": (given(committed(), 4), ""),
        "before": (given(begun().half(2), 2.5).local(3, committed=True), "H2"),
        "not decided": (given(begun().half(2), 4), "H2 H3"),
        "rolled back": (given(begun().half(2).local(3, committed=False), 4), "H3 H3"),
        "in the log": (begun().half(2).local(3, committed=False).placed(90), "H3"),
    })  # fmt: skip


def test_outcome_that_changes_is_a_violation() -> None:
    once = begun().half(2).ended(3, COMMIT)
    assert_faults(check, {
        "repeated": (once.ended(4, COMMIT), ""),
        "changed": (once.ended(4, ROLLBACK), "H5"),
        "back": (begun().half(2).ended(3, ROLLBACK).ended(4, COMMIT), "H5"),
        "refused": (once.ended(4, ROLLBACK, code=200), ""),
        "after a power cut": (once.add(PowerCut, 3.5, B).ended(4, ROLLBACK), ""),
    })  # fmt: skip

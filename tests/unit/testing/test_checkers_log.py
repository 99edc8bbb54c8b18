"""O8, R1, R2, R7: the log."""

from typing import Any

from support.histories import B2, C2, HELD, LOG, B, HistoryBuilder, P, assert_faults
from sweep.checkers.log import check
from sweep.events.producers import SendAcked, SendBegan
from sweep.events.sends import FrameResponded, FrameWritten
from sweep.events.universe import BrokerOpened, Fault, MessageStored, PowerCut, ReadingEnded

OTHER = LOG._replace(queue=1)


def sent(t: float = 1, flush: str = "async", **facts: Any) -> HistoryBuilder:
    return HistoryBuilder(flush=flush).sent(t, b"m0", 0, **facts)


BOTH = sent().sent(2, b"m1", 1)


def test_acknowledged_messages_at_their_offsets_are_no_violation() -> None:
    anywhere = HistoryBuilder().add(SendBegan, 1, P).add(SendAcked, 2, P, offset=-1)
    kept = HistoryBuilder().add(BrokerOpened, 0.5, B2, term=101, removes_nothing=True).sent(1, b"m0", 0)
    hole = HistoryBuilder().add(MessageStored, 9, offset=0, body=b"a").add(MessageStored, 9, offset=2, body=b"b")
    assert_faults(check, {
        "both": (BOTH.read(9, b"m0", b"m1"), ""), "lost": (BOTH.read(9, b"m0"), "R1"), "altered": (sent().read(9, b"x"), "O8 R1"),
        "acknowledged without an offset": (anywhere.read(9, b"x", b"m0"), ""),
        "in another queue than that": (anywhere.read(9, b"x").read(9, b"m0", queue=OTHER), "R1"),
        "removed by retention": (BOTH.read(9, b"m1", first=1), ""),
        "removed without retention": (kept.sent(2, b"m1", 1).read(9, b"m1", first=1), "R1"),
        "there without retention": (kept.read(9, b"m0"), ""),
        "the end is missing": (HistoryBuilder().read(9, b"m0", b"m1").add(ReadingEnded, 9.1, first=0, end=3), "O8"),
        "a hole": (hole.add(ReadingEnded, 9, first=0, end=3), "O8"),
    })  # fmt: skip


def test_power_cut_may_lose_at_most_one_flush_interval_and_one_sync() -> None:
    """That are 1.5 s, in which time while the broker is suspended does not count."""

    def cut(response_t: float) -> HistoryBuilder:
        return HistoryBuilder().sent(response_t - 0.01, b"m0", 0, acked=response_t + 0.001).power_cut(10, 11).read(19)

    def faulty(kind: str, t: float, cut_t: float = 10) -> HistoryBuilder:
        """A slow disk is slow for 14 s, then an interval and a sync follow. A failing disk ends the broker after 10 s."""
        return sent(5).add(Fault, t, ("B", 0), kind=kind).power_cut(cut_t, cut_t + 1).read(cut_t + 9)

    # Answered at 5, killed at 5.2. The power is cut at 10.
    killed = sent(5).killed(5.2)

    def queues(lost: int, left: int) -> HistoryBuilder:
        """A message at the position `lost` of the log is lost, and one of another queue, at `left`, is not."""
        builder = HistoryBuilder().sent(9.8, b"m0", 0, position=lost).sent(9.9, b"n0", 0, queue=OTHER, position=left)
        return builder.power_cut(10, 11).read(19).read(19, b"n0", queue=OTHER)

    assert_faults(check, {
        "a suffix": (queues(200, 100), ""), "no suffix": (queues(100, 200), "R1"),
        "before": (cut(8.499), "R1"), "at the limit": (cut(8.501), ""), "after": (cut(9.9), ""),
        "suspended": (sent(5).suspended(5.5, 9.5, B).power_cut(10, 11).read(19), ""),
        "slow": (faulty("disk slow", 4), ""), "slow later, synced by 6.5": (faulty("disk slow", 6.6), "R1"),
        "slow, at the limit": (faulty("disk slow", 4, 19.4), ""), "slow, after it": (faulty("disk slow", 4, 19.6), "R1"),
        "full": (faulty("disk full", 4), ""), "full, after the limit": (faulty("disk full", 4, 16.6), "R1"),
        "a rotten snapshot": (faulty("disk rot", 4), "R1"),
        "killed before it, and the next start ends": (killed.power_cut(10, 11, B2).read(19), ""),
        "killed before it, and opened": (killed.opened(6).add(PowerCut, 10, ("B", 0)).opened(11, ("B", 3), term=102).read(19), "R1"),
    })  # fmt: skip


def test_loss_under_sync_flush_or_after_a_kill_is_a_violation() -> None:
    """Except of messages that their producer required only to be written."""

    def reused(*, written: bool) -> HistoryBuilder:
        return sent(9.9, "sync", written=written).power_cut(10, 11).sent(12, b"n0", 0, answerer=B2).read(19, b"n0")

    assert_faults(check, {
        "sync": (sent(9.9, "sync").power_cut(10, 11).read(19), "R1"), "killed": (sent(9.9).killed(10).opened(11).read(19), "R1"),
        "written": (sent(9.9, "sync", written=True).power_cut(10, 11).read(19), ""),
        "written, no cut": (sent(9.9, "sync", written=True).read(19), "R1"),
        "offset reused, written": (reused(written=True), ""), "offset reused, sync": (reused(written=False), "O8 R1"),
    })  # fmt: skip


def test_offset_may_be_reused_only_across_a_power_cut_under_async_flush() -> None:
    """m0 was acknowledged at offset 0, then n0 is, at 12. The power is cut at 10."""

    def replaced(builder: HistoryBuilder) -> HistoryBuilder:
        return builder.sent(12, b"n0", 0, answerer=B2).read(19, b"n0")

    in_flight = HistoryBuilder().add(SendBegan, 9.8, P).add(FrameWritten, 9.8, P, request=99).add(FrameResponded, 9.9, request=99)
    prefetched = HistoryBuilder().call(10.5, 10.6, 1, 0).power_cut(10, 11)

    def generations(generation: int) -> HistoryBuilder:
        called = HistoryBuilder().granted(9, 1).call(9.5, 9.6, 1, 0).power_cut(10, 11).granted(13, 2, C2, generation=generation)
        return called.call(14, 14.1, 2, 0, where=C2, bodies=(b"n0",)).read(19, b"n0")

    assert_faults(check, {
        "cut": (replaced(sent(9.9).power_cut(10, 11)), ""), "no cut": (replaced(sent(9.9)), "O8 R1"),
        "killed": (replaced(sent(9.9).killed(10).opened(11)), "O8 R1"),
        "the response was in flight": (replaced(in_flight.add(SendAcked, 10.001, P).power_cut(10, 11)), ""),
        "delivered, granted before": (replaced(prefetched.granted(9, 1)), ""),
        "delivered, granted after": (replaced(prefetched.granted(10.2, 1)), "O8 R7"),
        "in a higher generation": (generations(2), ""), "in the same generation": (generations(1), "O8"),
    })  # fmt: skip


def test_message_acknowledged_before_another_is_sent_must_have_a_lower_offset() -> None:
    other = HistoryBuilder().sent(2, b"m0", 0).read(9, b"m0", b"m1")
    rows = {"acknowledged before": (other.sent(1, b"m1", 1), "R2"), "acknowledged after": (other.sent(1, b"m1", 1, acked=3), "")}
    assert_faults(check, rows)


def test_delivered_message_missing_in_the_final_log_is_a_violation() -> None:
    delivered = HELD.call(2, 2.1, 1, 0)
    lost = HistoryBuilder(flush="sync").granted(9, 1).call(9.9, 9.95, 1, 0).sent(12, b"n0", 0, answerer=B2).power_cut(10, 11)
    assert_faults(check, {
        "there": (delivered.sent(0.5, b"m0", 0).read(9, b"m0"), ""),
        "another message": (delivered.sent(0.5, b"n0", 0).read(9, b"n0"), "O8 O8 R7"), "under sync flush": (lost.read(19, b"n0"), "O8 R7"),
    })  # fmt: skip

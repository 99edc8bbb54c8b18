"""O8, R1, R2, R7: the log."""

import pytest

from support.histories import C2, LOG, B, HistoryBuilder, P
from sweep.checkers.log import check
from sweep.events.producers import SendAcked, SendBegan
from sweep.events.sends import FrameResponded, FrameWritten
from sweep.events.universe import BrokerOpened, Fault, MessageStored, PauseBegan, PauseEnded, PowerCut, ProcessEnded, ReadingEnded

B2 = ("B", 2)
OTHER = LOG._replace(queue=1)


def cut(builder: HistoryBuilder, t: float = 10.0, opened_t: float = 11.0) -> HistoryBuilder:
    builder.add(ProcessEnded, t, B, how="power").add(PowerCut, t, ("B", 0))
    return builder.add(BrokerOpened, opened_t, B2, term=101)


def test_acknowledged_messages_at_their_offsets_are_no_violation() -> None:
    assert HistoryBuilder().sent(1, b"m0", 0).sent(2, b"m1", 1).read(9, b"m0", b"m1").broken(check) == []


def test_lost_or_altered_message_is_a_violation() -> None:
    assert HistoryBuilder().sent(1, b"m0", 0).sent(2, b"m1", 1).read(9, b"m0").broken(check) == ["R1"]
    assert HistoryBuilder().sent(1, b"m0", 0).read(9, b"x").broken(check) == ["O8", "R1"]


def test_acknowledgement_without_an_offset_allows_any_offset_of_its_queue() -> None:
    builder = HistoryBuilder().add(SendBegan, 1, P).add(SendAcked, 2, P, offset=-1)
    assert builder.read(9, b"x", b"m0").broken(check) == []
    lost = HistoryBuilder().add(SendBegan, 1, P).add(SendAcked, 2, P, offset=-1).read(9, b"x").read(9, b"m0", queue=OTHER)
    assert lost.broken(check) == ["R1"]


def test_messages_removed_by_retention_are_not_checked() -> None:
    assert HistoryBuilder().sent(1, b"m0", 0).sent(2, b"m1", 1).read(9, b"m1", first=1).broken(check) == []


def test_missing_first_message_is_a_violation_if_retention_removes_nothing() -> None:
    kept = HistoryBuilder().add(BrokerOpened, 0.5, B2, term=101, removes_nothing=True).sent(1, b"m0", 0).sent(2, b"m1", 1)
    assert kept.read(9, b"m1", first=1).broken(check) == ["R1"]
    kept = HistoryBuilder().add(BrokerOpened, 0.5, B2, term=101, removes_nothing=True).sent(1, b"m0", 0)
    assert kept.read(9, b"m0").broken(check) == []


def test_gap_in_queue_offsets_is_a_violation() -> None:
    assert HistoryBuilder().read(9, b"m0", b"m1").add(ReadingEnded, 9.1, first=0, end=3).broken(check) == ["O8"]
    hole = (
        HistoryBuilder()
        .add(MessageStored, 9, offset=0, body=b"a")
        .add(MessageStored, 9, offset=2, body=b"b")
        .add(ReadingEnded, 9, first=0, end=3)
    )
    assert hole.broken(check) == ["O8"]


@pytest.mark.parametrize(("response_t", "laws"), [(8.499, ["R1"]), (8.501, []), (9.9, [])])
def test_power_cut_may_lose_at_most_one_flush_interval_and_one_sync(response_t: float, laws: list[str]) -> None:
    builder = HistoryBuilder().sent(response_t - 0.01, b"m0", 0, acked=response_t + 0.001)
    assert cut(builder).read(19).broken(check) == laws


def test_loss_under_sync_flush_or_after_a_kill_is_a_violation() -> None:
    assert cut(HistoryBuilder(flush="sync").sent(9.9, b"m0", 0)).read(19).broken(check) == ["R1"]
    killed = HistoryBuilder().sent(9.9, b"m0", 0).add(ProcessEnded, 10, B, how="kill").add(BrokerOpened, 11, B2, term=101).read(19)
    assert killed.broken(check) == ["R1"]


def test_suspended_time_does_not_count_toward_the_flush_interval() -> None:
    builder = HistoryBuilder().sent(5, b"m0", 0).add(PauseBegan, 5.5, B).add(PauseEnded, 9.5, B)
    assert cut(builder).read(19).broken(check) == []


@pytest.mark.parametrize(("kind", "t", "laws"), [
    ("disk slow", 4, []),  # until 18, and then the next sync
    ("disk slow", 6.6, ["R1"]),  # responses at 5 were synced by 6.5
    ("disk full", 4, []),  # met at 6.5, ended by 16.5
    ("disk rot", 4, ["R1"]),  # a snapshot, not the log
])  # fmt: skip
def test_slow_or_failing_disk_extends_the_flush_time(kind: str, t: float, laws: list[str]) -> None:
    assert cut(HistoryBuilder().sent(5, b"m0", 0).add(Fault, t, ("B", 0), kind=kind)).read(19).broken(check) == laws


@pytest.mark.parametrize(("kind", "cut_t", "laws"), [("disk slow", 19.4, []), ("disk slow", 19.6, ["R1"]), ("disk full", 16.6, ["R1"])])
def test_disk_fault_extends_the_flush_time_for_a_limited_time(kind: str, cut_t: float, laws: list[str]) -> None:
    """A slow disk is slow from 4 to 18, then an interval and a sync follow. A failing disk ends the broker after 10 s."""
    builder = HistoryBuilder().sent(5, b"m0", 0).add(Fault, 4, ("B", 0), kind=kind)
    assert cut(builder, cut_t, cut_t + 1).read(cut_t + 9).broken(check) == laws


def test_loss_of_a_process_killed_before_the_power_cut_counts_from_its_own_end() -> None:
    """Answered at 5, killed at 5.2. The next start ends during recovery, then the power is cut."""

    def builder() -> HistoryBuilder:
        return HistoryBuilder().sent(5, b"m0", 0).add(ProcessEnded, 5.2, B, how="kill")

    lost = builder().add(ProcessEnded, 10, B2, how="power").add(PowerCut, 10, ("B", 0)).add(BrokerOpened, 11, ("B", 3), term=102).read(19)
    assert lost.broken(check) == []
    opened = builder().add(BrokerOpened, 6, B2, term=101).add(PowerCut, 10, ("B", 0)).add(BrokerOpened, 11, ("B", 3), term=102).read(19)
    assert opened.broken(check) == ["R1"]


def test_power_cut_must_lose_a_suffix_of_the_log_across_all_queues() -> None:
    def builder(lost: int, left: int) -> HistoryBuilder:
        sent = HistoryBuilder().sent(9.8, b"m0", 0, position=lost).sent(9.9, b"n0", 0, queue=OTHER, position=left)
        return cut(sent).read(19).read(19, b"n0", queue=OTHER)

    assert builder(200, 100).broken(check) == []
    assert builder(100, 200).broken(check) == ["R1"]


def replaced(t: float) -> HistoryBuilder:
    """m0 was acknowledged at offset 0, then n0 is, at t."""
    return HistoryBuilder().sent(9.9, b"m0", 0).sent(t, b"n0", 0, answerer=B2).read(19, b"n0")


@pytest.mark.parametrize(("written", "broken"), [(True, []), (False, ["R1"])])
def test_message_required_only_written_may_be_lost_under_sync_flush(written: bool, broken: list[str]) -> None:
    assert cut(HistoryBuilder(flush="sync").sent(9.9, b"m0", 0, written=written)).read(19).broken(check) == broken
    assert HistoryBuilder(flush="sync").sent(9.9, b"m0", 0, written=written).read(19).broken(check) == ["R1"], "no power was cut"


@pytest.mark.parametrize(("written", "broken"), [(True, []), (False, ["O8"])])
def test_offset_of_a_message_required_only_written_may_be_reused_under_sync_flush(written: bool, broken: list[str]) -> None:
    builder = cut(HistoryBuilder(flush="sync").sent(9.9, b"m0", 0, written=written)).sent(12, b"n0", 0, answerer=B2).read(19, b"n0")
    assert [law for law in builder.broken(check) if law == "O8"] == broken


def test_offset_may_be_reused_only_across_a_power_cut_under_async_flush() -> None:
    assert cut(replaced(12)).broken(check) == []
    assert replaced(12).broken(check) == ["O8", "R1"]
    killed = replaced(12).add(ProcessEnded, 10, B, how="kill").add(BrokerOpened, 11, B2, term=101)
    assert "O8" in killed.broken(check)


def test_acknowledgement_in_flight_during_a_power_cut_counts_as_before_it() -> None:
    builder = HistoryBuilder().add(SendBegan, 9.8, P).add(FrameWritten, 9.8, P, request=99).add(FrameResponded, 9.9, request=99)
    builder.add(SendAcked, 10.001, P)
    assert cut(builder.sent(12, b"n0", 0, answerer=B2).read(19, b"n0")).broken(check) == []


def test_prefetched_message_counts_by_the_time_of_its_grant() -> None:
    def builder(granted_t: float) -> HistoryBuilder:
        return cut(HistoryBuilder().granted(granted_t, 1).call(10.5, 10.6, 1, 0).sent(12, b"n0", 0, answerer=B2).read(19, b"n0"))

    assert builder(9).broken(check) == []
    assert builder(10.2).broken(check) == ["O8", "R7"]


def test_reused_offsets_require_a_higher_generation() -> None:
    def builder(generation: int) -> HistoryBuilder:
        called = cut(HistoryBuilder().granted(9, 1).call(9.5, 9.6, 1, 0)).granted(13, 2, C2, generation=generation)
        return called.call(14, 14.1, 2, 0, where=C2, bodies=(b"n0",)).read(19, b"n0")

    assert builder(2).broken(check) == []
    assert builder(1).broken(check) == ["O8"]


def test_message_acknowledged_before_another_is_sent_must_have_a_lower_offset() -> None:
    assert HistoryBuilder().sent(1, b"m1", 1).sent(2, b"m0", 0).read(9, b"m0", b"m1").broken(check) == ["R2"]
    assert HistoryBuilder().sent(1, b"m1", 1, acked=3).sent(2, b"m0", 0).read(9, b"m0", b"m1").broken(check) == []


def test_delivered_message_missing_in_the_final_log_is_a_violation() -> None:
    assert HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0).sent(0.5, b"m0", 0).read(9, b"m0").broken(check) == []
    assert "R7" in HistoryBuilder().granted(1, 1).call(2, 2.1, 1, 0).sent(0.5, b"n0", 0).read(9, b"n0").broken(check)
    lost = HistoryBuilder(flush="sync").granted(9, 1).call(9.9, 9.95, 1, 0).sent(12, b"n0", 0, answerer=B2)
    assert "R7" in cut(lost).read(19, b"n0").broken(check)


def test_text_of_a_lost_message_names_log_offset_and_time() -> None:
    (found,) = check(HistoryBuilder().sent(1, b"m0", 0).read(9).history())
    for fact in (str(LOG), "offset 0", "m0", "1.002", "nothing is there"):
        assert fact in found.text

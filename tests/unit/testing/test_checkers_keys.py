"""O4: the order of a key."""

import pytest

from support.histories import C1, C2, LOG, HistoryBuilder
from sweep.checkers.keys import check
from sweep.events.consumers import ConsumerStarted
from sweep.history import CallResult, QueueKey

OTHER = QueueKey("", "broker-b", "orders", 0)


def pair(first: int, second: int, *, second_sent_t: float = 2.0, **facts: object) -> HistoryBuilder:
    """m0 is acknowledged at 1.002, then m1 of the same key is sent. They are stored at these offsets."""
    bodies = [b"m0", b"m1"] if first < second else [b"m1", b"m0"]
    builder = HistoryBuilder().sent(1, b"m0", first).sent(second_sent_t, b"m1", second, **facts)
    return builder.read(9, *bodies)


def test_messages_of_a_key_out_of_send_order_are_a_violation() -> None:
    assert pair(0, 1).broken(check) == []
    assert pair(1, 0).broken(check) == ["O4"]


@pytest.mark.parametrize(("t", "laws"), [(1.001, []), (1.0021, ["O4"])])
def test_concurrent_sends_of_a_key_are_not_ordered(t: float, laws: list[str]) -> None:
    assert pair(1, 0, second_sent_t=t).broken(check) == laws


def test_messages_of_other_keys_without_key_or_of_other_layouts_are_not_ordered() -> None:
    assert pair(1, 0, key="other").broken(check) == []
    assert pair(1, 0, key=None).broken(check) == []
    assert pair(1, 0, layout=(2, 7)).broken(check) == []


def test_key_in_two_queues_within_one_layout_is_a_violation() -> None:
    def moved(layout: tuple[int, int]) -> HistoryBuilder:
        builder = HistoryBuilder().sent(1, b"m0", 0).sent(2, b"m1", 0, queue=OTHER, layout=layout)
        return builder.read(9, b"m0").read(9, b"m1", queue=OTHER)

    assert moved((1, 7)).broken(check) == ["O4"]
    assert moved((2, 7)).broken(check) == []


def test_lost_message_is_not_compared() -> None:
    builder = HistoryBuilder().sent(1, b"m0", 5).sent(2, b"m1", 0).read(9, b"m1")
    assert builder.broken(check) == []


def done(first: bytes, second: bytes, *, expression: str = "*") -> HistoryBuilder:
    """m0 and m1 are stored in order. Two consumers handle them one after the other."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", expression),))
    builder.sent(1, b"m0", 0, tags="B").sent(2, b"m1", 1, tags="A").read(9, b"m0", b"m1")
    builder.call(3, 3.1, 1, int(first[1:]), where=C1)
    return builder.call(4, 4.1, 2, int(second[1:]), where=C2)


def test_group_that_handles_a_key_out_of_order_is_a_violation() -> None:
    assert done(b"m0", b"m1").broken(check) == []
    assert done(b"m1", b"m0").broken(check) == ["O4"]


def test_consumer_that_filters_the_first_message_may_handle_the_second_first() -> None:
    assert done(b"m1", b"m0", expression="A").broken(check) == []


def test_message_filtered_by_one_member_may_be_handled_late_after_a_reset() -> None:
    def builder(*, passed: bool) -> HistoryBuilder:
        """C1 subscribes to A and skips m0. C2 subscribes to both and handles m1, and m0 after a reset."""
        reported = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", "A"),)).add(ConsumerStarted, 0.6, C2)
        reported.sent(1, b"m0", 0, tags="B").sent(2, b"m1", 1, tags="A").read(9, b"m0", b"m1")
        if passed:
            reported.committed(3, 1, 1, C1)
        return reported.call(4, 4.1, 2, 1, where=C2).call(6, 6.1, 3, 0, where=C2)

    assert builder(passed=True).broken(check) == []
    assert builder(passed=False).broken(check) == ["O4"]


def test_failed_calls_do_not_count_and_messages_within_a_call_must_be_ordered() -> None:
    def builder() -> HistoryBuilder:
        return HistoryBuilder().sent(1, b"m0", 0).sent(2, b"m1", 1).read(9, b"m0", b"m1")

    assert builder().call(3, 3.1, 1, 1, result=CallResult.ERROR).call(4, 4.1, 1, 0, 1).broken(check) == []
    assert builder().call(4, 4.1, 1, 1, 0).broken(check) == ["O4"]


def test_text_of_a_key_violation_names_key_messages_offsets_and_times() -> None:
    (found,) = check(pair(1, 0).history())
    for fact in ('"k"', "m0", "m1", str(LOG), "1.002", "2.000"):
        assert fact in found.text

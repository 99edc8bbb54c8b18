"""O4: the order of a key."""

from typing import Any

from support.histories import C1, C2, HistoryBuilder, assert_faults
from sweep.checkers.keys import check
from sweep.events.consumers import ConsumerStarted
from sweep.history import CallResult, QueueKey

OTHER = QueueKey("", "broker-b", "orders", 0)


def pair(first: int, second: int, t: float = 2.0, **facts: Any) -> HistoryBuilder:
    """m0 is acknowledged at 1.002, m1 of the same key is sent at t. They are stored at these offsets."""
    bodies = [b"m0", b"m1"] if first < second else [b"m1", b"m0"]
    return HistoryBuilder().sent(1, b"m0", first).sent(t, b"m1", second, **facts).read(9, *bodies)


def test_messages_of_a_key_are_stored_in_send_order_in_one_queue() -> None:
    queues = HistoryBuilder().sent(1, b"m0", 0).read(9, b"m0").read(9, b"m1", queue=OTHER)
    assert_faults(check, {
        "in order": (pair(0, 1), ""), "out of order": (pair(1, 0), "O4"),
        "sent together": (pair(1, 0, 1.001), ""), "sent after it": (pair(1, 0, 1.0021), "O4"),
        "other keys": (pair(1, 0, key="other"), ""), "no key": (pair(1, 0, key=None), ""), "other layouts": (pair(1, 0, layout=(2, 7)), ""),
        "two queues of a layout": (queues.sent(2, b"m1", 0, queue=OTHER), "O4"),
        "two queues of two layouts": (queues.sent(2, b"m1", 0, queue=OTHER, layout=(2, 7)), ""),
        "one is lost": (HistoryBuilder().sent(1, b"m0", 5).sent(2, b"m1", 0).read(9, b"m1"), ""),
    })  # fmt: skip


def stored(expression: str = "*") -> HistoryBuilder:
    """m0 and m1 are stored in order. C1 subscribes to the expression."""
    builder = HistoryBuilder().add(ConsumerStarted, 0.5, C1, expressions=(("orders", expression),))
    return builder.sent(1, b"m0", 0, tags="B").sent(2, b"m1", 1, tags="A").read(9, b"m0", b"m1")


def test_group_handles_the_messages_of_a_key_in_order() -> None:
    """A message that C1 filters and passes may be handled by C2 after a reset. Failed calls do not count."""

    def done(first: int, second: int, expression: str = "*") -> HistoryBuilder:
        return stored(expression).call(3, 3.1, 1, first).call(4, 4.1, 2, second, where=C2)

    def after_reset(builder: HistoryBuilder) -> HistoryBuilder:
        return builder.add(ConsumerStarted, 0.6, C2).call(4, 4.1, 2, 1, where=C2).call(6, 6.1, 3, 0, where=C2)

    assert_faults(check, {
        "in order": (done(0, 1), ""), "out of order": (done(1, 0), "O4"), "the first is filtered": (done(1, 0, "A"), ""),
        "the first was passed": (after_reset(stored("A").committed(3, 1, 1)), ""), "it was not": (after_reset(stored("A")), "O4"),
        "failed": (stored().call(3, 3.1, 1, 1, result=CallResult.ERROR).call(4, 4.1, 1, 0, 1), ""),
        "in one call": (stored().call(4, 4.1, 1, 1, 0), "O4"),
    })  # fmt: skip

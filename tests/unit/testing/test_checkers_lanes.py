"""K1 to K3: the calls of a group that consumes by key, and what its grants know as handled."""

from support.histories import C1, C2, HELD, B, HistoryBuilder, assert_faults
from sweep.checkers.lanes import check
from sweep.events.consumers import CallEnded, ConsumerStarted
from sweep.events.progress import CommitSent, ProgressReset

LANES = HELD.add(ConsumerStarted, 0.1, C1, lanes=4).add(ConsumerStarted, 0.1, C2, lanes=4)
"""C1 and C2 consume by key. C1 is granted the queue at 1."""


def test_calls_of_a_key_follow_each_other_and_only_handled_messages_are_committed() -> None:
    """The limit is 4 calls at a time. In the final log, no message has a key."""

    def stored(*done: int) -> HistoryBuilder:
        return LANES.read(9, b"m0", b"m1", b"m2", b"m3", b"m4").granted(2, 2, done=done)

    def calls(builder: HistoryBuilder, *offsets: int) -> HistoryBuilder:
        for number, offset in enumerate(offsets):
            builder = builder.call(2 + number / 10, 2.05 + number / 10, 2, offset, keys=(None,))
        return builder

    def at_once(*keys: str) -> HistoryBuilder:
        builder = LANES
        for offset, key in enumerate(keys):
            builder = builder.call(1.1, None, 1, offset, keys=(key,))
        return builder

    assert_faults(check, {
        "4 calls": (at_once("a", "b", "c", "d"), ""), "5 calls": (at_once("a", "b", "c", "d", "e"), "K3"),
        "of one key": (at_once("a", "a"), "K1"), "of two keys": (LANES.call(1.1, 1.2, 1, 0, 1, keys=("a", "b")), "K1"),
        "in order": (calls(stored(), 0, 1, 2).committed(2.9, 2, 3), ""), "again": (calls(stored(), 0, 1, 1), "K1"),
        "one is left out": (calls(stored(), 0, 2), "K1"), "one of the ranges": (calls(stored(1, 2), 0, 1), "K1 K2"),
        "one not handled": (calls(stored(), 0).committed(2.9, 2, 2), "K2"),
    })  # fmt: skip


def test_grant_that_knows_a_later_message_of_a_key_without_an_earlier_one_is_a_violation() -> None:
    def granted(key: str, *done: int) -> HistoryBuilder:
        builder = LANES.call(1.1, 1.2, 1, 3, keys=("a",)).call(1.3, 1.4, 1, 5, keys=(key,))
        return builder.add(CommitSent, 1.5, C1, done=(3, 4, 5, 6)).granted(2, 2, C2, done=done)

    assert_faults(check, {
        "no message": (granted("a"), ""), "the earlier one": (granted("a", 3, 4), ""), "both": (granted("a", 3, 4, 5, 6), ""),
        "the later one": (granted("a", 5, 6), "K2"), "a later one of another key": (granted("b", 5, 6), ""),
    })  # fmt: skip


def test_message_that_a_power_cut_removed_while_its_call_ran_is_not_missing() -> None:
    """The call of offset 3 ends after the cut. In the next generation another message, of another key, has that offset."""

    def cut(generation: int) -> HistoryBuilder:
        builder = LANES.call(1.1, None, 1, 3, call=1, keys=("a",)).power_cut(1.2, 1.4).add(CallEnded, 1.3, C1, call=1)
        builder = builder.granted(2, 2, C2, generation=generation).call(2.1, 2.2, 2, 5, where=C2, keys=("a",))
        return builder.committed(2.5, 2, 0, C2, done=(5, 6)).granted(3, 3, generation=generation, done=(5, 6))

    kept = LANES.call(1.1, 1.2, 1, 3, keys=("a",)).committed(1.3, 1, 0, done=(3, 4))
    reset = kept.add(ProgressReset, 1.4, B, offset=0, before=0).granted(2, 2, C2, done=(3, 4))
    assert_faults(check, {
        "the next generation": (cut(2), ""), "the same generation": (cut(1), "K2"),
        "ranges that the next owner knows": (kept.granted(2, 2, C2, done=(3, 4)), ""), "or not": (kept.granted(2, 2, C2), "K2"),
        "ranges from before a reset": (reset, "K2"), "a reset that a cut has removed": (reset.power_cut(1.5, 1.6), ""),
    })  # fmt: skip

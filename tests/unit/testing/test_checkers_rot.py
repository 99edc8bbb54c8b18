"""R8: a broker does not open a log in which a synced bit has flipped."""

import pytest

from support.histories import B2, HistoryBuilder, assert_faults
from sweep.checkers.rot import check
from sweep.events.universe import Fault


def test_broker_that_opens_with_a_flipped_bit_is_a_violation() -> None:
    def opened(t: float, where: tuple[str, int] = B2, *mended: float) -> HistoryBuilder:
        """A bit flips at 2."""
        builder = HistoryBuilder().add(Fault, 2, ("B", 0), kind="log rot", target="B", facts="byte 7").opened(t, where)
        for mended_t in mended:
            builder = builder.add(Fault, mended_t, ("B", 0), kind="log repaired", target="B")
        return builder

    assert_faults(check, {
        "before": (opened(1.9), ""), "after": (opened(2.1), "R8"), "repaired": (opened(4, B2, 3), ""), "not yet": (opened(4, B2, 5), "R8"),
        "another broker": (opened(4, ("C", 2)), ""),
    })  # fmt: skip


def test_wrong_row_of_a_table_is_named() -> None:
    with pytest.raises(AssertionError, match=r"^silence: found none, not R8$"):
        assert_faults(check, {"silence": (HistoryBuilder(), "R8"), "nothing wrong": (HistoryBuilder(), "")})

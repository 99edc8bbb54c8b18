"""R8: a broker does not open a log in which a synced bit has flipped."""

import pytest

from support.histories import HistoryBuilder
from sweep.checkers.rot import check
from sweep.events.universe import BrokerOpened, Fault


def opened(t: float, machine: str = "B", *, mended_t: float | None = None) -> HistoryBuilder:
    builder = HistoryBuilder().add(Fault, 2, ("B", 0), kind="log rot", target="B", facts="byte 7")
    if mended_t is not None:
        builder.add(Fault, mended_t, ("B", 0), kind="log repaired", target="B")
    return builder.add(BrokerOpened, t, (machine, 2), term=101)


@pytest.mark.parametrize(("t", "laws"), [(1.9, []), (2.1, ["R8"])])
def test_broker_that_opens_with_a_flipped_bit_is_a_violation(t: float, laws: list[str]) -> None:
    assert opened(t).broken(check) == laws


def test_broker_may_open_after_its_log_is_repaired_and_other_brokers_always() -> None:
    assert opened(4, mended_t=3).broken(check) == []
    assert opened(4, mended_t=5).broken(check) == ["R8"]
    assert opened(4, "C").broken(check) == []

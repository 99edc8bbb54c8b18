"""R8: a broker does not open a log in which a synced bit has flipped."""

import pytest

from support.stories import Story
from sweep.checkers.rot import check
from sweep.events import BrokerOpened, Fault


def opened(t: float, machine: str = "B", *, mended_t: float | None = None) -> Story:
    story = Story().add(Fault, 2, ("B", 0), kind="log rot", target="B", facts="byte 7")
    if mended_t is not None:
        story.add(Fault, mended_t, ("B", 0), kind="log mended", target="B")
    return story.add(BrokerOpened, t, (machine, 2), term=101)


@pytest.mark.parametrize(("t", "laws"), [(1.9, []), (2.1, ["R8"])])
def test_it_must_not_open_when_a_bit_has_flipped(t: float, laws: list[str]) -> None:
    assert opened(t).broken(check) == laws


def test_it_may_when_the_right_log_is_back_and_others_may_at_any_time() -> None:
    assert opened(4, mended_t=3).broken(check) == []
    assert opened(4, mended_t=5).broken(check) == ["R8"]
    assert opened(4, "C").broken(check) == []

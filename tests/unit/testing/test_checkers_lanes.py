"""K2: what the grants of a group that consumes by key know as handled."""

import pytest

from support.histories import C1, C2, B, HistoryBuilder
from sweep.checkers.lanes import check
from sweep.events.consumers import CallEnded, ConsumerStarted
from sweep.events.progress import CommitSent, ProgressReset
from sweep.events.universe import BrokerOpened, PowerCut, ProcessEnded

RESTARTED = ("B", 2)


def lanes() -> HistoryBuilder:
    """C1 and C2 consume by key. C1 is granted the queue at 1."""
    builder = HistoryBuilder().granted(1, 1)
    return builder.add(ConsumerStarted, 0.1, C1, lanes=4).add(ConsumerStarted, 0.1, C2, lanes=4)


@pytest.mark.parametrize(("done", "laws"), [((), []), ((3, 4), []), ((3, 4, 5, 6), []), ((5, 6), ["K2"])])
def test_grant_that_knows_a_later_message_of_a_key_without_an_earlier_one_is_a_violation(done: tuple[int, ...], laws: list[str]) -> None:
    builder = lanes().call(1.1, 1.2, 1, 3, keys=("a",)).call(1.3, 1.4, 1, 5, keys=("a",))
    builder.add(CommitSent, 1.5, C1, done=(3, 4, 5, 6))
    assert builder.granted(2, 2, C2, done=done).broken(check) == laws


def test_grant_may_know_later_messages_of_other_keys() -> None:
    builder = lanes().call(1.1, 1.2, 1, 3, keys=("a",)).call(1.3, 1.4, 1, 5, keys=("b",)).committed(1.5, 1, 0, done=(5, 6))
    assert builder.granted(2, 2, C2, done=(5, 6)).broken(check) == []


@pytest.mark.parametrize(("generation", "laws"), [(2, []), (1, ["K2"])])
def test_message_that_a_power_cut_removed_while_its_call_ran_is_not_missing(generation: int, laws: list[str]) -> None:
    """The call of offset 3 ends after the cut. In the next generation another message, of another key, has that offset."""
    builder = lanes().call(1.1, None, 1, 3, call=1, keys=("a",)).add(ProcessEnded, 1.2, B, how="power").add(PowerCut, 1.2, ("B", 0))
    builder.add(CallEnded, 1.3, C1, call=1).add(BrokerOpened, 1.4, RESTARTED, flush="async", grace_ms=3_000)
    builder.granted(2, 2, C2, generation=generation).call(2.1, 2.2, 2, 5, where=C2, keys=("a",)).committed(2.5, 2, 0, C2, done=(5, 6))
    assert builder.granted(3, 3, generation=generation, done=(5, 6)).broken(check) == laws


@pytest.mark.parametrize(("cut", "laws"), [(True, []), (False, ["K2"])])
def test_ranges_from_before_a_reset_are_known_only_if_a_power_cut_removed_the_reset(cut: bool, laws: list[str]) -> None:
    builder = lanes().call(1.1, 1.2, 1, 3, keys=("a",)).committed(1.3, 1, 0, done=(3, 4))
    builder.add(ProgressReset, 1.4, B, offset=0, before=0)
    if cut:
        builder.add(ProcessEnded, 1.5, B, how="power").add(PowerCut, 1.5, ("B", 0))
        builder.add(BrokerOpened, 1.6, RESTARTED, flush="async", grace_ms=3_000)
    assert builder.granted(2, 2, C2, done=(3, 4)).broken(check) == laws

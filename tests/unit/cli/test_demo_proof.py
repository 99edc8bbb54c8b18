"""The demo's proof fails for swapped, missing, repeated and overlapping lines."""

from dataclasses import replace

import pytest

from lockstep.cli.demo.proof import HandledEvent, Handover, ProofError, SentSteps, parse_handled_event, prove

ORDERS, STEPS = 3, 4
TOLD = {order: SentSteps(STEPS, STEPS) for order in range(ORDERS)}


def event(offset: int, *, epoch: int = 1, consumer: str = "c1", at: int | None = None) -> HandledEvent:
    begun = (offset if at is None else at) * 10
    return HandledEvent(consumer, offset % ORDERS, offset // ORDERS, "orders@a:0", epoch, offset, begun, begun + 5)


def clean() -> list[HandledEvent]:
    return [event(offset) for offset in range(ORDERS * STEPS)]


def faults(events: list[HandledEvent]) -> list[str]:
    return prove(events, TOLD).faults


def test_clean_run_holds() -> None:
    verdict = prove(clean(), TOLD)
    assert verdict.holds
    assert (verdict.events, verdict.repeats, verdict.handovers) == (12, 0, [])


@pytest.mark.parametrize("index", range(ORDERS * STEPS - 1))
def test_swapped_lines_are_found_at_any_place(index: int) -> None:
    events = clean()
    events[index], events[index + 1] = events[index + 1], events[index]
    assert faults(events)


@pytest.mark.parametrize("index", range(ORDERS * STEPS))
def test_missing_line_is_found_at_any_place(index: int) -> None:
    events = clean()
    del events[index]
    assert faults(events)


@pytest.mark.parametrize("index", range(ORDERS * STEPS))
def test_line_repeated_in_its_own_epoch_is_a_fault(index: int) -> None:
    events = clean()
    events.insert(index, events[index])
    assert faults(events)


def test_repeats_after_a_handover_are_counted_and_are_not_a_fault() -> None:
    events = [event(offset) for offset in range(7)] + [event(offset, epoch=2, consumer="c2", at=offset + 10) for offset in range(5, 12)]
    verdict = prove(events, TOLD)
    assert verdict.holds
    assert verdict.repeats == 2
    assert verdict.handovers == [Handover("orders@a:0", "c1", "c2", 150 - 65)]


def test_gap_between_two_epochs_is_a_fault() -> None:
    events = [event(offset) for offset in range(6)] + [event(offset, epoch=2, consumer="c2", at=offset + 10) for offset in range(7, 12)]
    assert any("begins at offset 7" in fault for fault in faults(events))


def test_former_owner_that_continues_is_a_fault() -> None:
    events = [event(offset) for offset in range(7)] + [event(offset, epoch=2, consumer="c2") for offset in range(6, 12)]
    events[6] = replace(events[6], begun_us=events[7].begun_us + 1, ended_us=events[7].begun_us + 2)
    assert any("after epoch 2 had begun" in fault for fault in faults(events))


def test_event_that_was_never_sent_is_a_fault() -> None:
    assert any("never sent" in fault for fault in faults([*clean(), replace(event(12), order=0)]))
    assert any("never sent" in fault for fault in faults([*clean(), replace(event(12), order=99, step=0)]))


def test_event_stored_twice_is_a_fault() -> None:
    assert any("stored twice" in fault for fault in faults([*clean(), replace(event(12), order=0, step=3)]))


def test_unacknowledged_event_may_be_stored_or_missing() -> None:
    reported = {**TOLD, 0: SentSteps(acknowledged=3, tried=4)}
    assert prove(clean(), reported).holds
    assert prove([each for each in clean() if each.offset < 9] + [], {order: SentSteps(3, 4) for order in range(ORDERS)}).holds


def test_line_round_trips() -> None:
    assert parse_handled_event(event(7, epoch=(5 << 32) | 9).line()) == event(7, epoch=(5 << 32) | 9)


@pytest.mark.parametrize("line", ["", "[]", "{}", "[1,2,3]", '["c","x",0,"q","1",0,0,0]', "not json"])
def test_invalid_line_is_rejected(line: str) -> None:
    with pytest.raises(ProofError, match="not a line of a consumer"):
        parse_handled_event(line)

"""Parked keys at their owner, as a machine: what it asks of its shell in each stage of a replay, and after each error."""

from collections.abc import Callable, Sequence

import pytest

from lockstep.client.consumer.calls.parking.effects import (
    Effect,
    EndStaleGrant,
    LetPull,
    Log,
    PassOn,
    Pause,
    PullPage,
    RequestLocks,
    Resumed,
    RunSoon,
    SendParkEnd,
    StopPull,
    TakeBack,
    WakeRunner,
)
from lockstep.client.consumer.calls.parking.machine import PAUSE_MS, REFUSED_ENDS_MAX, Conditions, ParkMachine
from lockstep.client.consumer.calls.parking.park_request import ParkOutcome, ParkRequest
from lockstep.client.consumer.calls.parking.replay import Replay, ReplayStage
from lockstep.client.consumer.calls.process_queue import FlowLimits, ProcessQueue
from lockstep.protocol.bodies import ReplayKey
from lockstep.protocol.errors import BrokerError, ParkRefusedError, ServiceNotAvailableError, StaleEpochError, TransportError
from lockstep.protocol.headers.park import ParkEndReply
from lockstep.protocol.messages.message import MessageExt
from lockstep.testing import message

NOW = Conditions(held=True, paused=False, connected=True)
PULLED = 40
"""The next pull of the main flow."""


class Bench(ParkMachine):
    """A machine that replays the key "k" from offset 10, unless it drops it."""

    __slots__ = ("replay",)

    def __init__(self, *, drop: bool = False) -> None:
        ParkMachine.__init__(self, ProcessQueue(PULLED, 0, FlowLimits(1_000, 1 << 30, 10_000)))
        self.start(ReplayKey("k", 10, drop))
        replay = self.replays["k"]
        assert replay is not None
        self.replay = replay

    def take(self) -> list[Effect]:
        """Return the effects since the last call, without logs."""
        effects, self.effects = self.effects, []
        return [effect for effect in effects if not isinstance(effect, Log)]

    def at(self, stage: ReplayStage) -> "Bench":
        """Bring the replay to a stage, with two messages at the listener in CALLING, of which one is accepted in COMMITTING."""
        replay = self.replay
        if stage is not ReplayStage.WAITING:
            self.run(replay, NOW)
        if stage is ReplayStage.PAUSING:
            self.page_read(replay, None, NOW)
        if stage is ReplayStage.ENDING and not replay.drop:
            self.page_read(replay, ([], PULLED), NOW)
        if stage in (ReplayStage.CALLING, ReplayStage.COMMITTING):
            self.page_read(replay, (of_key(12, 15), 30), NOW)
        if stage is ReplayStage.COMMITTING:
            self.accepted(replay, of_key(12))
            self.run(replay, NOW)
        assert replay.stage is stage
        self.take()
        return self


def of_key(*offsets: int) -> list[MessageExt]:
    return [message("orders", b"1", sharding_key="k", queue_offset=offset) for offset in offsets]


def offsets(messages: Sequence[MessageExt]) -> list[int]:
    return [each.queue_offset for each in messages]


# ------------------------------------------------------------------------------------------------------------ a replay, in order


def test_replay_reads_passes_on_commits_and_ends_where_the_main_flow_was_pulled() -> None:
    bench = Bench()
    replay = bench.replay
    assert bench.take() == [RunSoon(replay)]
    bench.run(replay, NOW)
    assert bench.take() == [PullPage(replay, 10)]
    bench.page_read(replay, (of_key(12, 15), 30), NOW)
    (passed,) = bench.take()
    assert isinstance(passed, PassOn)
    assert offsets(passed.messages) == [12, 15]
    bench.accepted(replay, of_key(12))
    assert bench.take() == [RunSoon(replay)]
    bench.run(replay, NOW)
    assert bench.take() == [SendParkEnd(replay, 13)]
    bench.accepted(replay, of_key(15))
    assert bench.take() == [], "one commit at a time"
    bench.answered(replay, ParkEndReply(), NOW)
    assert bench.take() == [PullPage(replay, 30)], "the page is passed, and committed with the next one"
    bench.page_read(replay, ([], 35), NOW)
    assert bench.take() == [PullPage(replay, 35)], "the main flow has been pulled further"
    bench.page_read(replay, ([], PULLED), NOW)
    assert bench.take() == [SendParkEnd(replay, PULLED, PULLED)]
    assert not bench.may_take
    bench.answered(replay, ParkEndReply(upto=PULLED), NOW)
    assert bench.take() == [WakeRunner(), Resumed("k", PULLED), RequestLocks()]
    assert bench.may_take
    assert not bench.replays


def test_page_is_passed_when_its_last_message_is_accepted_and_committed() -> None:
    bench = Bench().at(ReplayStage.COMMITTING)
    replay = bench.replay
    bench.answered(replay, ParkEndReply(), NOW)
    assert (bench.take(), replay.stage, replay.committed) == ([], ReplayStage.CALLING, 13)
    bench.accepted(replay, of_key(15))
    bench.run(replay, NOW)
    assert bench.take() == [RunSoon(replay), SendParkEnd(replay, 16)]
    bench.answered(replay, ParkEndReply(), NOW)
    assert bench.take() == [PullPage(replay, 30)]


def test_accepted_messages_are_committed_together_in_the_next_turn() -> None:
    bench = Bench().at(ReplayStage.CALLING)
    bench.accepted(bench.replay, of_key(12))
    bench.accepted(bench.replay, of_key(15))
    bench.wake()
    bench.run(bench.replay, NOW)
    assert bench.take() == [RunSoon(bench.replay), SendParkEnd(bench.replay, 16)]


@pytest.mark.parametrize("connected", [True, False])
def test_page_without_an_unfinished_message_is_passed_without_a_connection(connected: bool) -> None:
    bench = Bench().at(ReplayStage.CALLING)
    bench.accepted(bench.replay, of_key(12, 15))
    bench.run(bench.replay, NOW._replace(connected=connected))
    last = SendParkEnd(bench.replay, 16) if connected else None
    assert bench.take() == [RunSoon(bench.replay), *([last] if last else [])]
    assert bench.replay.stage is (ReplayStage.COMMITTING if connected else ReplayStage.WAITING)


# ----------------------------------------------------------------------------------------------------------- may it go on now?


@pytest.mark.parametrize(("held", "paused", "connected"), [(False, False, True), (True, True, True), (True, False, False)])
def test_replay_waits_until_the_queue_is_held_and_nothing_is_paused_or_disconnected(held: bool, paused: bool, connected: bool) -> None:
    bench = Bench()
    bench.run(bench.replay, Conditions(held, paused, connected))
    bench.wake()
    bench.wake()
    assert bench.take() == [RunSoon(bench.replay), RunSoon(bench.replay)], "its start, and one turn for all wake-ups since"
    bench.run(bench.replay, NOW)
    assert bench.take() == [PullPage(bench.replay, 10)]


@pytest.mark.parametrize(
    ("now", "goes_on"), [(NOW._replace(paused=True), True), (NOW._replace(held=False), False), (NOW._replace(connected=False), False)]
)
def test_drop_does_not_wait_for_a_resume(now: Conditions, goes_on: bool) -> None:
    bench = Bench(drop=True)
    bench.run(bench.replay, now)
    assert bench.take() == [RunSoon(bench.replay), *([SendParkEnd(bench.replay, 10, PULLED)] if goes_on else [])]


@pytest.mark.parametrize("stage", [ReplayStage.PAUSING, ReplayStage.PULLING, ReplayStage.COMMITTING, ReplayStage.ENDING])
def test_wake_up_does_not_interrupt_a_request_or_a_pause(stage: ReplayStage) -> None:
    bench = Bench().at(stage)
    bench.wake()
    assert bench.take() == []


# ------------------------------------------------------------------------------------------------------------------------ drop


@pytest.mark.parametrize("stage", list(ReplayStage))
def test_drop_takes_back_what_waits_for_a_call_and_ends_after_what_is_under_way(stage: ReplayStage) -> None:
    bench = Bench().at(stage)
    replay = bench.replay
    for _ in range(2):
        bench.start(ReplayKey("k", 12, drop=True))
    assert bench.take() == [TakeBack(replay)], "once"
    assert replay.drop


def test_drop_ends_after_the_call_that_runs() -> None:
    bench = Bench().at(ReplayStage.CALLING)
    replay = bench.replay
    bench.start(ReplayKey("k", 12, drop=True))
    bench.left_out(replay, 1)
    bench.run(replay, NOW)
    assert bench.take() == [TakeBack(replay), RunSoon(replay)], "12 is with the listener"
    bench.accepted(replay, of_key(12))
    bench.run(replay, NOW)
    bench.answered(replay, ParkEndReply(), NOW)
    assert bench.take() == [RunSoon(replay), SendParkEnd(replay, 13), SendParkEnd(replay, 30, PULLED)]


@pytest.mark.parametrize("reply", [ParkEndReply(), ParkEndReply(until=50)])
def test_drop_that_is_not_at_its_end_is_asked_for_again_after_a_pause(reply: ParkEndReply) -> None:
    bench = Bench(drop=True).at(ReplayStage.ENDING)
    bench.answered(bench.replay, reply, NOW)
    assert bench.take() == [WakeRunner(), Pause(bench.replay, PAUSE_MS)]
    assert bench.may_take
    bench.run(bench.replay, NOW)
    assert bench.take() == [SendParkEnd(bench.replay, 10, PULLED)]


def test_known_replay_is_not_begun_again_nor_is_a_drop_undone() -> None:
    bench = Bench(drop=True).at(ReplayStage.ENDING)
    bench.start(ReplayKey("k", 0, drop=False))
    assert (bench.take(), bench.replay.drop) == ([], True)


# ---------------------------------------------------------------------------------------------------------------------- errors

LOST, REFUSED = TransportError("lost"), ServiceNotAvailableError("the disk is full")


@pytest.mark.parametrize("page", [None, ([], 9)], ids=["refused", "it goes back"])
def test_pull_that_is_refused_is_repeated_after_a_pause(page: tuple[list[MessageExt], int] | None) -> None:
    bench = Bench().at(ReplayStage.PULLING)
    bench.page_read(bench.replay, page, NOW)
    assert bench.take() == [Pause(bench.replay, PAUSE_MS)]
    bench.run(bench.replay, NOW)
    assert bench.take() == [PullPage(bench.replay, 10)]


@pytest.mark.parametrize("error", [LOST, REFUSED])
@pytest.mark.parametrize(
    ("stage", "expected"),
    [(ReplayStage.PULLING, Pause), (ReplayStage.COMMITTING, None), (ReplayStage.ENDING, Pause)],
    ids=lambda value: value.name if isinstance(value, ReplayStage) else "",
)
def test_request_that_fails_is_repeated(stage: ReplayStage, expected: type[Effect] | None, error: TransportError | BrokerError) -> None:
    bench = Bench().at(stage)
    replay = bench.replay
    bench.failed(replay, error, NOW)
    assert [type(effect) for effect in bench.take()] == ([] if expected is None else [expected])
    assert bench.may_take is (stage is not ReplayStage.ENDING), "it is not known yet whether the replay has ended"
    if stage is ReplayStage.COMMITTING:
        bench.wake()
    bench.run(replay, NOW._replace(held=True))
    again = {
        ReplayStage.PULLING: PullPage(replay, 10),
        ReplayStage.COMMITTING: SendParkEnd(replay, 13),
        ReplayStage.ENDING: SendParkEnd(replay, PULLED, PULLED),
    }
    assert bench.take()[-1] == again[stage]


def test_commit_that_fails_does_not_repeat_a_page_that_is_accepted_meanwhile() -> None:
    bench = Bench().at(ReplayStage.COMMITTING)
    bench.accepted(bench.replay, of_key(15))
    bench.failed(bench.replay, LOST, NOW)
    assert bench.take() == [PullPage(bench.replay, 30)]
    assert (bench.replay.next, bench.replay.committed) == (30, 10)


def test_repeated_end_names_the_next_pull_as_of_then() -> None:
    queue = ProcessQueue(PULLED, 0, FlowLimits(1_000, 1 << 30, 10_000))
    bench = Bench()
    bench._messages = queue
    bench.at(ReplayStage.ENDING)
    bench.failed(bench.replay, LOST, NOW)
    queue.put((), 50, 0)
    bench.run(bench.replay, NOW._replace(connected=False))
    assert bench.take() == [Pause(bench.replay, PAUSE_MS), SendParkEnd(bench.replay, PULLED, 50)]


@pytest.mark.parametrize("stage", [ReplayStage.PULLING, ReplayStage.COMMITTING, ReplayStage.ENDING])
def test_stale_epoch_ends_the_grant_and_requests_nothing(stage: ReplayStage) -> None:
    bench = Bench().at(stage)
    bench.failed(bench.replay, StaleEpochError("stale"), NOW)
    assert [effect for effect in bench.take() if not isinstance(effect, WakeRunner)] == [EndStaleGrant()]
    assert bench.may_take
    assert bench.replay.stage is ReplayStage.WAITING


@pytest.mark.parametrize("stage", [ReplayStage.COMMITTING, ReplayStage.ENDING])
def test_replay_that_the_broker_does_not_know_ends_and_its_key_stays_parked(stage: ReplayStage) -> None:
    bench = Bench().at(stage)
    bench.failed(bench.replay, ParkRefusedError("parked by another owner"), NOW)
    assert [effect for effect in bench.take() if not isinstance(effect, WakeRunner)] == [TakeBack(bench.replay), RequestLocks()]
    assert (bench.hidden, bench.replays, bench.may_take) == ({"k": None}, {}, True)


# ----------------------------------------------------------------------------------------------------------------- refused ends


def refuse(bench: Bench, until: int) -> None:
    """Refuse the end that was asked for, and let the replay reach that offset."""
    bench.answered(bench.replay, ParkEndReply(until=until), NOW)
    assert bench.take()[-1] == PullPage(bench.replay, bench.replay.position)
    bench.page_read(bench.replay, ([], until), NOW)


def test_refused_end_is_asked_for_again_where_the_broker_has_said() -> None:
    bench = Bench().at(ReplayStage.ENDING)
    bench.answered(bench.replay, ParkEndReply(until=60), NOW)
    assert bench.take() == [WakeRunner(), PullPage(bench.replay, PULLED)]
    bench.page_read(bench.replay, ([], 59), NOW)
    assert bench.take() == [PullPage(bench.replay, 59)]
    bench.page_read(bench.replay, ([], 60), NOW)
    assert bench.take() == [SendParkEnd(bench.replay, 60, PULLED)]


def ends(bench: Bench) -> None:
    bench.answered(bench.replay, ParkEndReply(upto=70), NOW)


def is_parked(bench: Bench) -> None:
    bench.parked("k")


def is_refused(bench: Bench) -> None:
    bench.failed(bench.replay, ParkRefusedError("parked"), NOW)


@pytest.mark.parametrize("leave", [ends, is_parked, is_refused])
@pytest.mark.parametrize("refused", range(REFUSED_ENDS_MAX + 2))
def test_main_flow_is_stopped_after_three_refused_ends_and_goes_on_after_the_replay(leave: Callable[[Bench], None], refused: int) -> None:
    bench = Bench().at(ReplayStage.ENDING)
    stops = 0
    for number in range(refused):
        bench.answered(bench.replay, ParkEndReply(until=50 + number), NOW)
        stops += bench.take().count(StopPull())
        bench.page_read(bench.replay, ([], 50 + number), NOW)
    bench.take()
    leave(bench)
    assert (stops, bench.take().count(LetPull())) == ((1, 1) if refused >= REFUSED_ENDS_MAX else (0, 0))
    assert bench.may_take, "no end is outstanding"


# ------------------------------------------------------------------------------------------------------------- removed replays


@pytest.mark.parametrize("stage", list(ReplayStage))
@pytest.mark.parametrize("how", ["parked", "the grant ends", "parked and replayed again"])
def test_what_is_reported_of_a_removed_replay_has_no_effect(stage: ReplayStage, how: str) -> None:
    bench = Bench().at(stage)
    replay = bench.replay
    if how == "the grant ends":
        bench.stop()
    else:
        bench.parked("k")
    if "again" in how:
        bench.start(ReplayKey("k", 12))
    before = dict(bench.replays), dict(bench.hidden), bench.may_take
    bench.take()
    bench.run(replay, NOW)
    bench.page_read(replay, (of_key(12), 20), NOW)
    bench.answered(replay, ParkEndReply(upto=20), NOW)
    for error in (LOST, StaleEpochError("stale"), ParkRefusedError("parked")):
        bench.failed(replay, error, NOW)
    bench.accepted(replay, of_key(12))
    bench.left_out(replay, 1)
    assert bench.take() == []
    assert (dict(bench.replays), dict(bench.hidden), bench.may_take) == before


# ---------------------------------------------------------------------------------------------------------------- the main flow


@pytest.mark.parametrize(
    ("hidden", "expected"), [({}, [1, 2, 3]), ({"k": None}, [2]), ({"k": 3}, [2, 3]), ({"k": 1}, [1, 2, 3]), ({"x": None}, [1, 2, 3])]
)
def test_hidden_messages_are_left_out_of_the_main_flow(hidden: dict[str, int | None], expected: list[int]) -> None:
    bench = Bench()
    bench.hidden = hidden
    both = [*of_key(1), message("orders", b"1", queue_offset=2), *of_key(3)]
    kept, left_out = bench.split(both)
    assert offsets(kept) == expected
    assert offsets(left_out) == [each for each in (1, 2, 3) if each not in expected]


def test_end_is_forgotten_when_progress_has_passed_it() -> None:
    bench = Bench().at(ReplayStage.ENDING)
    bench.hidden |= {"old": PULLED, "far": PULLED + 5, "parked": None}
    bench.answered(bench.replay, ParkEndReply(upto=PULLED + 1), NOW)
    assert bench.hidden == {"k": PULLED + 1, "far": PULLED + 5, "parked": None}


def test_key_whose_park_has_no_response_is_not_replayed_and_its_locks_are_requested_then() -> None:
    bench = Bench().at(ReplayStage.PULLING)
    first, second = of_key(20, 21)
    bench.park_begins(first)
    keys = [ReplayKey("k", 5), ReplayKey("other", 5)]
    assert bench.startable(keys) == keys[1:]
    bench.park_ended(first)
    assert bench.take() == [RequestLocks()]
    bench.park_begins(second)
    bench.park_ended(second)
    assert (bench.take(), bench.startable(keys)) == ([], keys), "no replay had to wait"


def test_no_done_range_is_committed_while_a_park_has_no_response() -> None:
    queue = ProcessQueue(0, 0, FlowLimits(1_000, 1 << 30, 10_000))
    machine = ParkMachine(queue)
    queue.put(of_key(0, 1, 2), 3, 0)
    queue.take(3)
    queue.finish(of_key(1))
    assert machine.done_ranges(0) == (1, 2)
    machine.park_begins(of_key(2)[0])
    assert machine.done_ranges(0) == ()
    machine.park_ended(of_key(2)[0])
    assert machine.done_ranges(0) == (1, 2)


@pytest.mark.parametrize(
    ("stage", "drop", "connected", "expected"),
    [
        (ReplayStage.COMMITTING, False, True, [13]),
        (ReplayStage.COMMITTING, False, False, []),
        (ReplayStage.COMMITTING, True, True, []),
        (ReplayStage.CALLING, False, True, []),
    ],
)
def test_progress_is_committed_before_the_queue_is_released(stage: ReplayStage, drop: bool, connected: bool, expected: list[int]) -> None:
    bench = Bench().at(stage)
    bench.replay.drop = drop
    bench.commit_soon(NOW._replace(connected=connected))
    assert bench.take() == [SendParkEnd(bench.replay, offset, awaited=False) for offset in expected]
    assert bench.replay.committed == 10, "its response is not awaited"


def test_what_is_logged_of_a_replay() -> None:
    bench = Bench()
    bench.at(ReplayStage.WAITING)
    bench.failed(bench.replay, LOST, NOW)
    bench.run(bench.replay, NOW)
    bench.page_read(bench.replay, ([], PULLED), NOW)
    bench.answered(bench.replay, ParkEndReply(upto=PULLED), NOW)
    logs = [(effect.level, effect.event, effect.key, effect.facts) for effect in bench.effects if isinstance(effect, Log)]
    assert logs == [("debug", "replay.interrupted", "k", {"error": "lost"}), ("info", "key.resumed", "k", {"offset": PULLED})]


# ------------------------------------------------------------------------------------------------------------------------ PARK

FULL, STALE = ParkRefusedError("too many keys"), StaleEpochError("stale")


@pytest.mark.parametrize(
    ("results", "outcome"),
    [
        ([None], ParkOutcome.PARKED),
        ([FULL], ParkOutcome.REFUSED),
        ([REFUSED], ParkOutcome.NOT_NOW),
        ([STALE], ParkOutcome.NOT_NOW),
        ([LOST, None], ParkOutcome.PARKED),
        ([LOST, LOST, FULL], ParkOutcome.REFUSED),
        ([LOST, STALE], ParkOutcome.NOT_NOW),
        ([LOST, REFUSED, REFUSED, None], ParkOutcome.PARKED),
    ],
    ids=lambda value: "-".join("stored" if each is None else type(each).__name__ for each in value) if isinstance(value, list) else "",
)
def test_park_is_repeated_until_it_is_known_whether_the_key_is_parked(
    results: list[TransportError | BrokerError | None], outcome: ParkOutcome
) -> None:
    request = ParkRequest()
    assert [request.outcome(each) for each in results] == [None] * (len(results) - 1) + [outcome]


def test_a_replay_is_equal_to_itself_only() -> None:
    first, second = (Replay("k", 1, False, 1, 1) for _ in range(2))
    assert first != second


def test_page_that_was_pulled_before_a_drop_is_not_called() -> None:
    """The broker copies its messages to the dead letters."""
    bench = Bench().at(ReplayStage.PULLING)
    bench.start(ReplayKey("k", 10, drop=True))
    bench.take()
    bench.page_read(bench.replay, (of_key(12, 15), 30), NOW)
    assert not [effect for effect in bench.take() if isinstance(effect, PassOn)]
    assert bench.replay.stage is ReplayStage.ENDING

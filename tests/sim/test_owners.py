"""The lanes of a universe, from the connections, agree with what its brokers tell of their groups (GROUP_EVENTS); and they are drawn."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from lockstep.broker.app import Broker
from lockstep.operations.groups.group_history import PlacedEvent
from lockstep.operations.groups.ownership import OwnershipLane, Period, Span
from lockstep.operations.groups.ownership import lanes as told_lanes
from lockstep.testing.simulation.process import EPOCH_S
from support.effort import usually
from sweep import owners
from sweep.__main__ import main
from sweep.checkers.violation import Violation
from sweep.events.locks import LockGranted, SessionBound
from sweep.events.universe import BrokerOpened, ProcessEnded, ProcessStarted
from sweep.faults import every_fault
from sweep.history import History, QueueKey
from sweep.mutants import switched_off
from sweep.run import Run, RunResult
from sweep.settings import GROUP
from sweep.worlds import draw

CHANGE_MS = 200
"""An end or a grant is told and written within this time of each other."""
STEP_MS = 100
STORM_S = 12.0
EPOCH_MS = round(EPOCH_S * 1000)
QUEUE = QueueKey("g", "broker-a", "orders", 0)
SVG = "{http://www.w3.org/2000/svg}"


def run_with_brokers(seed: int, world: str) -> tuple[RunResult, list[tuple[BrokerOpened, Broker]]]:
    """Run a universe. Return its result, and each broker that opened its port, with what it remembers."""
    run = Run(draw(seed, world, every_fault(), storm_s=STORM_S), trace=False)
    opened_before = run.universe.broker_opened
    lives: list[tuple[BrokerOpened, Broker]] = []

    def note(broker: Broker, opened: BrokerOpened) -> None:
        lives.append((opened, broker))
        opened_before(broker, opened)

    run.universe.broker_opened = note  # type: ignore[method-assign]
    return run.run(), lives


def told(result: RunResult, lives: list[tuple[BrokerOpened, Broker]], end_ms: int) -> list[OwnershipLane]:
    """Return the lanes of GROUP as the brokers tell them. What happened while a broker did not run is unknown."""
    ended = {event.process: round(event.t * 1000) for event in reversed(result.history.of(ProcessEnded))}
    events: list[PlacedEvent] = []
    known: dict[str, list[Period]] = {}
    for life, broker in lives:
        log = broker.state.coordination.state.events
        found, _ = log.read(0, GROUP, 100_000)
        assert log.first == 1, "none is dropped"
        for event in found:
            since_ms = None if event.since_ms is None else event.since_ms - EPOCH_MS
            events.append(PlacedEvent(life.broker, replace(event, wall_ms=event.wall_ms - EPOCH_MS, since_ms=since_ms)))
        began_ms = round(life.t * 1000) if log.began_ms is None else log.began_ms - EPOCH_MS
        known.setdefault(life.broker, []).append((began_ms, ended.get(life.process, end_ms)))
    unknown = {
        broker: [(before, after) for (_, before), (after, _) in pairwise([(0, 0), *periods, (end_ms, end_ms)])]
        for broker, periods in known.items()
    }
    return told_lanes(events, (0, end_ms), unknown=unknown)


def at(lane: OwnershipLane | None, ms: int) -> Span:
    return next((span for span in lane.spans if span.from_ms <= ms < span.until_ms), Span(0, 0)) if lane else Span(0, 0)


def last_owner(lane: OwnershipLane | None, ms: int) -> Span:
    """Return the last span before this time in which a client held the queue."""
    held = [span for span in lane.spans if span.client_id is not None and span.until_ms <= ms] if lane else []
    return held[-1] if held else Span(0, 0)


@pytest.mark.parametrize(
    ("world", "seed"), usually([("churn", 1), ("power", 1)], [("churn", 1), ("pause", 1), ("late", 2), ("broker", 2), ("power", 1)])
)
def test_lanes_agree_with_what_the_brokers_tell(world: str, seed: int) -> None:
    result, lives = run_with_brokers(seed, world)
    assert not result.violations
    end_ms = round(result.history.events[-1].t * 1000)
    seen = {(lane.topic, lane.broker, lane.queue_id): lane for lane in owners.lanes(result.history)[GROUP]}
    names: dict[str, set[str]] = {}
    for event in result.history.of(SessionBound):  # a consumer that is replaced in its process keeps its client id
        names.setdefault(event.client_id, set()).add(f"{event.machine}#{event.process}")
    compared = 0
    for lane in told(result, lives, end_ms):
        where = lane.topic, lane.broker, lane.queue_id
        before = Span(0, 0)
        for span in lane.spans:
            for ms in range(span.from_ms + CHANGE_MS, span.until_ms - CHANGE_MS, STEP_MS) if span.known else ():
                own = at(seen.get(where), ms)
                if span.ended == "released" and own.client_id is None:  # its owner has let go, and the disk delays the response to that
                    assert last_owner(seen.get(where), ms).epoch == span.epoch, f"{where} at {ms}: {span}"
                elif span.client_id is not None:
                    assert own.client_id in names[span.client_id], f"{where} at {ms}: {span}"
                    assert span.epoch in (None, own.epoch), f"{where} at {ms}: {span}"
                elif before.ended == "released" or before.client_id is None:
                    # An owner that was killed while its release arrived learned of no release: its lane is pale from then on.
                    lost = own.alive_until_ms is not None and own.alive_until_ms <= before.until_ms
                    assert own.client_id is None or lost, f"{where} at {ms}: {own} after {before}"
                else:  # the broker ended the grant by itself: its owner can't know, and no connection shows it
                    assert own.epoch in (None, before.epoch), f"{where} at {ms}: {own} after {before}"
                compared += span.client_id is not None
            before = span
    assert compared > 100


def test_lanes_cover_the_universe() -> None:
    result, _ = run_with_brokers(1, "churn")
    for lane in owners.lanes(result.history)[GROUP]:
        assert lane.spans[0].from_ms == 0
        assert lane.spans[-1].until_ms == round(result.history.events[-1].t * 1000)
        assert all(one.until_ms == following.from_ms for one, following in pairwise(lane.spans))


def granted(t: float, epoch: int, client: int, *, renewal: bool = False, request_t: float | None = None) -> LockGranted:
    request = (QUEUE, f"session {client}", client, 1, t if request_t is None else request_t)
    return LockGranted(t, "10.0.0.11", 1, *request, epoch, 0, 0, 0, renewal, 3_000, (), ())


def history(*events: object) -> History:
    made = History()
    for event in (ProcessStarted(0.0, "10.0.1.1", 7), ProcessStarted(0.0, "10.0.1.2", 8), *events):
        made.append(event)  # type: ignore[arg-type]
    return made


def test_owner_that_dies_is_pale_until_the_next_grant() -> None:
    lanes = owners.lanes(history(granted(1.0, 4, 7), ProcessEnded(3.0, "10.0.1.1", 7, "kill"), granted(9.0, 5, 8), granted(10.0, 5, 8)))
    assert lanes["g"][0].spans == (
        Span(0, 1_000),
        Span(1_000, 9_000, "10.0.1.1#7", 4, 3_000, "granted to another session"),
        Span(9_000, 10_000, "10.0.1.2#8", 5),
    )


def test_owner_that_is_silent_is_pale_from_its_last_sign_on() -> None:
    lanes = owners.lanes(history(granted(1.0, 4, 7), granted(2.5, 4, 7, renewal=True, request_t=2.4), granted(9.0, 5, 8)))
    assert lanes["g"][0].spans[1] == Span(1_000, 9_000, "10.0.1.1#7", 4, 2_400, "granted to another session")


def test_pictures_begin_with_the_group_that_a_violation_names() -> None:
    other = replace(granted(2.0, 9, 8), queue=QUEUE._replace(group="a"))
    made = history(granted(1.0, 4, 7), other)
    assert [group for group, _ in owners.pictures(made, (), "Seed 1")] == ["a", "g"]
    drawn = owners.pictures(made, [Violation("R3", 1.5, f"{QUEUE} is held by two")], "Seed 1")
    assert [group for group, _ in drawn] == ["g", "a"]
    assert "Seed 1: R3 at 1.500: g orders@broker-a:0 is held by two" in drawn[0][1]


def test_svg_draws_who_held_the_queues_of_a_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "owners.svg"
    command = ["--seed", "1", "--world", "single", "--storm", "4"]
    assert main([*command, "--svg", str(path)]) == 0
    assert f"picture      {path}: who held the queues of {GROUP}" in capsys.readouterr().out
    root = ElementTree.fromstring(path.read_text("utf-8"))
    titles = [each.text or "" for each in root.iter(f"{SVG}title")]
    history = Run(draw(1, "single", every_fault(), storm_s=4.0)).run().history
    grants = [event for event in history.of(LockGranted) if event.queue.group == GROUP and not event.renewal]
    assert grants
    for event in grants:
        machine = next(start.machine for start in history.of(ProcessStarted) if start.process == event.client)
        place = f"orders@{event.queue.broker}:{event.queue.queue}: {machine}#{event.client},"
        assert any(title.startswith(place) and f"epoch {event.epoch}" in title for title in titles), place


def test_failing_seed_names_the_command_that_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "failed.svg"
    with switched_off("every_start_has_the_same_term"):
        assert main(["--seed", "1", "--world", "broker", "--storm", "4", "--svg", str(path)]) == 1
    assert "scripts/sweep --world broker --seed 1 --svg seed-1.svg" in capsys.readouterr().out
    assert "Seed 1 in broker: O1 at" in path.read_text("utf-8")


def test_svg_requires_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--svg", "owners.svg"])
    assert ended.value.code == 2
    assert "--svg draws one universe: it requires --seed" in capsys.readouterr().err

"""Masters that are elected by a register, with one certain fault: what goes on without the register, and what does not begin."""

from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from io import StringIO

import pytest

from lockstep.protocol.codes import ResponseCode
from sweep.checkers import check
from sweep.events.consumers import CallEnded
from sweep.events.elections import RegisterSeen
from sweep.events.sends import FrameResponded
from sweep.events.universe import BrokerOpened
from sweep.faults import every_fault
from sweep.faults.elections import hand_over
from sweep.history import CallResult
from sweep.run import Run
from sweep.universe import Universe
from sweep.worlds import draw

NAME = "broker-a"
LONG_S = 20.0


class Stage:
    """One broker of three copies under load, without faults of its own."""

    def __init__(self, register: str) -> None:
        calm = {
            "fail_share": 0.0,
            "poison_share": 0.0,
            "long_share": 0.0,
            "queues": 3,
            "brokers": 1,
            "replicas": 2,
            "late_chance": 0.0,
            "exile": False,
            "concurrent": False,
            "send_every_s": 0.15,
            "flush": "async",
        }
        self.run = Run(replace(draw(1, "failover", every_fault()), register=register, **calm))  # type: ignore[arg-type]
        self.run._boot()
        self.wait(10.0)

    @property
    def universe(self) -> Universe:
        return self.run.universe

    @property
    def master(self) -> str:
        return self.universe.brokers[NAME]

    @property
    def opened(self) -> int:
        return len(self.universe.history.of(BrokerOpened))

    def wait(self, seconds: float) -> None:
        self.run.wait(seconds)

    def set_of(self) -> tuple[str, ...]:
        return self.universe.history.of(RegisterSeen)[-1].in_sync

    def works(self) -> bool:
        """Return whether messages are acknowledged and handled within some seconds."""
        since = self.universe.loop.now
        self.wait(4.0)
        history = self.universe.history
        acked = any(event.t > since and event.code == ResponseCode.SUCCESS for event in history.of(FrameResponded))
        return acked and any(event.t > since and event.result is CallResult.SUCCESS for event in history.of(CallEnded))

    def laws(self) -> list[str]:
        return [str(violation) for violation in [*self.universe.violations, *check(self.universe.history)]]


@pytest.fixture(params=["etcd", "witness"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with redirect_stderr(StringIO()):
        stage = Stage(request.param)
        try:
            with stage.universe.log.attached():
                yield stage
        finally:
            stage.universe.is_over = True
            stage.run.loop.kill_all()
            stage.run.loop.close()


def test_without_the_register_nothing_ends_and_nobody_is_elected(stage: Stage) -> None:
    universe, opened = stage.universe, stage.opened
    assert len(stage.set_of()) == 3
    for address in universe.registers:
        universe.kill(address)
    stage.wait(LONG_S)
    assert stage.works()
    (replica, _) = universe.replicas(NAME)
    universe.pause(replica)
    stage.wait(LONG_S)
    assert not stage.works(), "the set can't shrink"
    assert universe.log.counts["office.suspended"] == 1
    universe.resume(replica)
    assert stage.works()
    universe.kill(stage.master)
    stage.wait(LONG_S)
    assert stage.opened == opened
    for address in universe.registers:
        universe.start(address)
    stage.wait(5.0)
    assert stage.opened == opened + 1
    assert stage.works()
    assert stage.laws() == []


@pytest.mark.parametrize("outside", [False, True])
def test_copies_that_have_all_lost_power_call_the_roll(stage: Stage, outside: bool) -> None:
    universe = stage.universe
    replica, other = universe.replicas(NAME)
    if outside:  # it follows again, and is not in the set for some seconds
        universe.pause(replica)
        stage.wait(1.6)
        universe.resume(replica)
        stage.wait(2.0)
        assert len(stage.set_of()) == 2
    # The disks of the set lose more than that of a copy outside of it.
    for address in (stage.master, other, replica):
        universe.kill(address, power=True)
        stage.wait(0.3 if outside else 0.0)
    for address in universe.copies[NAME]:
        universe.start(address)
    stage.wait(8.0)
    assert universe.history.of(RegisterSeen)[-1].assumed_loss
    assert stage.works()
    assert stage.laws() == []


def test_replica_stays_in_the_set_of_the_next_master(stage: Stage) -> None:
    universe, killed_t = stage.universe, stage.universe.loop.now
    universe.kill(stage.master)
    stage.wait(3.0)
    assert min(len(seen.in_sync) for seen in universe.history.of(RegisterSeen) if seen.t > killed_t) == 2
    assert stage.works()
    assert stage.laws() == []


def test_master_that_handed_over_to_nobody_rules_again(stage: Stage) -> None:
    universe, opened, master = stage.universe, stage.opened, stage.master
    for replica in universe.replicas(NAME):
        universe.loop.network.partition([replica], universe.registers)
    hand_over(stage.run.storm)
    stage.wait(0.5)
    for replica in universe.replicas(NAME):
        universe.kill(replica)
    stage.wait(6.0)
    assert universe.log.counts["office.hands_over"] == 1
    assert (stage.opened, stage.master) == (opened + 1, master)
    assert stage.works()
    assert stage.laws() == []


def test_register_that_was_set_back_changes_nothing() -> None:
    with redirect_stderr(StringIO()):
        stage = Stage("etcd")
        universe, etcd = stage.universe, stage.universe.etcd
        assert etcd is not None
        with universe.log.attached():
            first = etcd.writes[0].revision
            universe.kill(stage.master)
            stage.wait(5.0)
            universe.start(universe.copies[NAME][0])
            stage.wait(10.0)
            opened = stage.opened
            assert opened == 2
            truncated = universe.log.counts["replica.truncated"]
            etcd.set_back(first)
            stage.wait(LONG_S)
            assert stage.works()
            universe.kill(stage.master)
            stage.wait(LONG_S)
            assert stage.opened == opened, "nobody stands"
            assert universe.log.counts["replica.truncated"] == truncated, "and nothing is cut"
        universe.is_over = True
        stage.run.loop.kill_all()
        stage.run.loop.close()

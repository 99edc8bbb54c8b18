"""R10: after the faults end, a broker keeps no connection, held pull or task that its live clients don't need."""

import pytest

from lockstep.broker.app import Broker
from sweep.checkers.violation import Violation
from sweep.faults import every_fault
from sweep.run import Run
from sweep.worlds import draw

OWN_TASKS = 11
"""The tasks of a broker without clients: leases, registration, flushing, snapshots, retention, scrub, delays, timers, check-back, dropped
keys and statistics."""


class MeasuredRun(Run):
    """A run that measures its brokers once the faults have ended and everything is consumed."""

    def measure(self, broker: Broker) -> dict[str, int]:
        topics = broker.state.topics
        layouts = [layout for topic in self.setting.topics if (layout := topics.find_layout(topic)) is not None]
        return {
            "queues": sum(topics.own_read_count(layout) for layout in layouts),  # an operator may have altered the topic in the storm
            "connections": len(broker.running.server.endpoints),
            "held pulls": broker.running.pulls.held_count,
            "tasks": len(broker._tasks),
            "bytes that wait to be sent": sum(endpoint._out_bytes for endpoint in broker.running.server.endpoints.values()),
        }

    def _check(self) -> list[Violation]:
        self.weights = {broker.config.name: self.measure(broker) for broker in self.universe.open_brokers()}
        return super()._check()


@pytest.mark.parametrize(("world", "seed"), [("churn", 1), ("net", 1)])
def test_broker_keeps_no_resources_after_the_faults_end(world: str, seed: int) -> None:
    universe = MeasuredRun(draw(seed, world, every_fault(), storm_s=12.0), trace=False)
    assert universe.run().violations == []
    setting = universe.setting
    clients = setting.consumers + setting.producers
    assert len(universe.weights) == setting.brokers
    for weight in universe.weights.values():
        assert 0 < weight["connections"] <= clients, weight
        assert weight["held pulls"] <= weight["queues"] * len(setting.groups), weight
        assert weight["tasks"] <= OWN_TASKS, weight
        assert weight["bytes that wait to be sent"] == 0, weight

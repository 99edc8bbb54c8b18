"""Which queues `lockstep why` looks at in detail, and with which subscription it compares the messages of each."""

from dataclasses import replace

from lockstep.operations.explain.why import QueueState
from lockstep.operations.explain.why_filter import find_unmatched
from lockstep.operations.explain.why_query import ASKED_MAX, _choose
from lockstep.operations.groups.group_report import QueueLine, report
from lockstep.protocol.bodies import (
    BrokerAddress,
    ConsumerGroup,
    GroupStatus,
    ListVersion,
    OffsetRange,
    QueueStatus,
    Subscription,
)
from lockstep.protocol.topics.queue import MessageQueue

GROUP, TOPIC = "billing", "orders"
QUEUE = QueueStatus(TOPIC, 0, "a", 7, 1, 5, 25, 0, 9_000, None, parked=0, disk_pulls=0, listed_owner="a")


def status(*queues: QueueStatus, expression: str = "*") -> GroupStatus:
    contract = ConsumerGroup(GROUP, (Subscription(TOPIC, expression),), ordered=True)
    return GroupStatus(GROUP, ListVersion(1, 1), contract, (), queues, grants=1)


def lines(statuses: dict[str, GroupStatus]) -> list[QueueLine]:
    named = [MessageQueue(TOPIC, broker, queue.queue_id) for broker, each in statuses.items() for queue in each.queues]
    return list(report(GROUP, statuses, named).queues)


def test_queues_that_are_stalled_for_the_longest_time_are_explained_first() -> None:
    ages: dict[int, int | None] = dict.fromkeys(range(3 * ASKED_MAX), 10_000)
    ages |= {5: 20_000, ASKED_MAX + 3: 259_200_000, 2 * ASKED_MAX: None}
    queues = lines({"broker-a": status(*(replace(QUEUE, queue_id=number, committed_ago_ms=ago) for number, ago in ages.items()))})
    states = {each.queue: QueueState.PROGRESSING if each.queue_id == 0 else QueueState.STALLED for each in queues}
    chosen = [each.queue_id for each in _choose(queues, states)]
    assert chosen[:3] == [2 * ASKED_MAX, ASKED_MAX + 3, 5]
    assert len(chosen) == ASKED_MAX
    assert 0 not in chosen


class Logs:
    """Brokers with ten messages in each queue, none of which matches."""

    async def offsets(self, broker: BrokerAddress, topic: str) -> list[OffsetRange]:
        return [OffsetRange(0, 0, 10)]

    async def pull(self, broker: BrokerAddress, topic: str, queue_id: int, offset: int, count: int, **_: object) -> tuple[bytes, int]:
        return b"", 10


async def test_each_broker_is_compared_with_its_own_contract() -> None:
    statuses = {"broker-a": status(QUEUE, expression="paid"), "broker-b": status(QUEUE, expression="payed")}
    queues = lines(statuses)
    brokers = {name: BrokerAddress(name, "c", f"{name}:1", True, 1) for name in statuses}
    found = await find_unmatched(Logs(), statuses, queues, brokers)  # type: ignore[arg-type]
    assert {queue.broker_name: (each.expression, each.count) for queue, each in found.items()} == {
        "broker-a": ("paid", 10),
        "broker-b": ("payed", 10),
    }

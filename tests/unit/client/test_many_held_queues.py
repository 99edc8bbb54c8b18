"""A consumer of many queues: an event of one queue does not visit the others.

Cost is counted in executed lines of the consumer. With four times the queues, an event of one queue costs the same, and an event of all
queues at most five times as much.
"""

import asyncio

import pytest

from lockstep.client.consumer.rebalance import MemberLists, plan
from lockstep.protocol.bodies import ListVersion, MemberList
from lockstep.protocol.topics.allocate import BY_BROKER
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, TopicLayout
from lockstep.runtime.daemon import Tasks
from support.consumers import Handled, consuming
from support.counting import Steps
from support.fake_broker import frozen_cluster
from support.frozen_loop import advance
from support.loops import turns

FEW, MANY = 20, 80
SESSION = "/consumer/grants/broker_session.py"


async def steps_of_one_message(count: int, commit: str) -> int:
    """Return the steps for a message in each of four of `count` queues, all of which are held."""
    handled = Handled()
    async with frozen_cluster(topics={"orders": count}) as cluster, consuming(cluster, handled, commit=commit):
        await advance(1.5)
        assert len(cluster["a"].locks) == count
        with Steps(SESSION) as counted:
            for number in range(4):
                cluster["a"].store("orders", number, [b"x"])
            await turns(200)
        assert len(handled.calls) == 4
        return counted.count


@pytest.mark.frozen_clock
@pytest.mark.parametrize("commit", ["interval", "each"])
async def test_cost_of_a_commit_is_independent_of_the_number_of_held_queues(commit: str) -> None:
    assert await steps_of_one_message(MANY, commit) <= await steps_of_one_message(FEW, commit) + 60


def layout(topic: str, brokers: int, queues: int) -> TopicLayout:
    return TopicLayout(topic, LayoutVersion(1, 1), tuple(LayoutEntry(f"broker-{n:03}", queues, queues, 1) for n in range(brokers)))


@pytest.mark.parametrize("heard", [True, False])
def test_cost_of_a_rebalance_is_linear_in_the_queues(heard: bool) -> None:
    def steps(topics: int, brokers: int) -> int:
        layouts = {f"t{n}": layout(f"t{n}", brokers, 2) for n in range(topics)}
        lists = MemberLists("me")
        for number in range(brokers if heard else 0):
            lists.adopt(f"broker-{number:03}", MemberList(("me",), ListVersion(1, 1), False))
        previous = {queue: None for each in layouts.values() for queue in each.read_queues}
        with Steps("/consumer/rebalance.py") as counted:
            round_ = plan("me", BY_BROKER, layouts, lists, previous=previous, reachable=lambda _: True)
        assert dict(round_.wanted) == previous
        return counted.count

    assert steps(20, 20) <= 5 * 4 * steps(5, 5)


async def test_cost_of_cancel_all_is_linear_in_the_tasks() -> None:
    async def steps(count: int) -> int:
        tasks = Tasks()
        for _ in range(count):
            tasks.spawn(asyncio.Event().wait(), "waits")
        await turns(1)
        with Steps("/runtime/daemon.py") as counted:
            await tasks.cancel_all()
        assert not len(tasks)
        return counted.count

    assert await steps(400) <= 5 * await steps(100)

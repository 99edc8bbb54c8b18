"""The subscription in force in a group with the classic policy is that of the member that gained queues last (RocketMQ: subVersion)."""

import pytest

from lockstep.protocol.bodies import HeartbeatBody
from lockstep.protocol.codes import RequestCode
from support.consumers import G, Handled, consuming
from support.fake_broker import FakeBroker, frozen_cluster
from support.frozen_loop import advance, settle

pytestmark = pytest.mark.frozen_clock


def versions(broker: FakeBroker) -> list[int]:
    """Return the version of the subscription to `orders` in each HEART_BEAT that named the group."""
    bodies: list[HeartbeatBody] = [seen.body for seen in broker.requests if seen.code == RequestCode.HEART_BEAT]
    return [each.sub_version for body in bodies for group in body.consumers for each in group.subscriptions]


@pytest.mark.parametrize("last_decides", [True, False])
async def test_gained_queues_raise_the_subscription_version_only_under_the_classic_policy(last_decides: bool) -> None:
    async with frozen_cluster(topics={"orders": 4}) as cluster:
        broker = cluster["a"]
        broker.last_decides = last_decides
        async with consuming(cluster, Handled(), allocate="average") as consumer:
            await settle()
            first = versions(broker)
            me = broker.me()
            broker.set_members(G, me, "zz")
            await advance(2)
            assert len(consumer.health().queues) == 2
            lost = versions(broker)[len(first) :]
            broker.set_members(G, me)
            await settle()
            gained = versions(broker)[len(first) + len(lost) :]
    assert first[0] == 0
    if last_decides:
        assert first[-1] > 0
        assert set(lost) <= {first[-1]}, "who loses queues decides nothing"
        assert gained[-1] > first[-1]
    else:
        assert set(first + lost + gained) == {0}
        assert not gained, "nobody is asked for more heartbeats"

"""An instance of a client against fake brokers, and a recorder of the events that it reports to consumers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lockstep.client.broker_link import BrokerLink
from lockstep.client.client import Client
from lockstep.client.instance import ConsumerHooks, Instance
from lockstep.protocol.bodies import ConsumerGroup, HeartbeatReply, QueueFreeBody, Subscription
from lockstep.protocol.errors import BrokerError
from lockstep.protocol.topics.queue import TopicLayout
from support.fake_broker import FakeCluster, fake_cluster


@dataclass
class HookRecorder:
    """Records the events that an instance reports to a consumer."""

    events: list[tuple[str, str]] = field(default_factory=list)
    views: list[HeartbeatReply] = field(default_factory=list)
    layouts: list[TopicLayout] = field(default_factory=list)
    freed: list[QueueFreeBody] = field(default_factory=list)
    refusals: list[BrokerError] = field(default_factory=list)

    def hooks(self) -> ConsumerHooks:
        return ConsumerHooks(
            on_up=lambda link, reply: self.events.append(("up", link.name)),
            on_down=lambda link: self.events.append(("down", link.name)),
            on_heartbeat_reply=lambda link, reply: self.views.append(reply),
            on_notice=lambda link, notice: self.events.append(("notice", f"{link.name} {notice.list_counter}")),
            on_queue_free=lambda link, free: self.freed.append(free),
            on_layout=self.layouts.append,
            on_refused=lambda link, error: self.refusals.append(error),
        )


def billing(group: str = "billing") -> ConsumerGroup:
    return ConsumerGroup(group, (Subscription("t"),), ordered=True)


@asynccontextmanager
async def instance_of(
    cluster: FakeCluster, *, client: Client | None = None, group: str | None = None, **options: Any
) -> AsyncIterator[Instance]:
    instance = (client or Client(cluster.nameserver, **options)).instance(group)
    try:
        await instance.start()
        yield instance
    finally:
        await instance.close(group=group)


async def linked(instance: Instance, topic: str = "t") -> list[BrokerLink]:
    """Wait until all links of the topic are up. Return them."""
    assert await instance.watch.route(topic) is not None
    for link in instance.links():
        assert await link.wait_first_attempt()
    return instance.links()


@asynccontextmanager
async def registered(*brokers: str, **options: Any) -> AsyncIterator[tuple[FakeCluster, Instance, HookRecorder]]:
    """Run brokers and an instance with links to them and a consumer of group "billing", which has not joined it."""
    async with fake_cluster(*brokers, topics={"t": 1}) as cluster, instance_of(cluster, **options) as instance:
        recorder = HookRecorder()
        instance.register_consumer("billing", billing, recorder.hooks())
        await linked(instance)
        yield cluster, instance, recorder

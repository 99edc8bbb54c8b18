"""A topic of which some brokers have no queue is deleted at those that have some first."""

import pytest

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.topic_create import create_topic
from lockstep.operations.changes.topic_delete import delete_topic, plan_deletion
from lockstep.operations.errors import OperationError
from lockstep.protocol.errors import TopicNotExistError
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster, simulate


def test_deletion_that_no_broker_with_queues_accepts_changes_nothing_and_can_be_repeated(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with TestCluster(brokers=2) as cluster:
            admin = AdminClient(Host.current(), cluster.nameserver)
            created, _ = await create_topic(admin, "orders", 1, ["broker-a"])
            await cluster.pause("broker-a")
            with pytest.raises(OperationError, match="no broker accepted the change of topic orders"):
                await delete_topic(admin, await plan_deletion(admin, "orders"))
            await cluster.resume("broker-a")
            await cluster.advance(seconds=40)
            assert (await admin.route("orders")).layout == created
            await delete_topic(admin, created)
            with pytest.raises(TopicNotExistError):
                await admin.route("orders")

    simulate(main)
    assert "layout.refused" not in caplog.text


def test_topic_whose_brokers_are_away_is_deleted_at_the_others() -> None:
    async def main() -> None:
        async with TestCluster(brokers=2) as cluster:
            admin = AdminClient(Host.current(), cluster.nameserver)
            created, _ = await create_topic(admin, "orders", 1, ["broker-a"])
            await cluster.kill("broker-a")
            await cluster.advance(seconds=1)
            await delete_topic(admin, created)
            await cluster.restart("broker-a")
            await cluster.advance(seconds=5)
            with pytest.raises(TopicNotExistError):
                await admin.route("orders")

    simulate(main)

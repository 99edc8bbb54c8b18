"""RocketMQ's mqadmin, unchanged, against our servers: what its daily commands print. Its libraries come from Maven Central."""

import asyncio
import re
from pathlib import Path

import pytest

from support.cluster import WAIT_S, Cluster, running_cluster
from support.java_programs import compiled
from support.processes import completed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fetch mqadmin. Return the class path of its libraries."""
    return compiled(None, tmp_path_factory.mktemp("mqadmin"), pom="tools.xml")


class Mqadmin:
    """Runs commands of mqadmin against one cluster."""

    def __init__(self, class_path: str, cluster: Cluster) -> None:
        self._start = ["java", "-XX:TieredStopAtLevel=1", f"-Duser.home={cluster.folder}", "-cp", class_path]
        self._start += [f"-Drocketmq.namesrv.addr={cluster.nameservers}", "org.apache.rocketmq.tools.command.MQAdminStartup"]

    async def run(self, command: str) -> str:
        """Return what a command prints, with runs of blanks as one, and without stack traces."""
        _, said, errors = await completed(*self._start, *command.split(), limit_s=WAIT_S)
        lines = [line for line in (said + errors).splitlines() if not re.match(r"\s+at |\s*\.\.\. |SLF4J|For more information", line)]
        return "\n".join(re.sub(r"[ \t]+", " ", line).strip() for line in lines if line.strip())

    async def run_all(self, *commands: str) -> list[str]:
        """Run commands that don't depend on each other. Return what each prints."""
        return list(await asyncio.gather(*map(self.run, commands)))


async def test_daily_commands_print_what_they_print_with_rocketmq(class_path: str, tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.nameserver()
        for name in ("broker-a", "broker-b"):
            await cluster.broker(name, "--trace-topic")
        mqadmin, a, b = Mqadmin(class_path, cluster), cluster.addresses["broker-a"], cluster.addresses["broker-b"]
        await topics(mqadmin, a, b)
        await groups_and_brokers(mqadmin, a, b)
        await searches(mqadmin)
        await refusals(mqadmin, a)


async def topics(mqadmin: Mqadmin, a: str, b: str) -> None:
    created = await mqadmin.run("updateTopic -c DefaultCluster -t orders -r 4 -w 4")
    assert f"create topic to {a} success." in created
    assert f"create topic to {b} success." in created
    assert "topicName=orders, readQueueNums=4, writeQueueNums=4, perm=RW-" in created
    assert "broker-a 0 SEND_OK" in await mqadmin.run("sendMessage -t orders -p hello -b broker-a -i 0")
    listed, route, clusters, status, allocated = await mqadmin.run_all(
        "topicList",
        "topicRoute -t orders",
        "topicClusterList -t orders",
        "topicStatus -t orders",
        "allocateMQ -t orders -i 10.0.0.1,10.0.0.2",
    )
    assert listed == "orders"
    for part in (f'"brokerAddrs":{{0:"{a}"', f'0:"{b}"', '"readQueueNums":4', '"writeQueueNums":4', '"perm":6'):
        assert part in route
    assert clusters == "DefaultCluster"
    lines = status.splitlines()
    assert re.fullmatch(r"broker-a 0 0 1 \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", lines[1])
    assert lines[2:9] == [*(f"broker-a {queue} 0 0" for queue in (1, 2, 3)), *(f"broker-b {queue} 0 0" for queue in range(4))]
    assert allocated.count('"topic":"orders"') == 8
    assert f"update topic perm from 6 to 4 in {a} success." in await mqadmin.run(f"updateTopicPerm -t orders -p 4 -b {a}")
    route = (await mqadmin.run("topicRoute -t orders")).replace("\n", "")
    assert '"perm":4,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":0' in route
    assert f"update topic perm from 4 to 6 in {a} success." in await mqadmin.run(f"updateTopicPerm -t orders -p 6 -b {a}")


async def groups_and_brokers(mqadmin: Mqadmin, a: str, b: str) -> None:
    set_group, set_order, clusters, status, settings, own = await mqadmin.run_all(
        f"updateSubGroup -b {a} -g billing -s false",
        "updateKvConfig -s ORDER_TOPIC_CONFIG -k orders -v broker-a:4",
        "clusterList",
        f"brokerStatus -b {a}",
        f"getBrokerConfig -b {a}",
        "getNamesrvConfig",
    )
    assert f"create subscription group to {a} success." in set_group
    assert "create or update kv config to namespace success." in set_order
    assert [line.split()[:5] for line in clusters.splitlines()[1:]] == [
        ["DefaultCluster", "broker-a", "0", a, "V4_9_8"],
        ["DefaultCluster", "broker-b", "0", b, "V4_9_8"],
    ]
    assert "null" not in clusters
    assert re.search(r"^putTps : \d+\.\d{3} \d+\.\d{3} \d+\.\d{3}$", status, re.MULTILINE)
    assert "brokerActive : true" in status
    assert "brokerName = broker-a" in settings
    assert "retention_hours = 72" in settings
    assert "orderMessageEnable = false" in own
    group, order, topics, queues = await mqadmin.run_all(
        "getConsumerConfig -g billing", "updateOrderConf -t orders -m get", f"cleanUnusedTopic -b {a}", "cleanExpiredCQ -c DefaultCluster"
    )
    assert "consumeEnable = false" in group
    assert "retryMaxTimes = 16" in group
    assert "orderConf=[broker-a:4]" in order
    assert (topics, queues) == ("success", "success")
    assert "delete kv config from namespace success." in await mqadmin.run("deleteKvConfig -s ORDER_TOPIC_CONFIG -k orders")


async def searches(mqadmin: Mqadmin) -> None:
    sent = await mqadmin.run("sendMessage -t orders -p searched -k order-1 -b broker-b -i 0 -m true")
    ids = re.findall(r"\b[0-9A-F]{32,56}\b", sent)
    assert len(ids) == 1, sent
    message_id = ids[0]
    by_key, other, by_id, traced = await mqadmin.run_all(
        "queryMsgByKey -t orders -k order-1",
        "queryMsgByKey -t orders -k order",
        f"queryMsgByUniqueKey -t orders -i {message_id}",
        f"queryMsgTraceById -i {message_id}",
    )
    assert re.search(rf"^{message_id} 0 \d+$", by_key, re.MULTILINE), by_key
    assert "query message by key finished, but no message." in other
    assert f"UNIQ_KEY={message_id}" in by_id, by_id
    assert "Keys: [order-1]" in by_id, by_id
    assert re.search(r"^Pub .* success$", traced, re.MULTILINE), traced


async def refusals(mqadmin: Mqadmin, a: str) -> None:
    changed, wiped, retries = await mqadmin.run_all(
        f"updateBrokerConfig -b {a} -k flushDiskType -v SYNC_FLUSH", "wipeWritePerm -b broker-a", f"updateSubGroup -b {a} -g billing -r 3"
    )
    assert "CODE: 16 DESC: settings are not changed by RocketMQ's tools: use `lockstep broker config set`" in changed
    assert "Failed" in wiped
    assert "CODE: 16 DESC: a nameserver does not change the queues of topics" in wiped
    assert "CODE: 13 DESC: nothing was changed: group billing with retryMaxTimes 3: only 16 is supported" in retries
    deleted = await mqadmin.run("deleteTopic -c DefaultCluster -t orders")
    assert "delete topic [orders] from cluster [DefaultCluster] success." in deleted
    assert "delete topic [orders] from NameServer success." in deleted
    assert "CODE: 17" in await mqadmin.run("topicStatus -t orders")

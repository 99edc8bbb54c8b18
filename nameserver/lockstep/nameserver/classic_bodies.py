"""Routes and clusters as RocketMQ's clients read them. RocketMQ: TopicRouteData, ClusterInfo.

Their parsers are made by hand: Go splits the text of `brokerAddrs`, pyrocketmq reads the whole body as a Python literal. So there are no
blanks and no `null`, `false` is only in what clients of 5.0 get, and the ids of brokers are quoted only for clients that expect it.

Names that some clients require: `enableActingMaster` (Rust), which RocketMQ has had since 5.0, and `topicSynFlag` (pyrocketmq), the name of
`topicSysFlag` in RocketMQ of those years.
"""

import json
from collections.abc import Iterable, Sequence

from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.command import VERSION_5_0
from lockstep.protocol.topics.queue import TopicLayout

READ, WRITE = 4, 2
"""Bits of a queue's permission. RocketMQ: PermName."""
QUOTED_VERSION = 401
"""Version of RocketMQ (4.9.4) from which clients read standard JSON."""


def route_body(layout: TopicLayout, brokers: Sequence[BrokerAddress], version: int, *, quoted: bool) -> bytes | None:
    """Return the route of a topic over its registered brokers, or None if there is none: clients take that for a missing topic.

    `version` is that of the client, `quoted` whether it reads standard JSON only.
    """
    serving = [broker for broker in brokers if broker.registered and layout.read_count(broker.name)]
    if not serving:
        return None
    serving.sort(key=lambda broker: broker.name)
    queues = [_queue_data(layout, broker.name, version) for broker in serving]
    data = ",".join(_broker_data(broker, version, quoted=quoted or version >= QUOTED_VERSION) for broker in serving)
    return f'{{"brokerDatas":[{data}],"filterServerTable":{{}},"queueDatas":[{",".join(queues)}]}}'.encode()


def cluster_body(brokers: Iterable[BrokerAddress], version: int) -> bytes:
    """Return the registered brokers and their clusters. Ids are never quoted, as in RocketMQ of every version."""
    registered = sorted((broker for broker in brokers if broker.registered), key=lambda broker: broker.name)
    clusters: dict[str, list[str]] = {}
    for broker in registered:
        clusters.setdefault(broker.cluster, []).append(broker.name)
    addresses = ",".join(f"{_text(broker.name)}:{_broker_data(broker, version, quoted=False)}" for broker in registered)
    names = ",".join(f"{_text(cluster)}:[{','.join(map(_text, names))}]" for cluster, names in sorted(clusters.items()))
    return f'{{"brokerAddrTable":{{{addresses}}},"clusterAddrTable":{{{names}}}}}'.encode()


def _queue_data(layout: TopicLayout, broker: str, version: int) -> str:
    read, write = layout.read_count(broker), layout.write_count(broker)
    permission = (READ if read else 0) | (WRITE if write else 0)
    older = '"topicSynFlag":0,' if version < QUOTED_VERSION else ""
    return f'{{"brokerName":{_text(broker)},"perm":{permission},"readQueueNums":{read},{older}"topicSysFlag":0,"writeQueueNums":{write}}}'


def _broker_data(broker: BrokerAddress, version: int, *, quoted: bool) -> str:
    number = '"0"' if quoted else "0"
    newer = ',"enableActingMaster":false' if version >= VERSION_5_0 else ""
    names = f'"brokerName":{_text(broker.name)},"cluster":{_text(broker.cluster)}'
    return f'{{"brokerAddrs":{{{number}:{_text(broker.address)}}},{names}{newer}}}'


def _text(text: str) -> str:
    return json.dumps(text)

"""Routes and clusters as RocketMQ's clients read them. RocketMQ: TopicRouteData, ClusterInfo.

Their parsers are made by hand: Go splits the text of `brokerAddrs`, pyrocketmq reads the whole body as a Python literal. So there are no
blanks, no `true`, `false` or `null`, and the ids of brokers are quoted only for clients that expect it.
"""

import json
from collections.abc import Iterable, Sequence

from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.queue import TopicLayout

READ, WRITE = 4, 2
"""Bits of a queue's permission. RocketMQ: PermName."""
QUOTED_VERSION = 401
"""Version of RocketMQ (4.9.4) from which clients read standard JSON."""


def route_body(layout: TopicLayout, brokers: Sequence[BrokerAddress], *, quoted: bool) -> bytes | None:
    """Return the route of a topic over its registered brokers, or None if there is none: clients take that for a missing topic."""
    serving = [broker for broker in brokers if broker.registered and layout.read_count(broker.name)]
    if not serving:
        return None
    queues = [_queue_data(layout, broker.name) for broker in sorted(serving, key=lambda broker: broker.name)]
    data = ",".join(_broker_data(broker, quoted=quoted) for broker in sorted(serving, key=lambda broker: broker.name))
    return f'{{"brokerDatas":[{data}],"filterServerTable":{{}},"queueDatas":[{",".join(queues)}]}}'.encode()


def cluster_body(brokers: Iterable[BrokerAddress]) -> bytes:
    """Return the registered brokers and their clusters. Ids are never quoted, as in RocketMQ of every version."""
    registered = sorted((broker for broker in brokers if broker.registered), key=lambda broker: broker.name)
    clusters: dict[str, list[str]] = {}
    for broker in registered:
        clusters.setdefault(broker.cluster, []).append(broker.name)
    addresses = ",".join(f"{_text(broker.name)}:{_broker_data(broker, quoted=False)}" for broker in registered)
    names = ",".join(f"{_text(cluster)}:[{','.join(map(_text, names))}]" for cluster, names in sorted(clusters.items()))
    return f'{{"brokerAddrTable":{{{addresses}}},"clusterAddrTable":{{{names}}}}}'.encode()


def _queue_data(layout: TopicLayout, broker: str) -> str:
    read, write = layout.read_count(broker), layout.write_count(broker)
    permission = (READ if read else 0) | (WRITE if write else 0)
    name = _text(broker)
    return f'{{"brokerName":{name},"perm":{permission},"readQueueNums":{read},"topicSysFlag":0,"writeQueueNums":{write}}}'


def _broker_data(broker: BrokerAddress, *, quoted: bool) -> str:
    number = '"0"' if quoted else "0"
    return f'{{"brokerAddrs":{{{number}:{_text(broker.address)}}},"brokerName":{_text(broker.name)},"cluster":{_text(broker.cluster)}}}'


def _text(text: str) -> str:
    return json.dumps(text)

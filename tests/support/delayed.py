"""Send messages that wait."""

from collections.abc import Mapping

from lockstep.client import Message, MessageQueue, Producer
from lockstep.testing import TestCluster


async def send_delayed(cluster: TestCluster, topic: str, counts: Mapping[int, int]) -> None:
    """Send messages of each delay level, to one broker after the other."""
    async with Producer("reminders", nameserver=cluster.nameserver) as producer:
        for level, count in counts.items():
            for number in range(count):
                queue = MessageQueue(topic, cluster.brokers[number % len(cluster.brokers)], 0)
                await producer.send(Message(topic, b"%d" % number), queue=queue, delay_level=level)

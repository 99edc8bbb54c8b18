"""Consumers: one that calls a listener, in order and fenced or concurrently, and one that is asked."""

from lockstep.client.consumer.config import Backoff, ConsumeFromWhere, OrderedRetry
from lockstep.client.consumer.events import ConsumerEvent, MessageDeadLettered, QueueAssigned, QueueBlocked, QueueGap, QueueRevoked
from lockstep.client.consumer.health import BrokerHealth, ConsumerHealth, ConsumerState, QueueHealth
from lockstep.client.consumer.listener import (
    Cancelled,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    Fence,
    OrderlyContext,
)
from lockstep.client.consumer.pull_consumer import PullConsumer
from lockstep.client.consumer.push_consumer import PushConsumer

__all__ = [
    "Backoff",
    "BrokerHealth",
    "Cancelled",
    "ConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyStatus",
    "ConsumerEvent",
    "ConsumerHealth",
    "ConsumerState",
    "Fence",
    "MessageDeadLettered",
    "OrderedRetry",
    "OrderlyContext",
    "PullConsumer",
    "PushConsumer",
    "QueueAssigned",
    "QueueBlocked",
    "QueueGap",
    "QueueHealth",
    "QueueRevoked",
]

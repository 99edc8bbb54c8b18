"""The client SDK: producers and consumers."""

from lockstep.client.consumer import (
    Backoff,
    Cancelled,
    ConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumerEvent,
    ConsumerHealth,
    ConsumerState,
    Fence,
    MessageDeadLettered,
    OrderedRetry,
    OrderlyContext,
    PullConsumer,
    PushConsumer,
    QueueAssigned,
    QueueBlocked,
    QueueGap,
    QueueRevoked,
)
from lockstep.client.consumer.hooks import ConsumeHook, Consuming
from lockstep.client.errors import BatchSendError, NotDurable, Outcome, PrecedingSendFailed, QueueUnavailable, SendError, SendTimeout
from lockstep.client.producer.hooks import SendHook, Sending
from lockstep.client.producer.latencies import LatencyFaults
from lockstep.client.producer.producer import Producer
from lockstep.client.producer.result import SendResult, SendStatus
from lockstep.client.producer.sequencer import GivenId
from lockstep.client.program import run
from lockstep.protocol.allocate import ByConfig, ByMachineRoom, MachineRoomNearby
from lockstep.protocol.bodies import MessageModel
from lockstep.protocol.errors import (
    BrokerError,
    ConfigError,
    DuplicateClientId,
    LocalProtocolError,
    LockstepError,
    RemoteProtocolError,
    RequestTimeout,
    StaleEpoch,
    StateError,
    SubscriptionConflict,
    TopicNotExist,
    TransportError,
)
from lockstep.protocol.message import Message, MessageExt
from lockstep.protocol.queue import MessageQueue

__all__ = [
    "Backoff",
    "BatchSendError",
    "BrokerError",
    "ByConfig",
    "ByMachineRoom",
    "Cancelled",
    "ConcurrentlyContext",
    "ConfigError",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeHook",
    "ConsumeOrderlyStatus",
    "ConsumerEvent",
    "ConsumerHealth",
    "ConsumerState",
    "Consuming",
    "DuplicateClientId",
    "Fence",
    "GivenId",
    "LatencyFaults",
    "LocalProtocolError",
    "LockstepError",
    "MachineRoomNearby",
    "Message",
    "MessageDeadLettered",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NotDurable",
    "OrderedRetry",
    "OrderlyContext",
    "Outcome",
    "PrecedingSendFailed",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueueAssigned",
    "QueueBlocked",
    "QueueGap",
    "QueueRevoked",
    "QueueUnavailable",
    "RemoteProtocolError",
    "RequestTimeout",
    "SendError",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SendTimeout",
    "Sending",
    "StaleEpoch",
    "StateError",
    "SubscriptionConflict",
    "TopicNotExist",
    "TransportError",
    "run",
]

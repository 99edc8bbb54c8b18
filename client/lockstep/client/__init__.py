"""The client SDK: producers and consumers."""

from lockstep.client.config import InstanceConfig
from lockstep.client.errors import BatchSendError, NotDurable, Outcome, PrecedingSendFailed, QueueUnavailable, SendError, SendTimeout
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.producer import Producer
from lockstep.client.producer.result import SendResult, SendStatus
from lockstep.protocol.errors import (
    BrokerError,
    ConfigError,
    DuplicateClientId,
    LocalProtocolError,
    LockstepError,
    RemoteProtocolError,
    RequestTimeout,
    StateError,
    SubscriptionConflict,
    TopicNotExist,
    TransportError,
)
from lockstep.protocol.message import Message, MessageExt
from lockstep.protocol.queue import MessageQueue

__all__ = [
    "BatchSendError",
    "BrokerError",
    "ConfigError",
    "DuplicateClientId",
    "InstanceConfig",
    "LocalProtocolError",
    "LockstepError",
    "Message",
    "MessageExt",
    "MessageQueue",
    "NotDurable",
    "Outcome",
    "PrecedingSendFailed",
    "Producer",
    "ProducerConfig",
    "QueueUnavailable",
    "RemoteProtocolError",
    "RequestTimeout",
    "SendError",
    "SendResult",
    "SendStatus",
    "SendTimeout",
    "StateError",
    "SubscriptionConflict",
    "TopicNotExist",
    "TransportError",
]

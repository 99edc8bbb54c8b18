"""The client SDK: producers and consumers. Everything that a program needs is imported from here.

A module is imported when the first of its names is asked for: a program that only sends does not wait for the code of consumers.
"""

from typing import TYPE_CHECKING

from lockstep.client.errors import (
    BatchSendError,
    FencedError,
    NotDurableError,
    Outcome,
    PrecedingSendError,
    QueueUnavailableError,
    ReplyTimeoutError,
    ReplyUndeliveredError,
    SendError,
    SendTimeoutError,
    TooManyRequestsError,
    TooManySendsError,
    TransactionDecidedError,
)
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.errors import (
    AuthenticationError,
    BrokerError,
    BrokerSystemError,
    ConfigError,
    DuplicateClientIdError,
    FlushDiskTimeoutError,
    LayoutStaleError,
    LocalProtocolError,
    LockstepError,
    MessageIllegalError,
    NonDeterministicRetryError,
    NoPermissionError,
    NotEnoughReplicasError,
    NotLeaderError,
    NotYoursError,
    OutOfSequenceError,
    ParkRefusedError,
    QueryNotFoundError,
    RemoteProtocolError,
    RequestCodeNotSupportedError,
    RequestTimeoutError,
    RouteNotReadyError,
    ServiceNotAvailableError,
    StaleEpochError,
    StateError,
    SubscriptionConflictError,
    SubscriptionGroupNotExistError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    SubscriptionParseError,
    SystemBusyError,
    TooLateToRecallError,
    TopicNotExistError,
    TransactionCommittedError,
    TransactionGroupError,
    TransactionRolledBackError,
    TransportError,
)
from lockstep.runtime.extras import VERSION
from lockstep.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from lockstep.client.client import Client
    from lockstep.client.config import ClientConfig
    from lockstep.client.consumer.calls.hooks import ConsumeHook, Consuming
    from lockstep.client.consumer.calls.listener import (
        Cancelled,
        ConcurrentlyContext,
        ConcurrentlyListener,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyStatus,
        Fence,
        OrderlyContext,
        OrderlyListener,
    )
    from lockstep.client.consumer.calls.retry import Backoff, OrderedRetry
    from lockstep.client.consumer.config import ConsumerConfig, PullConsumerConfig
    from lockstep.client.consumer.events import (
        ConsumerEvent,
        KeyParked,
        KeyResumed,
        MessageDeadLettered,
        QueueAssigned,
        QueueBlocked,
        QueueGap,
        QueueRevoked,
    )
    from lockstep.client.consumer.health import BrokerHealth, ConsumerHealth, ConsumerState, LaneHealth, QueueHealth
    from lockstep.client.consumer.pull_consumer import PullConsumer
    from lockstep.client.consumer.push_consumer import PushConsumer
    from lockstep.client.consumer.subscription import SqlExpression, sql
    from lockstep.client.producer.config import ProducerConfig, Require
    from lockstep.client.producer.health import ProducerHealth, ProducerState
    from lockstep.client.producer.hooks import SendHook, Sending
    from lockstep.client.producer.machines.latency_fault import LatencyFaults
    from lockstep.client.producer.machines.routing import Selector
    from lockstep.client.producer.machines.sequencer import GivenId
    from lockstep.client.producer.producer import Producer
    from lockstep.client.producer.reply import Reply
    from lockstep.client.producer.result import SendResult, SendStatus
    from lockstep.client.producer.transactions import Transaction, TransactionProducer, TransactionStatus
    from lockstep.client.run import run
    from lockstep.protocol.bodies import ConsumeFromWhere, MessageModel
    from lockstep.protocol.messages.message import Message, MessageExt
    from lockstep.protocol.sql92 import SqlError
    from lockstep.protocol.topics.allocate import ByConfig, ByMachineRoom, MachineRoomNearby
    from lockstep.protocol.topics.queue import MessageQueue
    from lockstep.runtime.security.tls import Tls

__version__ = VERSION

_NAMES = {
    "lockstep.client.client": ("Client",),
    "lockstep.client.config": ("ClientConfig",),
    "lockstep.client.consumer.calls.hooks": ("ConsumeHook", "Consuming"),
    "lockstep.client.consumer.calls.listener": (
        "Cancelled",
        "ConcurrentlyContext",
        "ConcurrentlyListener",
        "ConsumeConcurrentlyStatus",
        "ConsumeOrderlyStatus",
        "Fence",
        "OrderlyContext",
        "OrderlyListener",
    ),
    "lockstep.client.consumer.calls.retry": ("Backoff", "OrderedRetry"),
    "lockstep.client.consumer.config": ("ConsumerConfig", "PullConsumerConfig"),
    "lockstep.client.consumer.events": (
        "ConsumerEvent",
        "KeyParked",
        "KeyResumed",
        "MessageDeadLettered",
        "QueueAssigned",
        "QueueBlocked",
        "QueueGap",
        "QueueRevoked",
    ),
    "lockstep.client.consumer.health": ("BrokerHealth", "ConsumerHealth", "ConsumerState", "LaneHealth", "QueueHealth"),
    "lockstep.client.consumer.pull_consumer": ("PullConsumer",),
    "lockstep.client.consumer.push_consumer": ("PushConsumer",),
    "lockstep.client.consumer.subscription": ("SqlExpression", "sql"),
    "lockstep.client.producer.config": ("ProducerConfig", "Require"),
    "lockstep.client.producer.health": ("ProducerHealth", "ProducerState"),
    "lockstep.client.producer.hooks": ("SendHook", "Sending"),
    "lockstep.client.producer.machines.latency_fault": ("LatencyFaults",),
    "lockstep.client.producer.machines.routing": ("Selector",),
    "lockstep.client.producer.machines.sequencer": ("GivenId",),
    "lockstep.client.producer.producer": ("Producer",),
    "lockstep.client.producer.reply": ("Reply",),
    "lockstep.client.producer.result": ("SendResult", "SendStatus"),
    "lockstep.client.producer.transactions": ("Transaction", "TransactionProducer", "TransactionStatus"),
    "lockstep.client.run": ("run",),
    "lockstep.protocol.bodies": ("ConsumeFromWhere", "MessageModel"),
    "lockstep.protocol.messages.message": ("Message", "MessageExt"),
    "lockstep.protocol.sql92": ("SqlError",),
    "lockstep.protocol.topics.allocate": ("ByConfig", "ByMachineRoom", "MachineRoomNearby"),
    "lockstep.protocol.topics.queue": ("MessageQueue",),
    "lockstep.runtime.security.tls": ("Tls",),
}
"""The names of each module, as in the imports above (tests/unit/client/test_public_names.py)."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "AuthenticationError",
    "Backoff",
    "BatchSendError",
    "BrokerError",
    "BrokerHealth",
    "BrokerSystemError",
    "ByConfig",
    "ByMachineRoom",
    "Cancelled",
    "Client",
    "ClientConfig",
    "ConcurrentlyContext",
    "ConcurrentlyListener",
    "ConfigError",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeHook",
    "ConsumeOrderlyStatus",
    "ConsumerConfig",
    "ConsumerEvent",
    "ConsumerHealth",
    "ConsumerState",
    "Consuming",
    "DuplicateClientIdError",
    "Fence",
    "FencedError",
    "FlushDiskTimeoutError",
    "GivenId",
    "KeyParked",
    "KeyResumed",
    "LaneHealth",
    "LatencyFaults",
    "LayoutStaleError",
    "LocalProtocolError",
    "LockstepError",
    "MachineRoomNearby",
    "Message",
    "MessageDeadLettered",
    "MessageExt",
    "MessageIllegalError",
    "MessageModel",
    "MessageQueue",
    "NoPermissionError",
    "NonDeterministicRetryError",
    "NotDurableError",
    "NotEnoughReplicasError",
    "NotLeaderError",
    "NotYoursError",
    "OrderedRetry",
    "OrderlyContext",
    "OrderlyListener",
    "OutOfSequenceError",
    "Outcome",
    "ParkRefusedError",
    "PrecedingSendError",
    "Producer",
    "ProducerConfig",
    "ProducerHealth",
    "ProducerState",
    "PullConsumer",
    "PullConsumerConfig",
    "PushConsumer",
    "QueryNotFoundError",
    "QueueAssigned",
    "QueueBlocked",
    "QueueGap",
    "QueueHealth",
    "QueueRevoked",
    "QueueUnavailableError",
    "RemoteProtocolError",
    "Reply",
    "ReplyTimeoutError",
    "ReplyUndeliveredError",
    "RequestCodeNotSupportedError",
    "RequestTimeoutError",
    "Require",
    "ResponseCode",
    "RouteNotReadyError",
    "Selector",
    "SendError",
    "SendHook",
    "SendResult",
    "SendStatus",
    "SendTimeoutError",
    "Sending",
    "ServiceNotAvailableError",
    "SqlError",
    "SqlExpression",
    "StaleEpochError",
    "StateError",
    "SubscriptionConflictError",
    "SubscriptionGroupNotExistError",
    "SubscriptionNotExistError",
    "SubscriptionNotLatestError",
    "SubscriptionParseError",
    "SystemBusyError",
    "Tls",
    "TooLateToRecallError",
    "TooManyRequestsError",
    "TooManySendsError",
    "TopicNotExistError",
    "Transaction",
    "TransactionCommittedError",
    "TransactionDecidedError",
    "TransactionGroupError",
    "TransactionProducer",
    "TransactionRolledBackError",
    "TransactionStatus",
    "TransportError",
    "run",
    "sql",
]

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

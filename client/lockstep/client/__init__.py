"""The client SDK: producers and consumers. Everything that a program needs is imported from here."""

from lockstep.client.client import (
    Client,
)
from lockstep.client.config import (
    ClientConfig,
)
from lockstep.client.consumer.calls.hooks import (
    ConsumeHook,
    Consuming,
)
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
from lockstep.client.consumer.calls.retry import (
    Backoff,
    OrderedRetry,
)
from lockstep.client.consumer.config import (
    ConsumerConfig,
    PullConsumerConfig,
)
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
from lockstep.client.consumer.health import (
    BrokerHealth,
    ConsumerHealth,
    ConsumerState,
    LaneHealth,
    QueueHealth,
)
from lockstep.client.consumer.pull_consumer import (
    PullConsumer,
)
from lockstep.client.consumer.push_consumer import (
    PushConsumer,
)
from lockstep.client.consumer.subscription import (
    SqlExpression,
    sql,
)
from lockstep.client.errors import (
    BatchSendError,
    FencedError,
    NotDurableError,
    Outcome,
    PrecedingSendError,
    QueueUnavailableError,
    SendError,
    SendTimeoutError,
    TooManySendsError,
)
from lockstep.client.producer.config import (
    ProducerConfig,
    Require,
)
from lockstep.client.producer.health import (
    ProducerHealth,
    ProducerState,
)
from lockstep.client.producer.hooks import (
    SendHook,
    Sending,
)
from lockstep.client.producer.machines.latency_fault import (
    LatencyFaults,
)
from lockstep.client.producer.machines.routing import (
    Selector,
)
from lockstep.client.producer.machines.sequencer import (
    GivenId,
)
from lockstep.client.producer.producer import (
    Producer,
)
from lockstep.client.producer.result import (
    SendResult,
    SendStatus,
)
from lockstep.client.run import (
    run,
)
from lockstep.protocol.bodies import (
    ConsumeFromWhere,
    MessageModel,
)
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.errors import (
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
    TopicNotExistError,
    TransportError,
)
from lockstep.protocol.messages.message import (
    Message,
    MessageExt,
)
from lockstep.protocol.sql92 import SqlError
from lockstep.protocol.topics.allocate import (
    ByConfig,
    ByMachineRoom,
    MachineRoomNearby,
)
from lockstep.protocol.topics.queue import (
    MessageQueue,
)
from lockstep.runtime.extras import DISTRIBUTION

__all__ = [
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
    "TooManySendsError",
    "TopicNotExistError",
    "TransportError",
    "run",
    "sql",
]


def __getattr__(name: str) -> object:
    """Return `__version__`, the version of the distribution lockstep-mq: the namespace package `lockstep` itself has no attributes."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version

    return version(DISTRIBUTION)

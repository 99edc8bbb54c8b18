"""Every declared change, in the order in which the dashboard lists them."""

from lockstep.operations.changes.broker_drain import BrokerDrain, BrokerRemove
from lockstep.operations.changes.broker_settings import BrokerConfigSet
from lockstep.operations.changes.group_clone import GroupClone
from lockstep.operations.changes.group_delete import GroupDelete
from lockstep.operations.changes.group_forget import GroupForget
from lockstep.operations.changes.group_reset import GroupReset
from lockstep.operations.changes.group_settings import GroupCreate, GroupUpdate
from lockstep.operations.changes.ha_failover import HaFailover
from lockstep.operations.changes.operation import Operation
from lockstep.operations.changes.park_change import ParkDrop, ParkReplay
from lockstep.operations.changes.replay import DeadLetterReplay
from lockstep.operations.changes.replica_forget import ReplicaForget
from lockstep.operations.changes.replica_promote import ReplicaPromote
from lockstep.operations.changes.send import MessageSend
from lockstep.operations.changes.topic_alter import TopicAlter
from lockstep.operations.changes.topic_create import TopicCreate
from lockstep.operations.changes.topic_delete import TopicDelete
from lockstep.operations.changes.topic_forget_deleted import TopicForgetDeleted
from lockstep.operations.changes.topic_purge import TopicPurge
from lockstep.operations.changes.waiting.timer_recall import TimerRecall
from lockstep.operations.changes.waiting.transaction_end import TransactionCommit, TransactionRollback

CHANGES: tuple[type[Operation], ...] = (
    TopicCreate,
    TopicAlter,
    TopicPurge,
    TopicDelete,
    TopicForgetDeleted,
    MessageSend,
    TimerRecall,
    TransactionCommit,
    TransactionRollback,
    GroupReset,
    GroupClone,
    GroupForget,
    GroupCreate,
    GroupUpdate,
    GroupDelete,
    ParkReplay,
    ParkDrop,
    DeadLetterReplay,
    BrokerDrain,
    BrokerRemove,
    BrokerConfigSet,
    HaFailover,
    ReplicaPromote,
    ReplicaForget,
)

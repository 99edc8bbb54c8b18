"""Every declared change, in the order in which the dashboard lists them."""

from lockstep.operations.changes.group_clone import GroupClone
from lockstep.operations.changes.group_delete import GroupDelete
from lockstep.operations.changes.group_forget import GroupForget
from lockstep.operations.changes.group_reset import GroupReset
from lockstep.operations.changes.group_settings import GroupCreate, GroupUpdate
from lockstep.operations.changes.operation import Operation
from lockstep.operations.changes.park_change import ParkDrop, ParkReplay
from lockstep.operations.changes.replay import DeadLetterReplay
from lockstep.operations.changes.send import Send
from lockstep.operations.changes.topic_alter import TopicAlter
from lockstep.operations.changes.topic_create import TopicCreate
from lockstep.operations.changes.topic_delete import TopicDelete

CHANGES: tuple[type[Operation], ...] = (
    TopicCreate,
    TopicAlter,
    TopicDelete,
    Send,
    GroupReset,
    GroupClone,
    GroupForget,
    GroupCreate,
    GroupUpdate,
    GroupDelete,
    ParkReplay,
    ParkDrop,
    DeadLetterReplay,
)

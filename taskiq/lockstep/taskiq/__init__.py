"""A broker for Taskiq: tasks are messages of a topic, and each worker process is a member of a concurrent group. See docs/frameworks.md.

broker = LockstepBroker("tasks", "workers", nameserver="127.0.0.1:9876")
"""

from lockstep.runtime.extras import with_advice

try:
    from lockstep.taskiq.broker import LockstepBroker
except ModuleNotFoundError as error:
    raise with_advice(error) from None

__all__ = ["LockstepBroker"]

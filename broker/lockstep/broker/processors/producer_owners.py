"""Which user a producer id belongs to: the ids are no secret, since every record of a frame shows its own to who reads it.

In memory only. After a start of the broker, or after OWNERS_MAX other producers, an id belongs to the first user who sends under it.
"""

from collections import OrderedDict

from lockstep.broker.tables.sequence_table import SCOPE_COUNT_MAX
from lockstep.protocol.errors import NoPermissionError

OWNERS_MAX = SCOPE_COUNT_MAX


class ProducerOwners:
    """Producer id → user, the one that has been silent for longest first."""

    def __init__(self, owners_max: int = OWNERS_MAX) -> None:
        self._owners_max = owners_max
        self._users: OrderedDict[str, str] = OrderedDict()

    def check(self, producer_id: str, user: str) -> None:
        """Note that a user sends under a producer id. Raise NoPermissionError if it is another user's."""
        owner = self._users.setdefault(producer_id, user)
        if owner != user:
            raise NoPermissionError(f"producer id {producer_id} is in use by another user: give the producer an id of its own")
        self._users.move_to_end(producer_id)
        if len(self._users) > self._owners_max:
            self._users.popitem(last=False)

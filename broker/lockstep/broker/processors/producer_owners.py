"""Which user a producer id belongs to: the ids are no secret, since every record of a frame shows its own to who reads it.

In memory only. After a start of the broker, or after OWNERS_MAX other producers, an id belongs to the first user who sends under it. When
there are more, the user with the most ids loses the one that has been silent for longest, so that nobody drives out the ids of others.
"""

from collections import OrderedDict

from lockstep.broker.processors.user_quotas import UserQuotas
from lockstep.broker.tables.sequence_table import SCOPE_COUNT_MAX
from lockstep.protocol.errors import NoPermissionError

OWNERS_MAX = SCOPE_COUNT_MAX
NO_IDS: OrderedDict[str, int] = OrderedDict()
SILENT_MS = 3_600_000
"""An id under which nothing was sent for this long makes way for a new one of its user, who has as many as allowed."""


class ProducerOwners:
    """User → its producer ids, each with the time of its last send (ms), the longest silent first."""

    def __init__(self, quotas: UserQuotas, owners_max: int = OWNERS_MAX) -> None:
        self._quotas = quotas
        self._owners_max = owners_max
        self._users: dict[str, str] = {}
        """Producer id → user."""
        self._ids: dict[str, OrderedDict[str, int]] = {}

    def check(self, producer_id: str, user: str, now_ms: int) -> None:
        """Note that a user sends under a producer id. Raise NoPermissionError if it is another user's, or one too many."""
        owner = self._users.get(producer_id)
        if owner is None:
            self._add(producer_id, user, now_ms)
        elif owner != user:
            raise NoPermissionError(f"producer id {producer_id} is in use by another user: give the producer an id of its own")
        mine = self._ids[user]
        mine[producer_id] = now_ms
        mine.move_to_end(producer_id)

    def _add(self, producer_id: str, user: str, now_ms: int) -> None:
        mine, limit = self._ids.get(user, NO_IDS), self._quotas.limits_of(user).producer_ids
        while limit is not None and len(mine) >= limit and now_ms - next(iter(mine.values())) > SILENT_MS:
            self._forget_oldest(user)
        self._quotas.check_producer_ids(user, len(mine))
        self._users[producer_id] = user
        self._ids.setdefault(user, OrderedDict())[producer_id] = now_ms
        if len(self._users) > self._owners_max:
            self._forget_oldest(max(self._ids, key=lambda each: len(self._ids[each])))

    def _forget_oldest(self, user: str) -> None:
        producer_id, _ = self._ids[user].popitem(last=False)
        del self._users[producer_id]
        if not self._ids[user]:
            del self._ids[user]

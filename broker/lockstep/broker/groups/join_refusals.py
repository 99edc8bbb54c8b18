"""The clients that were not admitted to a group, so that an operator can be told why a member does not consume."""

from collections import deque

from lockstep.protocol.bodies import JoinRefusal
from lockstep.protocol.messages.properties import one_line_reason

KEPT_MAX = 8
"""Refusals that are kept of each group."""


class JoinRefusals:
    """Group → its last refusals, in memory only, for groups that have members."""

    def __init__(self) -> None:
        self._groups: dict[str, deque[tuple[int, str, str]]] = {}

    def record(self, group: str, client_id: str, remark: str, now_ms: int) -> None:
        """Keep that a client was refused, in place of an earlier refusal of the same client."""
        kept = self._groups.setdefault(group, deque(maxlen=KEPT_MAX))
        for each in [each for each in kept if each[1] == client_id]:
            kept.remove(each)
        kept.append((now_ms, client_id, one_line_reason(remark)))

    def forget_client(self, group: str, client_id: str) -> None:
        """Forget the refusal of a client that has been admitted."""
        if (kept := self._groups.get(group)) is not None:
            for each in [each for each in kept if each[1] == client_id]:
                kept.remove(each)
            if not kept:
                del self._groups[group]

    def drop_group(self, group: str) -> None:
        self._groups.pop(group, None)

    def of(self, group: str, now_ms: int) -> tuple[JoinRefusal, ...]:
        """Return the group's refusals, the newest last."""
        return tuple(JoinRefusal(client_id, max(0, now_ms - at_ms), remark) for at_ms, client_id, remark in self._groups.get(group, ()))

"""Topics to which no client may write for the moment, because an operator moves their queues (ordering.md 9.6). Pure, and not durable.

A hold has a lease: it ends by itself if the command that moves the queues dies.
"""

from lockstep.protocol.errors import NoPermissionError

LEASE_MS_MAX = 60_000
HOLDS_MAX = 1_024


class WriteHolds:
    """Topic → (id of the hold, end of its lease). All times are boot times in ms."""

    __slots__ = ("_holds",)

    def __init__(self) -> None:
        self._holds: dict[str, tuple[str, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._holds)

    def hold(self, topic: str, hold_id: str, lease_ms: int, now_ms: int) -> bool:
        """Begin or renew a hold. Return whether it begins now: if it was begun before, clients may have written to the topic meanwhile.

        Raises NoPermissionError if another hold of the topic is in force, or if there are too many.
        """
        begins = not self.in_force(topic, hold_id, now_ms)
        if begins and topic in self._holds and self._holds[topic][1] > now_ms:
            left_ms = self._holds[topic][1] - now_ms
            raise NoPermissionError(f"the queues of topic {topic} are being moved by another command; try again in {left_ms} ms")
        if begins and len(self._holds) >= HOLDS_MAX:
            self._holds = {name: held for name, held in self._holds.items() if held[1] > now_ms}
            if len(self._holds) >= HOLDS_MAX:
                raise NoPermissionError(f"the queues of {HOLDS_MAX} topics are being moved, the maximum; try again later")
        self._holds[topic] = hold_id, now_ms + min(lease_ms, LEASE_MS_MAX)
        return begins

    def release(self, topic: str, hold_id: str) -> None:
        """End the hold, if it is this one."""
        held = self._holds.get(topic)
        if held is not None and held[0] == hold_id:
            del self._holds[topic]

    def in_force(self, topic: str, hold_id: str, now_ms: int) -> bool:
        held = self._holds.get(topic)
        return held is not None and held[0] == hold_id and held[1] > now_ms

    def holds(self, topic: str, now_ms: int) -> bool:
        """Return whether writes to the topic are held. A hold whose lease is over is forgotten."""
        held = self._holds.get(topic)
        if held is None:
            return False
        if held[1] <= now_ms:
            del self._holds[topic]
            return False
        return True

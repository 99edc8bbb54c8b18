"""Which replicas have to have what is confirmed. Pure: time and positions are passed in.

           connected, nearly at the end           has what was written then, and the set with it is stored
    known ──────────────────────────────▶ counted ──────────────────────────────────────────────────────▶ in the set
      ▲                                      │ lost, stuck, in trouble                                       │ the same, or silent,
      └──────────────────────────────────────┴───────────────────────────────────────────────────────────────┘ and the set without is stored

Counted, in the set or not: everything that is confirmed waits for it. So whoever is in the stored set has all that was ever confirmed: a
member counts before the set with it is stored, and until the set without it is. Kafka: the in-sync replicas, KIP-966.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

LOST_MS = 300
"""How long the connection of a member may be lost before it leaves the set: no confirmation waits longer for a replica that ended."""
SILENT_MS = 1_000
"""How long a member with a connection may say nothing. It is asked at least every BEAT_MS."""
STUCK_MS = 3 * SILENT_MS
"""How long a member may store nothing of what it lacks, or hear no frame of those that it lacks.

Longer than SILENT_MS: a sync behind other writes may take a second or two.
"""
BEAT_MS = 250
JOIN_BYTES = 1 << 20
"""A replica is counted when no more than this is missing: confirmations wait for the rest."""
REJOIN_MS = 10_000
"""How long a member that was silent, stuck or in trouble stays out of the set at least: a slow one must not stall every other second."""


@dataclass(slots=True)
class Lag:
    """What a replica has, and what it was asked for when it told that."""

    has: int = 0
    asked: int = 0
    moved_ms: int = 0
    """When it last told that it has more than before, or all that it was asked for."""

    def tell(self, has: int, asked: int, now_ms: int) -> None:
        if has > self.has or has >= self.asked:
            self.moved_ms = now_ms
        self.has, self.asked = has, asked

    def is_stuck(self, now_ms: int) -> bool:
        return self.has < self.asked and now_ms - self.moved_ms >= STUCK_MS


@dataclass(slots=True)
class Replica:
    """What the master knows of one replica."""

    member: str
    address: str
    log: Lag = field(default_factory=Lag)
    """Up to where it keeps the log, by its own flush, and where the master's ended."""
    frames: Lag = field(default_factory=Lag)
    """The last frame of the master that it has heard, and the master's last one; 0 if nothing waits for frames."""
    synced: int = 0
    applied: int = 0
    connected: bool = False
    heard_ms: int = 0
    """When it told something last, or when the connection was lost over which it did."""
    has_told: bool = False
    """Whether it has told something since its connection was last lost."""
    trouble: str = ""
    """Why it can't follow now."""
    left_because: str = ""
    """Why it left the set last, or is about to."""
    target: int | None = None
    """Where the log ended when the replica was counted; None while it is not counted and not in the set."""
    not_before_ms: int = 0

    def stuck(self, now_ms: int) -> str:
        """Return what it does not do although it is asked to; empty if it is not stuck."""
        if self.log.is_stuck(now_ms):
            return f"it has stored nothing of what it lacks for {STUCK_MS} ms"
        return f"it has heard nothing of this master for {STUCK_MS} ms" if self.frames.is_stuck(now_ms) else ""


class ReplicaSet:
    """The replicas of a master. Store the set that `begin_storing` returns, and call `set_stored` then."""

    def __init__(self, members: Mapping[str, str], now_ms: int) -> None:
        """`members`: member id → address, the stored set without the master."""
        self.replicas = {member: Replica(member, address, heard_ms=now_ms, target=0) for member, address in members.items()}
        self.members = frozenset(members)
        """The stored set."""
        self._storing: dict[str, str] | None = None
        """The set that is being stored: its members count, and may be in the stored set already."""
        self._removing: set[str] = set()
        """Members that leave the set, or left it while it was being stored with them."""
        self._ticked_ms = now_ms

    # ------------------------------------------------------------------------------------------------------------ positions

    def stored(self) -> int | None:
        """Return up to where every counted replica keeps the log. None if none is counted."""
        return min((replica.log.has for replica in self.counted), default=None)

    def synced(self) -> int | None:
        """The same for what is on their disks."""
        return min((replica.synced for replica in self.counted), default=None)

    def heard(self) -> int | None:
        """Return the last frame that every counted replica has heard. None if none is counted."""
        return min((replica.frames.has for replica in self.counted), default=None)

    @property
    def counted(self) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.target is not None]

    # ------------------------------------------------------------------------------------------------------------ what happens

    def connected(self, member: str, address: str, now_ms: int) -> None:
        """A replica follows. Its positions come with its first `progress`."""
        replica = self.replicas.setdefault(member, Replica(member, address))
        replica.address, replica.connected = address, True
        if replica.target is None:
            replica.heard_ms = now_ms

    def progress(
        self,
        member: str,
        stored: int,
        synced: int,
        applied: int,
        written: int,
        now_ms: int,
        trouble: str = "",
        frame: int = 0,
        last_frame: int = 0,
    ) -> None:
        """A replica tells what it has. `written` is the end of the master's log, `frame` the last one that it has heard, if known.

        `last_frame`: the master's last one; 0 if nothing waits for frames.
        """
        replica = self.replicas[member]
        replica.log.tell(stored, written, now_ms)
        replica.frames.tell(max(replica.frames.has, frame), last_frame, now_ms)
        replica.synced, replica.applied, replica.heard_ms, replica.trouble, replica.has_told = synced, applied, now_ms, trouble, True
        if trouble:
            self._leaves(replica, now_ms, trouble, again_in_ms=REJOIN_MS)
        elif replica.target is None and stored >= written - JOIN_BYTES and now_ms >= replica.not_before_ms and not replica.stuck(now_ms):
            replica.target = written

    def disconnected(self, member: str, now_ms: int) -> None:
        replica = self.replicas[member]
        if replica.has_told:
            replica.heard_ms = now_ms
        replica.connected = replica.has_told = False
        if not self._is_member(member):
            replica.target = None

    def tick(self, now_ms: int) -> None:
        """Let members go that are lost, silent or stuck. A pause of this process is not a silence of theirs."""
        paused_ms = now_ms - self._ticked_ms - BEAT_MS
        self._ticked_ms = now_ms
        for replica in self.counted:
            if paused_ms > 0:
                replica.heard_ms = min(now_ms, replica.heard_ms + paused_ms)
                for lag in (replica.log, replica.frames):
                    lag.moved_ms = min(now_ms, lag.moved_ms + paused_ms)
            silent_ms = now_ms - replica.heard_ms
            if replica.connected and silent_ms >= SILENT_MS:
                self._leaves(replica, now_ms, f"it has told nothing for {silent_ms} ms", again_in_ms=REJOIN_MS)
            elif stuck := replica.stuck(now_ms):
                self._leaves(replica, now_ms, stuck, again_in_ms=REJOIN_MS)
            elif not replica.connected and silent_ms >= LOST_MS:
                self._leaves(replica, now_ms, f"its connection was lost {silent_ms} ms ago")

    def forget(self, member: str, now_ms: int) -> bool:
        """Remove a replica that will not come back. Return whether it was known."""
        replica = self.replicas.get(member)
        if replica is None:
            return False
        self._leaves(replica, now_ms, "it was forgotten")
        if not self._is_member(member):
            del self.replicas[member]
        return True

    def _is_member(self, member: str) -> bool:
        """Return whether the replica is in the stored set, or may be by now."""
        return member in self.members or (self._storing is not None and member in self._storing)

    def _leaves(self, replica: Replica, now_ms: int, reason: str, again_in_ms: int = 0) -> None:
        if replica.member not in self._removing:
            replica.left_because = reason
        replica.not_before_ms = max(replica.not_before_ms, now_ms + again_in_ms)
        if self._is_member(replica.member):
            self._removing.add(replica.member)
        else:
            replica.target = None

    # ------------------------------------------------------------------------------------------------------------ the set

    def begin_storing(self) -> dict[str, str] | None:
        """Return the set to be stored now, member id → address. None if the stored one is right, or one is being stored."""
        if self._storing is None:
            self._storing = self._wanted()
            return self._storing
        return None

    def _wanted(self) -> dict[str, str] | None:
        joined = {
            replica.member
            for replica in self.counted
            if replica.member not in self.members and replica.target is not None and replica.log.has >= replica.target
        }
        wanted = (self.members | joined) - self._removing
        return None if wanted == self.members else {member: self.replicas[member].address for member in sorted(wanted)}

    def set_stored(self) -> None:
        """The set is stored: who is not in it is not waited for any more."""
        assert self._storing is not None
        left = self.members - self._storing.keys()
        self.members, self._storing = frozenset(self._storing), None
        self._removing -= left
        for member in left:
            self.replicas[member].target = None

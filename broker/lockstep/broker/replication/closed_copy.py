"""The files of a replica while its store is closed: they are cut, mended or made anew until they are those of a whole copy.

The caller holds the lock of the directory, and nobody reads the store meanwhile.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from lockstep.broker.config import BrokerConfig
from lockstep.broker.replication.copy_identity import CopyIdentity, Role, new_member
from lockstep.broker.replication.cutting import cut_log
from lockstep.broker.replication.following import present
from lockstep.broker.replication.installing import Install, remove_store
from lockstep.broker.replication.log_parting import PartingAction
from lockstep.broker.replication.refetching import broken_files, refetch
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.start.directory import StoreDirectory, parse_identity
from lockstep.protocol.errors import LockstepError, StoreError, without_frames
from lockstep.protocol.headers.replication import ReplicaFollowHeader, ReplicaFollowReply
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.client_security import ClientSecurity

log = get_logger("broker")

MENDED_TIMES = 2
"""The same damage is mended so often at once: by another file of the log, then by another copy of everything."""
SAME_DAMAGE_PAUSE_S = 30


class RottenLogError(StoreCorruptError):
    """A scrub has found damage at `positions` of the log."""

    def __init__(self, text: str, positions: AbstractSet[int]) -> None:
        super().__init__(text, position=min(positions))
        self.positions = frozenset(positions)


@dataclass(frozen=True, slots=True)
class CopyDamage:
    """Why a copy can't be used as it is."""

    position: int
    """Where in the log, -1 outside of it."""
    positions: frozenset[int]
    """All places that were found."""
    what: str
    times: int
    """How often it was found. It is mended after each time."""

    @property
    def may_be_of_a_file(self) -> bool:
        """Return whether to replace one file of the log. Otherwise the copy is begun anew."""
        return self.position >= 0 and self.times == 1


class ClosedCopy:
    """Makes the files of one replica those of a whole copy."""

    def __init__(
        self,
        host: Host,
        config: BrokerConfig,
        peers: ClientSecurity,
        master: Callable[[], str | None],
        header: Callable[[], ReplicaFollowHeader],
    ) -> None:
        """`master` returns the address of the master, None if it is not known; `header` that by which the replica presents itself."""
        self._host = host
        self._config = config
        self._peers = peers
        self._master = master
        self._header = header
        self.identity = CopyIdentity("", Role.REPLICA)
        """What the store is, as it is stored, or will be by the next write."""
        self.is_blank = False
        """Whether the store has never had a log."""
        self.damage: CopyDamage | None = None
        self.replaced: set[int] = set()
        """Where damage was found that has been replaced by what the master has since."""

    async def note_damage(self, error: StoreCorruptError) -> None:
        """Let the next `prepare` mend it, after a pause if it was mended twice already: then the master has the same."""
        before, position = self.damage, error.position
        times = before.times + 1 if before is not None and before.position == position else 1
        positions = error.positions if isinstance(error, RottenLogError) else frozenset({position})
        self.damage = CopyDamage(position, positions, str(error), times)
        self.replaced |= positions
        log_limited(log, "error", "replica.damaged", position=position, error=str(error), then="its master is asked for what is damaged")
        if times > MENDED_TIMES:
            await asyncio.sleep(SAME_DAMAGE_PAUSE_S)

    async def change_as_told(self, directory: StoreDirectory, reply: ReplicaFollowReply) -> None:
        """Change the store as its master has said."""
        if reply.action == PartingAction.TRUNCATE:
            self._become_another()
            await self._cut(directory, reply.keep)
        else:
            await self._begin_anew(directory, "the master does not have the log that this one goes on from")

    async def prepare(self, directory: StoreDirectory) -> bool:
        """Make the files of the store those of a whole copy. Return whether they are; otherwise it has to be tried again."""
        damage = self.damage
        # Both are the master's, and no start may make others.
        is_new = self.identity.installing or any(directory.read(f"{directory.own}/{name}") is None for name in ("identity", "proof"))
        if self.identity.cut_to is not None and not is_new and damage is None:
            await self._cut(directory, self.identity.cut_to)
        if not is_new and damage is None:
            return True
        if (master := self._master()) is None:
            return False
        try:
            endpoint = await connect(self._host, master, security=self._peers)
            try:
                # Without terms: everything else than an installation is decided when the log can be read.
                header = replace(self._header(), store_id="", end=0, confirmed=0)
                log_start = (await present(endpoint, header, ())).keep
                if is_new or damage is None or not damage.may_be_of_a_file:
                    await self._install(directory, endpoint, log_start)
                else:
                    await self._repair(directory, endpoint, log_start, damage.positions)
            finally:
                endpoint.close("the store of the replica is ready")
        except (LockstepError, TimeoutError) as error:
            if isinstance(error, StoreError):
                raise
            facts = {"master": master, "error": str(without_frames(error)), "then": "it is tried again"}
            log_limited(log, "warning", "replica.not_ready", **facts)
            return False
        return not self.identity.installing

    async def _install(self, directory: StoreDirectory, endpoint: Endpoint, log_start: int) -> None:
        self.is_blank = False
        await self._begin_anew(directory, "")
        config = self._config
        await Install(self._host, directory, config.store_config(), config.identity(), endpoint).run(self.identity, log_start)
        self.identity = replace(self.identity, installing=False)

    async def _repair(self, directory: StoreDirectory, endpoint: Endpoint, log_start: int, damaged: AbstractSet[int]) -> None:
        """Replace damaged files by the master's, below what is known to be confirmed; cut the rest."""
        text = directory.read(f"{directory.own}/identity")
        assert text is not None
        identity, confirmed = parse_identity(text, f"{directory.own}/identity"), self.identity.confirmed
        starts = set(await self._host.threads.run(broken_files, self._host.files, directory, identity, confirmed))
        starts |= {position - position % identity.segment_bytes for position in damaged if position < confirmed}
        if not confirmed or any(start < log_start for start in starts):
            await self._begin_anew(directory, "what is damaged can't be replaced by a part of the master's log")
            return
        self._become_another()  # the master may have confirmed more than this copy knows of
        await self._cut(directory, confirmed)
        await refetch(self._host, directory, identity, sorted(starts), confirmed, endpoint)

    def _become_another(self) -> None:
        """Take another member id, which the next write of lockstep/replica stores: this copy will lack what it may have acknowledged."""
        known = self.identity
        was = [*known.was, known.member]
        self.identity = replace(known, member=new_member(self._host.random), forgot=True, in_set=False, was=was)

    async def _begin_anew(self, directory: StoreDirectory, why: str) -> None:
        if why:
            log_limited(log, "warning", "replica.begins_anew", master=self._master(), why=why)
        if not self.identity.installing:  # else it has acknowledged nothing under its id
            self._become_another()
        await remove_store(self._host, directory, self.identity)
        self.identity = replace(self.identity, installing=True, cut_to=None, complete=False, confirmed=0)

    async def _cut(self, directory: StoreDirectory, position: int) -> None:
        files, config = self._host.files, self._config.store_config()
        self.identity = await self._host.threads.run(cut_log, files, directory, config, self.identity, position)

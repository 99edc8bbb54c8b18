"""Makes a new copy of a store: its small files, then its whole log. The ordinary start that follows reads them as those of its own.

`lockstep/replica` says `installing` from before the first file until the log holds what the snapshot needs and all that was written when
the copy began. A store that still says so at a start is removed, when a master has answered: half a copy could pass for a whole one.
"""

from dataclasses import replace

from lockstep.broker.replication.copy_identity import CopyIdentity, save_copy_identity
from lockstep.broker.replication.following import DISK_ANSWER_MS, bytes_at
from lockstep.broker.replication.serving import FETCH_BYTES_MAX
from lockstep.broker.store import StoreConfig
from lockstep.broker.store.config import Identity
from lockstep.broker.store.errors import StoreDiskError
from lockstep.broker.store.health.disk import DiskWatch
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.start.directory import StoreDirectory, parse_identity
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import RemoteProtocolError, ServiceNotAvailableError
from lockstep.protocol.fields import from_plain, to_plain
from lockstep.protocol.headers.replication import ReplicaFileHeader, ReplicaFileReply
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger

log = get_logger("broker")

PROGRESS_MS = 5_000


class Install:
    """One copy of the store of a master, over one connection on which this replica follows."""

    def __init__(self, host: Host, directory: StoreDirectory, config: StoreConfig, wanted: Identity, endpoint: Endpoint) -> None:
        """`directory` is locked and has nothing of a store but `lockstep/replica`."""
        self._host = host
        self._directory = directory
        self._config = config
        self._wanted = wanted
        self._endpoint = endpoint

    async def run(self, copy_identity: CopyIdentity, log_start: int) -> None:
        """Copy everything. Raises TransportError, RemoteProtocolError and StoreDiskError; the copy has to be begun anew then."""
        directory, run = self._directory, self._host.threads.run
        text = await self._file("identity")
        if text is None:
            raise RemoteProtocolError("the master has no file lockstep/identity")
        identity = parse_identity(text[1], "the master's lockstep/identity")
        await run(lambda: directory.establish(identity, fresh=True))
        await run(directory.mark_open)  # so that the next start does not take the missing consume queues for whole ones
        for name in ("proof", "damage", "snapshot"):
            found = await self._file(name)
            if found is not None:
                await run(directory.replace, f"{directory.own}/{found[0]}", found[1])
        snapshot = max(directory.snapshot_positions(), default=log_start)
        await run(directory.save_start, log_start)
        log_ = CommitLog(
            self._host.files, directory.log, identity.segment_bytes, self._config.tail_bytes, directory.presence, directory.next_log_path
        )
        try:
            log_.begin(log_start, clean=True)
            await self._copy_log(log_, snapshot)
            await run(self._sync, log_)
        finally:
            log_.close()
        await run(save_copy_identity, directory, replace(copy_identity, installing=False))
        log.info("replica.installed", log_start=log_start, end=log_.end, snapshot=snapshot)

    def _sync(self, log_: CommitLog) -> None:
        log_.sync_plan().run()
        self._directory.load_synced()
        self._directory.save_synced(log_.written)

    async def _copy_log(self, log_: CommitLog, snapshot: int) -> None:
        """Copy up to where the master's log ended when the copy began, and at least to the snapshot."""
        clock, until, logged_ms, disk = self._host.clock, None, self._host.clock.monotonic_ms(), DiskWatch(self._config, self._host.files)
        while until is None or log_.end < until:
            reply, data = await bytes_at(self._endpoint, log_.end, FETCH_BYTES_MAX)
            until = max(snapshot, reply.written) if until is None else until
            if not data and log_.end < until:
                raise RemoteProtocolError(f"the master's log ends at {reply.written}, its snapshot is of {snapshot}")
            try:
                disk.check_copy(len(data), clock.monotonic_ms())
            except ServiceNotAvailableError as error:
                raise StoreDiskError(f"the copy of the master's log needs {until - log_.end} bytes more: {error.remark}") from error
            log_.receive(log_.end, data)
            await self._host.threads.run(log_.write)
            log_.trim()
            if clock.monotonic_ms() - logged_ms >= PROGRESS_MS:
                logged_ms = clock.monotonic_ms()
                log.info("replica.installing", copied_to=log_.end, of=until)

    async def _file(self, name: str) -> tuple[str, bytes] | None:
        """Return (name, content) of a small file of the master; None if it has none."""
        found, data = "", bytearray()
        while True:
            header = ReplicaFileHeader(found or name, len(data), FETCH_BYTES_MAX)
            response = checked(await self._endpoint.request(RequestCode.REPLICA_FILE, to_plain(header), timeout_ms=DISK_ANSWER_MS))
            reply = from_plain(ReplicaFileReply, response.fields)
            if not reply.name and not found:
                return None
            found = reply.name or found
            data += response.body
            if len(data) >= reply.size:
                return found, bytes(data)
            if not response.body:
                raise RemoteProtocolError(f"the master has removed its file {found} meanwhile")


async def remove_store(host: Host, directory: StoreDirectory, copy_identity: CopyIdentity) -> None:
    """Remove everything of a store but the lock, `lockstep/replica`, which says `installing` from here on, and the boot of this start.

    Without that, a power cut would not show that the new copy may lack what it has acknowledged.
    """
    await host.threads.run(save_copy_identity, directory, replace(copy_identity, installing=True, cut_to=None, complete=False, confirmed=0))
    await host.threads.run(directory.remove_all_but, "replica", "boot")

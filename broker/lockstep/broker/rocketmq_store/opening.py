"""Opens the store of a broker, after a look at whether another broker has written to its directory (foreign_store.py has the table)."""

from collections.abc import Collection
from dataclasses import dataclass

from lockstep.broker.replication.copy_identity import has_copies
from lockstep.broker.rocketmq_store.errors import AdoptionError
from lockstep.broker.rocketmq_store.foreign_config import known_content, save_known
from lockstep.broker.rocketmq_store.foreign_store import (
    ForeignStore,
    check_unfinished,
    foreign_reason,
    present_content,
    read_foreign,
    refusal,
    start_of,
)
from lockstep.broker.store import Identity, Store, StoreConfig, StoreDiskError
from lockstep.broker.store.start.directory import StoreDirectory, locked_directory
from lockstep.broker.store.start.recovery import RecoveryProgress
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger

log = get_logger("broker")


@dataclass(slots=True)
class OpenedStore:
    """A store, and what another broker has left in its directory."""

    store: Store
    foreign: ForeignStore | None
    """What this start takes over, until `mark_adopted`. None if no other broker has written to the directory."""
    directory: StoreDirectory
    _host: Host

    async def mark_adopted(self) -> None:
        """Record, durably, that the log has what another broker has left, and that the store goes on from there. Raises StoreDiskError.

        A start without anything to take over records what config/*.json have now. Call `Store.sync` before, and Store.mark_boot after.
        """
        try:
            await self._host.threads.run(self._save_adopted)
        except OSError as error:
            raise StoreDiskError(f"store {self.directory.root}: that it was taken over can't be stored: {error}") from error
        self.foreign = None

    def _save_adopted(self) -> None:
        directory = self.directory
        known = known_content(directory)
        if self.foreign is None and known is not None and not known.exported:
            return
        save_known(directory, present_content(directory))
        if self.foreign is not None:
            directory.clear_abort()


async def open_store(
    config: StoreConfig, host: Host, identity: Identity, *, adopt: bool = False, without: Collection[str] = (), new_store_id: str = ""
) -> OpenedStore:
    """Lock the directory, and open the store in it. A missing directory becomes a new store.

    `adopt`: take over what another broker has written; otherwise that raises AdoptionError. `without`: the kinds of unfinished work that
    may be left behind. `new_store_id`: of a store that is made; drawn if it is empty.
    Nothing is changed before a refusal. Raises the errors of Store.open too.
    """
    files = host.files
    with locked_directory(files, config.path) as directory:
        if (reason := foreign_reason(files, directory)) is not None and not adopt:
            raise refusal(config.path, reason)
        if reason is not None and has_copies(directory):
            raise AdoptionError(
                f"store {config.path} has replicas, and another broker has written to it: its log is not theirs any more. Promote one of "
                "them and copy its log anew, or forget them before (lockstep replica forget)"
            )
        begins = start_of(files, directory, foreign=reason is not None)
        survey = directory.survey(identity, config, new_store_id or host.random.token(16).hex(), begins)
        foreign = None
        if reason is not None:
            progress = RecoveryProgress(host.clock)
            foreign = await read_foreign(files, directory, survey.identity, survey.log, progress.at, own=not survey.is_new)
            check_unfinished(config.path, foreign.unfinished, without)
        store = Store.open_surveyed(config, host, directory, survey, None if foreign is None else foreign.log.end)
        return OpenedStore(store, foreign, directory, host)

"""Cuts the end of a closed log that its master does not have. Each step is durable before the next one."""

from dataclasses import replace

from lockstep.broker.replication.copy_identity import CopyIdentity, save_copy_identity
from lockstep.broker.store import StoreConfig
from lockstep.broker.store.errors import StoreCorruptError
from lockstep.broker.store.log.commit_log import CommitLog
from lockstep.broker.store.start.directory import SNAPSHOT_PREFIX, StoreDirectory, parse_identity
from lockstep.broker.store.start.survey import log_files
from lockstep.runtime.files import Files
from lockstep.runtime.logs.log import get_logger

log = get_logger("broker")


def cut_log(files: Files, directory: StoreDirectory, config: StoreConfig, copy_identity: CopyIdentity, position: int) -> CopyIdentity:
    """End the log of a locked, closed store at `position`. Return the identity that is stored then. For a worker thread.

    A start that finds `cut_to` in lockstep/replica calls it again. Consume queues are cut by the start that follows: the store counts as
    not closed in order. Files that are missing or short below it are left so.
    """
    save_copy_identity(directory, replace(copy_identity, cut_to=position, complete=False, confirmed=min(copy_identity.confirmed, position)))
    path = f"{directory.own}/identity"
    if (text := directory.read(path)) is None:
        raise StoreCorruptError(f"{path} is missing: remove the store's directory and start a new replica")
    identity = parse_identity(text, path)
    directory.mark_open()
    for above in [at for at in directory.snapshot_positions() if at > position]:
        files.unlink(f"{directory.own}/{SNAPSHOT_PREFIX}{above:020d}")
    files.sync_directory(directory.own)
    if directory.load_synced() > position:
        directory.save_synced(position)
    survey = directory.survey_log(identity, log_files(files, directory.log), directory.read_start(), cut_corrupt=True)
    log_ = CommitLog(files, directory.log, identity.segment_bytes, config.tail_bytes, directory.presence, directory.next_log_path)
    try:
        log_.load(survey)
        end = log_.files_end
        log_.begin(position, clean=False)
    finally:
        log_.close()
    log.warning("replica.truncated", position=position, files_end=end, why="its master does not have what followed")
    kept = replace(copy_identity, cut_to=None, complete=False, confirmed=min(copy_identity.confirmed, position))
    save_copy_identity(directory, kept)
    return kept

"""Replaces damaged files of a replica's closed log by what its master has.

Copies are equal below what was confirmed, and only that is fetched: what this replica has above is cut first, and comes again when it
follows. A file is never mended in place (ADR 15): the new one is written beside it, synced, and renamed over it.
"""

from lockstep.broker.replication.following import bytes_at
from lockstep.broker.replication.serving import FETCH_BYTES_MAX
from lockstep.broker.store.log.commit_log import COPY, write_all
from lockstep.broker.store.start.directory import StoreDirectory, StoreIdentity
from lockstep.broker.store.start.survey import log_files
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.runtime.connections.endpoint import Endpoint
from lockstep.runtime.files import Files
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger

log = get_logger("broker")


def broken_files(files: Files, directory: StoreDirectory, identity: StoreIdentity, confirmed: int) -> list[int]:
    """Return where files of the log begin that are missing or short below `confirmed`."""
    size = identity.segment_bytes
    sizes = {file.start: file.size for file in log_files(files, directory.log)}
    first = directory.read_start() or identity.log_start
    return [start for start in range(first, confirmed, size) if sizes.get(start, 0) < size]


async def refetch(
    host: Host, directory: StoreDirectory, identity: StoreIdentity, starts: list[int], confirmed: int, endpoint: Endpoint
) -> None:
    """Replace the files that begin at `starts` up to `confirmed`. The replica has presented itself on the connection.

    Raises TransportError and RemoteProtocolError; the files that were replaced are whole.
    """
    run = host.threads.run
    for start in starts:
        end = min(start + identity.segment_bytes, confirmed)
        path = f"{directory.log}/{start:020d}"
        file = await run(lambda path=path: host.files.open(path + COPY, create=True))
        try:
            await run(file.truncate, 0)
            await run(file.truncate, identity.segment_bytes)
            at = start
            while at < end:
                reply, data = await bytes_at(endpoint, at, min(FETCH_BYTES_MAX, end - at))
                if not data:
                    raise RemoteProtocolError(f"the master's log ends at {reply.written}, and was confirmed up to {end}")
                await run(write_all, file, data, at - start)
                at += len(data)
            await run(file.sync)
        finally:
            file.close()
        await run(host.files.rename, path + COPY, path)
        await run(host.files.sync_directory, directory.log)
        log.warning("replica.refetched", file=path, begin=start, end=end, why="it was damaged here")

"""Print the progress of a load, counted by the brokers: Spark reports nothing about a Python sink before it ends."""

from lockstep.protocol.errors import LockstepError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.host import Host
from lockstep.spark.cluster import CachedCluster, Cluster
from lockstep.spark.job import print_status
from lockstep.spark.load.load_rows import Manifest

STOP_CHECK_MS = 250
"""The thread stops within this time."""
PRINT_EVERY_MS = 1_000
TIMEOUT_MS = 1_000


class LoadProgress:
    """A daemon thread with a connection of its own. A broker that does not respond only delays a line."""

    def __init__(self, nameserver: str, manifest: Manifest, host: Host) -> None:
        self._nameserver = ClusterAddress.parse(nameserver)
        self._manifest = manifest
        self._host = host
        self._ended = False
        self._base = sum(offset for queues in manifest.start_offsets.values() for offset in queues.values())

    def start(self) -> None:
        self._host.threads.start_daemon(self._watch, "load progress")

    def stop(self) -> None:
        self._ended = True

    def _watch(self) -> None:
        cached, clock = CachedCluster(self._nameserver, TIMEOUT_MS), self._host.clock
        counted: tuple[int, int] | None = None
        """Time and count of the last printed line. The first count includes the rows of an earlier start of the run."""
        while not self._ended:
            now_ms, line = clock.monotonic_ms(), None
            try:
                accepted = cached.run(self._accepted)
            except LockstepError as error:
                line = f"  no count: {error}"
            else:
                if counted is None:
                    counted = now_ms, accepted
                elif accepted:
                    rate = (accepted - counted[1]) * 1_000 / max(1, now_ms - counted[0])
                    line = f"  {accepted:>12,} of {self._manifest.rows:,} accepted  {rate:>10,.0f}/s"
                    counted = now_ms, accepted
            if line is not None and not self._ended:
                print_status(line)
            while not self._ended:
                cached.pause(STOP_CHECK_MS)
                if clock.monotonic_ms() - now_ms >= PRINT_EVERY_MS:
                    break
        cached.close()

    async def _accepted(self, cluster: Cluster) -> int:
        bounds = await cluster.bounds([await cluster.cached_layout(self._manifest.topic)])
        return sum(high for _, high in bounds.values()) - self._base

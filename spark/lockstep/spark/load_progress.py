"""How far a load is, by what the brokers have accepted: Spark says nothing of a Python sink before it ends."""

from lockstep.client.config import nameserver_addresses
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.host import Host
from lockstep.spark.cluster import CachedCluster, Cluster
from lockstep.spark.job import say
from lockstep.spark.load_rows import Manifest

LOOK_MS = 250
"""How soon the thread notices that it is to end."""
TELL_MS = 1_000
"""From one line to the next."""
TIMEOUT_MS = 1_000


class Progress:
    """A daemon thread with a connection of its own; a broker that does not answer makes a line late, nothing else."""

    def __init__(self, nameserver: str, manifest: Manifest, host: Host) -> None:
        self._nameserver = nameserver_addresses(nameserver)
        self._manifest = manifest
        self._host = host
        self._ended = False
        self._base = sum(offset for queues in manifest.start_offsets.values() for offset in queues.values())

    def start(self) -> None:
        self._host.threads.start_daemon(self._watch, "load progress")

    def stop(self) -> None:
        self._ended = True

    def _watch(self) -> None:
        kept, clock = CachedCluster(self._nameserver, TIMEOUT_MS), self._host.clock
        counted: tuple[int, int] | None = None
        """When and what, the last time that it was told. The first count is what stood there: of an earlier start of the run too."""
        while not self._ended:
            now_ms, line = clock.monotonic_ms(), None
            try:
                accepted = kept.ask(self._accepted)
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
                say(line)
            while not self._ended:
                kept.pause(LOOK_MS)
                if clock.monotonic_ms() - now_ms >= TELL_MS:
                    break
        kept.close()

    async def _accepted(self, cluster: Cluster) -> int:
        bounds = await cluster.bounds([await cluster.known(self._manifest.topic)])
        return sum(high for _, high in bounds.values()) - self._base

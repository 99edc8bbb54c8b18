"""How far a load is, by what the brokers have accepted: Spark says nothing of a Python sink before it ends."""

from lockstep.client.config import nameserver_addresses
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.host import Host
from lockstep.spark.cluster import Cluster, Kept
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
        kept, clock = Kept(self._nameserver, TIMEOUT_MS), self._host.clock
        told_ms = looked_ms = clock.monotonic_ms()
        told = 0
        while not self._ended:
            kept.pause(LOOK_MS)
            now_ms = clock.monotonic_ms()
            if now_ms - looked_ms < TELL_MS:
                continue
            looked_ms = now_ms
            try:
                accepted = kept.ask(self._accepted)
            except LockstepError as error:
                say(f"  no count: {error}")
                continue
            if accepted:
                rate = (accepted - told) * 1_000 / (now_ms - told_ms)
                say(f"  {accepted:>12,} of {self._manifest.rows:,} accepted  {rate:>10,.0f}/s")
                told_ms, told = now_ms, accepted
        kept.close()

    async def _accepted(self, cluster: Cluster) -> int:
        bounds = await cluster.bounds([await cluster.known(self._manifest.topic)])
        return sum(high for _, high in bounds.values()) - self._base

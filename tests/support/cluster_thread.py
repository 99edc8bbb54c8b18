"""A cluster on an event loop of its own, in a thread: the loops of a test end before it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from lockstep.cli.standalone import StandaloneCluster
from lockstep.runtime.host import Host
from lockstep.runtime.loop_thread import LoopThread


@contextmanager
def cluster_in_a_thread(store: Path) -> Iterator[str]:
    """Run a nameserver and one broker. Yield the nameserver's address."""

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        cluster = StandaloneCluster(Host.real(), store=str(store), port=0, broker_count=1)
        await cluster.start()
        try:
            yield cluster.nameserver
        finally:
            await cluster.stop()

    thread = LoopThread("cluster", serve)
    thread.start()
    try:
        yield thread.peek(str, "")
    finally:
        thread.close()

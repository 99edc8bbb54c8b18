"""Begin the schedule of a paced load when its tasks run, for all of them at the same time. Each task connects to a port of the driver:

    task → driver   the number of the task, 4 bytes
    driver → task   when the schedule begins, µs since 1970, 8 bytes

The response comes when every task has connected, or WAIT_S after the first one, if the cluster does not run all of them at once. A task
that is repeated later gets the same response at once.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from struct import Struct

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from lockstep.protocol.errors import TransportError

WAIT_S = 60.0
"""From the first task to the start, at the longest."""
TASK_WAIT_S = WAIT_S + 30.0
TASK = Struct(">I")
START = Struct(">q")
COLUMN = "started_us"


class StartLine:
    """The driver's side."""

    def __init__(self, host: str, task_count: int, begin: Callable[[], int]) -> None:
        """`begin` is called once, and returns the start that all tasks get."""
        self.address = (host, 0)
        self._task_count = task_count
        self._begin = begin
        self._tasks: set[int] = set()
        self._start: asyncio.Future[int] | None = None

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["StartLine"]:
        """Listen at `address`, whose port is known from then on."""
        server = await asyncio.start_server(self._serve_task, *self.address)
        self.address = (self.address[0], server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()

    async def _serve_task(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (task,) = TASK.unpack(await reader.readexactly(TASK.size))
            writer.write(START.pack(await self._started(task)))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the task was lost; another attempt connects again
        finally:
            writer.close()

    async def _started(self, task: int) -> int:
        self._tasks.add(task)
        loop = asyncio.get_running_loop()
        if self._start is None:
            self._start = loop.create_future()
            loop.call_later(WAIT_S, self._go)
        if len(self._tasks) >= self._task_count:
            self._go()
        return await asyncio.shield(self._start)

    def _go(self) -> None:
        assert self._start is not None
        if not self._start.done():
            self._start.set_result(self._begin())


def start_column(address: tuple[str, int]) -> Column:
    """Return a column with the start, in µs since 1970. The first row of a task waits for it."""
    return F.udf(partial(started, address), LongType(), useArrow=False).asNondeterministic()(F.spark_partition_id())


@cache
def started(address: tuple[str, int], task: int) -> int:
    """Return the start, in µs since 1970, which is asked for once in a worker. Raise TransportError if the driver does not respond."""
    try:
        with socket.create_connection(address, TASK_WAIT_S) as connection:
            connection.sendall(TASK.pack(task))
            data = b""
            while len(data) < START.size:
                more = connection.recv(START.size - len(data))
                if not more:
                    raise TransportError(f"the driver at {address[0]}:{address[1]} closed the connection before the load began")
                data += more
    except OSError as error:
        raise TransportError(f"the driver at {address[0]}:{address[1]} can't be reached: {error}. Set spark.driver.host") from error
    return int(START.unpack(data)[0])

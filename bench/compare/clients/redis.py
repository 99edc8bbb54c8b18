"""The client program of Redis Streams: redis-py's asyncio client with hiredis."""

from collections.abc import Mapping
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis

from compare.clients.harness import (
    BATCH,
    Counter,
    Job,
    Stamps,
    Work,
    bulk,
    consuming,
    filling,
    in_batches,
    in_tasks,
    one,
    paced,
    receiving,
    run,
)

CONNECTIONS = 16
"""The client has one command at a time on a connection: the tasks share this many. With 64 or 200 they are slower."""
FIELD = b"b"
BLOCK_MS = 5_000

Entries = list[tuple[bytes, dict[bytes, bytes]]]


class RedisStreams:
    def __init__(self, job: Job) -> None:
        self.job = job
        host, _, port = job.address.partition(":")
        pool = BlockingConnectionPool(max_connections=CONNECTIONS, timeout=None, host=host, port=int(port), socket_timeout=None)
        self.redis: Any = Redis(connection_pool=pool)

    async def open(self) -> None:
        await self.redis.ping()

    async def close(self) -> None:
        await self.redis.aclose()
        await self.redis.connection_pool.disconnect()

    async def create(self) -> None:
        """A stream is created by its first entry."""

    async def delete(self) -> None:
        await self.redis.delete(self.job.topic)

    def works(self) -> Mapping[str, Work]:
        return {
            "fill": filling(in_batches(self.send_batch)),
            "one": one(self.send),
            "tasks": bulk(in_tasks(self.send, self.job.body)),
            "pipeline": bulk(in_batches(self.send_batch)),
            "consume_batch": consuming(self.consume_batches),
            "consume_one": consuming(self.consume_each),
            "e2e_send": paced(self.send),
            "e2e_receive": receiving(self.receive),
        }

    async def send(self, index: int, body: bytes) -> None:
        await self.redis.xadd(self.job.topic, {FIELD: body})

    async def send_batch(self, first: int, end: int) -> None:
        topic, fields = self.job.topic, {FIELD: self.job.body}
        pipeline = self.redis.pipeline(transaction=False)
        for _ in range(first, end):
            pipeline.xadd(topic, fields)
        await pipeline.execute()

    async def join(self) -> None:
        await self.redis.xgroup_create(self.job.topic, self.job.group, id="0", mkstream=True)

    def read(self, pipeline: Any) -> Any:
        return pipeline.xreadgroup(self.job.group, "member", {self.job.topic: ">"}, count=BATCH, block=BLOCK_MS)

    async def consume_batches(self, counter: Counter) -> None:
        """Acknowledge all entries of a batch by one XACK, which leaves together with the next XREADGROUP."""
        await self.join()
        entries = entries_of(await self.read(self.redis))
        while not counter.count(len(entries)):
            pipeline = self.redis.pipeline(transaction=False)
            pipeline.xack(self.job.topic, self.job.group, *(entry for entry, _ in entries))
            self.read(pipeline)
            entries = entries_of((await pipeline.execute())[-1])

    async def consume_each(self, counter: Counter) -> None:
        """Acknowledge every entry by an XACK of its own; those of a batch leave together with the next XREADGROUP."""
        await self.join()
        entries = entries_of(await self.read(self.redis))
        while True:
            pipeline = self.redis.pipeline(transaction=False)
            for entry, _ in entries:
                pipeline.xack(self.job.topic, self.job.group, entry)
                if counter.count(1):
                    return
            self.read(pipeline)
            entries = entries_of((await pipeline.execute())[-1])

    async def receive(self, stamps: Stamps) -> None:
        await self.join()
        entries = entries_of(await self.read(self.redis))
        while True:
            for _, fields in entries:
                if stamps.saw(fields[FIELD]):
                    return
            pipeline = self.redis.pipeline(transaction=False)
            if entries:
                pipeline.xack(self.job.topic, self.job.group, *(entry for entry, _ in entries))
            self.read(pipeline)
            entries = entries_of((await pipeline.execute())[-1])


def entries_of(reply: Any) -> Entries:
    """Return the entries of an XREADGROUP of one stream, in whichever version of the protocol."""
    if not reply:
        return []
    streams = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    found: Entries = streams[0] if streams and isinstance(streams[0], list) else streams
    return found


if __name__ == "__main__":
    run(RedisStreams)

"""A pull consumer process that keeps a page of messages and reads each body more than once: NAMESERVER TOPIC COUNT.

It prints `bodies.read` with the number and the sizes of the bodies, and exits on SIGTERM.
"""

import asyncio
import json
import signal
import sys

from lockstep.client import MessageExt, PullConsumer
from lockstep.runtime.logs.log import configure


async def main(nameserver: str, topic: str, count: int) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    page: list[MessageExt] = []
    async with PullConsumer("page-readers", nameserver=nameserver, poll_count=count).subscribe(topic) as consumer:
        print(json.dumps({"event": "bodies.ready"}), flush=True)
        while len(page) < count:
            page += await consumer.poll(500)
        body_bytes = sum(len(message.body) for message in page)
        assert all(message.body for message in page[:10])
        stored_bytes = sum(message.body_bytes for message in page)
        print(json.dumps({"event": "bodies.read", "count": len(page), "stored_bytes": stored_bytes, "body_bytes": body_bytes}), flush=True)
        await stopped.wait()


if __name__ == "__main__":
    configure("error")
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

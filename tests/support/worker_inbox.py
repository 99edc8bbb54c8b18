"""A consumer process that books payments into an SQLite database with an inbox (`new`): the effect of a message is a row of `booked`.

It prints `worker.ready` when it is a member of the group, and exits on SIGTERM.
"""

import argparse
import json
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Literal

from lockstep.client import MessageExt, OrderlyContext, PushConsumer, run
from lockstep.client.inbox import Inbox

GROUP = "ledger"
INBOX = Inbox(GROUP)


def connect(file: str | Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=60, isolation_level="IMMEDIATE")


def prepare(file: str | Path) -> None:
    """Create the tables."""
    with closing(connect(file)) as db, db:
        for statement in (*INBOX.schema, "CREATE TABLE booked (number INTEGER, account TEXT, epoch BIGINT)"):
            db.execute(statement)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("nameserver", "file", "order-by"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    order_by: Literal["queue", "sharding_key"] = options.order_by
    settings: dict[str, Any] = {"order_by": order_by, "concurrency": 4}
    consumer = PushConsumer(GROUP, nameserver=options.nameserver, batch_count=2, **settings).subscribe("orders")

    @consumer.orderly
    def book(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        with closing(connect(options.file)) as db, db:  # one transaction
            for message in INBOX.new(db, messages, context):
                row = (int(message.body), message.sharding_key, context.fence.epoch)
                db.execute("INSERT INTO booked VALUES (?, ?, ?)", row)

    @asynccontextmanager
    async def ready() -> AsyncIterator[None]:
        print(json.dumps({"event": "worker.ready"}), flush=True)
        yield

    run(consumer, ready())


if __name__ == "__main__":
    main()

"""A producer process that sells in transactions: a row of `sales` in an SQLite database, and two messages with its transaction's id.

`--die-at STEP` kills it by SIGKILL at one of STEPS, in the transaction after `--after` others. It prints `worker.ready` at its start,
and a line for each transaction whose block has ended.
"""

import argparse
import asyncio
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

from lockstep.client import LockstepError, Message, MessageExt, TransactionProducer
from lockstep.client.marks import Marks

STEPS = ("begun", "first sent", "second sent", "written", "local committed", "ended")
MARKS = Marks()


def connect(file: str | Path) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=60)


def prepare(file: str | Path) -> None:
    """Create the tables."""
    with closing(connect(file)) as db, db:
        for statement in (*MARKS.schema, "CREATE TABLE sales (id TEXT)"):
            db.execute(statement)


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("nameserver", "file"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--die-at", default="")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--count", type=int, default=1_000_000)
    options = parser.parse_args()
    producer = TransactionProducer("shop", nameserver=options.nameserver)

    @producer.check
    def check(transaction_id: str, _: MessageExt) -> bool:
        with closing(connect(options.file)) as db, db:
            return bool(MARKS.decide(db, transaction_id))

    number = 0

    def reach(step: str) -> None:
        if step == options.die_at and number >= options.after:
            os.kill(os.getpid(), signal.SIGKILL)

    async with producer:
        say("worker.ready")
        with closing(connect(options.file)) as db:
            while number < options.count:
                try:
                    async with producer.transaction() as tx:
                        reach("begun")
                        await tx.send(Message("sales", tx.id.encode(), sharding_key=tx.id))
                        reach("first sent")
                        await tx.send(Message("receipts", tx.id.encode()))
                        reach("second sent")
                        with db:
                            db.execute("INSERT INTO sales VALUES (?)", (tx.id,))
                            MARKS.set(db, tx.id)
                            reach("written")
                        reach("local committed")
                    reach("ended")
                    say("ended", id=tx.id, status=str(tx.status))
                except LockstepError as error:
                    say("failed", error=str(error))
                number += 1
                await asyncio.sleep(0)
        await asyncio.Event().wait()  # to answer


if __name__ == "__main__":
    asyncio.run(main())

"""Payments that are booked exactly once and in order although a worker is killed: an inbox in the database.

Two workers share the queues of `payments` and book into one SQLite file. One is killed with SIGKILL; the other takes its queues over and
receives again the messages that the first had not committed. The inbox, a table of the ledger, rejects an earlier owner and passes over
what is booked already, so that each payment is booked once.

    lockstep up &
    python examples/ledger.py
"""

import asyncio
import os
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from lockstep.client import Message, MessageExt, OrderlyContext, Producer, PushConsumer, run
from lockstep.client.inbox import Inbox

NAMESERVER = os.environ.get("LOCKSTEP_NAMESERVER", "127.0.0.1:9876")
TOPIC, ACCOUNTS, AFTER_THE_KILL = "payments", 20, 200
INBOX = Inbox("ledger")
SCHEMA = (*INBOX.schema, "CREATE TABLE booked (account TEXT NOT NULL, number INTEGER NOT NULL, worker TEXT NOT NULL)")


def connect(file: str) -> sqlite3.Connection:
    return sqlite3.connect(file, timeout=30, isolation_level="IMMEDIATE")


def worker(name: str, file: str) -> None:
    consumer = PushConsumer("ledger", nameserver=NAMESERVER)
    consumer.subscribe(TOPIC)

    @consumer.orderly
    def book(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        with closing(connect(file)) as db, db:  # one transaction
            for message in INBOX.new(db, messages, context):
                db.execute("INSERT INTO booked VALUES (?, ?, ?)", (message.sharding_key, int(message.body), name))

    run(consumer)


def booked(file: str) -> list[tuple[str, int, str]]:
    """Return account, number and worker of every payment in the ledger, oldest first."""
    with closing(connect(file)) as db:
        return db.execute("SELECT account, number, worker FROM booked ORDER BY rowid").fetchall()


async def hire(name: str, file: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, __file__, name, file)


async def pay_and_kill(workers: Sequence[asyncio.subprocess.Process], file: str) -> int:
    """Send payments, kill a worker meanwhile, and wait until all are booked. Return the number of payments."""
    sent = 0
    async with Producer("shop", nameserver=NAMESERVER) as producer:

        async def pay() -> None:
            nonlocal sent
            await producer.send(Message(TOPIC, b"%d" % sent, sharding_key=f"account-{sent % ACCOUNTS}"))
            sent += 1

        while len({worker for _, _, worker in booked(file)}) < len(workers):  # until both have booked payments
            await pay()
            await asyncio.sleep(0.01)
        workers[0].send_signal(signal.SIGKILL)
        for _ in range(AFTER_THE_KILL):
            await pay()
    while len(booked(file)) < sent:  # noqa: ASYNC110  another process books
        await asyncio.sleep(0.1)
    return sent


async def main() -> None:
    file = str(Path(tempfile.mkdtemp(prefix="ledger-")) / "ledger.db")
    with closing(connect(file)) as db:
        db.executescript(";".join(SCHEMA))
    workers = [await hire("worker-1", file), await hire("worker-2", file)]
    try:
        sent = await pay_and_kill(workers, file)
    finally:
        for each in workers:
            if each.returncode is None:
                each.terminate()  # a graceful stop: messages in progress are finished and committed
        await asyncio.gather(*(each.wait() for each in workers))

    rows = booked(file)
    numbers = [number for _, number, _ in rows]
    assert sorted(numbers) == list(range(sent)), "each once"
    for name in {account for account, _, _ in rows}:
        own = [number for account, number, _ in rows if account == name]
        assert own == sorted(own), f"{name} in order"
    shares = Counter(name for _, _, name in rows)
    print(f"{len(rows)} payments booked, each once, every account in order: {', '.join(sorted(shares))}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        worker(sys.argv[1], sys.argv[2])
    else:
        asyncio.run(main())

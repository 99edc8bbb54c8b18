"""Each message takes effect once: members that book into an SQLite database are killed."""

from contextlib import closing
from itertools import cycle

import pytest

from lockstep.client import Message, Producer
from support.cluster import QUICK, Cluster, Report
from support.effort import usually
from support.worker_inbox import connect, prepare

pytestmark = pytest.mark.e2e

ACCOUNTS, KILLS = 10, 8
STEP = 40
"""The number of payments between two kills."""


@pytest.mark.parametrize("order_by", usually(["sharding_key"], ["queue", "sharding_key"]))
async def test_payment_is_booked_once_while_members_are_killed(cluster: Cluster, report: Report, order_by: str) -> None:
    file = cluster.folder / "ledger.db"
    prepare(file)
    await cluster.servers(*QUICK, queues=2, brokers=["broker-a"])
    options = ["--nameserver", cluster.nameservers, "--file", str(file), "--order-by", order_by]
    names = ("worker-1", "worker-2")
    for name in names:
        await cluster.start(name, ["-m", "support.worker_inbox", *options], "worker.ready")
    sent = 0

    def booked() -> list[tuple[int, str]]:
        with closing(connect(file)) as db:
            return db.execute("SELECT number, account FROM booked ORDER BY rowid").fetchall()

    async with Producer("shop", nameserver=cluster.nameservers) as producer:

        async def pay() -> None:
            nonlocal sent
            for _ in range(STEP):
                await producer.send(Message("orders", b"%d" % sent, sharding_key=f"account-{sent % ACCOUNTS}"))
                sent += 1

        for _, name in zip(range(KILLS), cycle(names), strict=False):
            await pay()
            # With a part of the payments still to be booked: the process is in a transaction, or between one and its commit at the broker.
            await cluster.until(f"{sent - STEP // 2} payments are booked", lambda: len(booked()) >= sent - STEP // 2)
            await cluster.kill(name)
            await cluster.restart(name)
    await cluster.until("all payments are booked", lambda: len(booked()) >= sent)
    await cluster.until_lag(0, group="ledger")
    rows = booked()
    assert sorted(number for number, _ in rows) == [*range(sent)], "each once"
    for account in range(ACCOUNTS):
        assert [number for number, name in rows if name == f"account-{account}"] == [*range(account, sent, ACCOUNTS)], "in order"
    report(f"{sent} payments booked once, by members that were killed {KILLS} times")

"""`lockstep why` with real processes: what only they can do to a member, and that one which is stuck holds back nobody."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from support.cluster import DEFAULTS, QUICK, Cluster

pytestmark = pytest.mark.e2e

MEMBER = """
import asyncio, json, sys, time
from lockstep.client import PushConsumer

nameserver, group, how = sys.argv[1:]
consumer = PushConsumer(group, nameserver=nameserver).subscribe("orders")

def charge(card):
    while True:
        time.sleep(0.05)

if how == "thread":
    @consumer.orderly
    def bill(messages, context):
        charge("4111 1111 1111 1111")
elif how == "blocks":
    @consumer.orderly
    async def bill(messages, context):
        await asyncio.sleep(0.1)
        charge("4111 1111 1111 1111")
else:
    @consumer.orderly
    async def bill(messages, context):
        await asyncio.Event().wait()

async def main():
    async with consumer:
        print(json.dumps({"event": "worker.ready"}), flush=True)
        await consumer.wait_closed()

asyncio.run(main())
"""


async def member(cluster: Cluster, folder: Path, group: str, how: str) -> None:
    program = folder / "member.py"
    program.write_text(MEMBER)
    await cluster.start(group, [str(program), cluster.nameservers, group, how], "worker.ready", program=sys.executable)


async def until_because(cluster: Cluster, group: str, name: str) -> dict[str, Any]:
    """Return the cause of the group's only queue with waiting messages, as soon as it has this name."""
    shown: dict[str, Any] = {}
    async with asyncio.timeout(60):
        while True:
            shown = json.loads(await cluster.command("why", group, "--json"))
            for queue in shown["queues"]:
                if queue["because"] is not None and queue["because"]["name"] == name:
                    return dict(queue["because"])


async def test_listener_in_a_thread_and_one_that_blocks_the_loop_are_told_apart(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.nameserver("nameserver-1")
    await cluster.broker("broker-a", *DEFAULTS)
    await cluster.command("topic", "create", "orders")
    for group, how in (("threaded", "thread"), ("blocking", "blocks"), ("waiting", "waits")):
        await member(cluster, tmp_path, group, how)
    await cluster.command("send", "orders", "one", "--sharding-key", "order-1")
    in_thread = await until_because(cluster, "threaded", "listener_runs")
    assert [place.partition(" in ")[2] for place in in_thread["stack"]] == ["bill", "charge"]
    assert "4111" not in json.dumps(in_thread)
    awaited = await until_because(cluster, "waiting", "listener_runs")
    assert awaited["stack"][0].partition(" in ")[2] == "bill"
    assert awaited["text"].endswith(f", at {awaited['stack'][0]} (now in {awaited['stack'][-1]})")
    assert awaited["step"] == f"look at {awaited['stack'][0]}"
    assert in_thread["step"] == f"look at {in_thread['stack'][-1]}"
    blocked = await until_because(cluster, "blocking", "member_silent")
    assert "did not respond within 3 s" in blocked["text"]


async def test_stopped_member_holds_back_no_other_answer(cluster: Cluster, tmp_path: Path) -> None:
    """Eight operators ask about a process that is stopped; another one gets the answer of a good member meanwhile."""
    await cluster.nameserver("nameserver-1")
    await cluster.broker("broker-a", *QUICK)
    await cluster.command("topic", "create", "orders")
    for group in ("stopped", "waiting"):
        await member(cluster, tmp_path, group, "waits")
    await cluster.command("send", "orders", "one", "--sharding-key", "order-1")
    await until_because(cluster, "waiting", "listener_runs")
    await until_because(cluster, "stopped", "listener_runs")
    cluster.signal(signal.SIGSTOP, "stopped")
    try:
        asking = [asyncio.create_task(cluster.command("why", "stopped", "--json")) for _ in range(8)]
        await until_because(cluster, "waiting", "listener_runs")
        for text in await asyncio.gather(*asking):
            names = {queue["because"]["name"] for queue in json.loads(text)["queues"] if queue["because"] is not None}
            assert names <= {"member_silent", "owner_in_grace", "no_member"}, text
    finally:
        cluster.signal(signal.SIGCONT, "stopped")


async def test_watched_group_is_told_when_its_answer_changes(cluster: Cluster, tmp_path: Path) -> None:
    """A broker that is killed does not end the command, and Ctrl-C does, with the exit code of the last answer."""
    await cluster.nameserver("nameserver-1")
    await cluster.broker("broker-a", *QUICK)
    await cluster.command("topic", "create", "orders", "--queues", "1")
    await member(cluster, tmp_path, "waiting", "waits")
    await cluster.command("send", "orders", "one", "--sharding-key", "order-1")
    await until_because(cluster, "waiting", "listener_runs")
    command = [sys.executable, "-m", "lockstep.cli.main", "why", "waiting", "--watch", "--interval", "0.5", "-n", cluster.nameservers]
    watching = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert watching.stdout is not None
    try:
        async with asyncio.timeout(60):
            assert b"because  the listener __main__.bill has been running for " in await watching.stdout.readuntil(b"\n\n")
            await cluster.kill("broker-a")
            while b"not known: " not in await watching.stdout.readuntil(b"\n\n"):
                pass
            await cluster.restart("broker-a")
            while b"because  the listener __main__.bill" not in await watching.stdout.readuntil(b"\n\n"):
                pass
            watching.send_signal(signal.SIGINT)
            assert await watching.wait() == 0
    finally:
        if watching.returncode is None:
            watching.kill()
        await watching.wait()

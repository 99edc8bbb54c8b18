"""A group whose members have different subscriptions: rejected, or, in the published experiment, accepted with lost messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.protocol.errors import SubscriptionConflictError
from support.cluster import DEFAULTS, Cluster, Report, now_us
from support.processes import LIMIT_S, clean_environment, program

pytestmark = pytest.mark.e2e

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "inconsistent_subscription.py"
TOLD = [
    "A got: nothing",
    "B got: B2 B3 B6 B7",
    "offsets: 2 2 2 2",
    "tracks:" + " CONSUMED" * 8,
    "B has left; tracks:" + " CONSUMED_BUT_FILTERED" * 8,
    "nobody is left; tracks:" + " CONSUMED" * 8,
]


@pytest.mark.slow
def test_inconsistent_subscriptions_give_the_published_result(tmp_path: Path) -> None:
    with program("lockstep.cli.main", "up", "--port", "0", "--store", str(tmp_path / "store"), event="up.started") as laptop:
        path = f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}"
        environment = clean_environment(LOCKSTEP_NAMESERVER=laptop.started["nameserver"], PATH=path)
        command = [sys.executable, str(EXAMPLE)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == TOLD


async def rejected_output(cluster: Cluster, name: str, *options: str) -> str:
    """Return the last output of a member that can't join."""
    files = ["--file", str(cluster.folder / f"{name}.handled"), "--accepted", str(cluster.folder / f"{name}.accepted")]
    command = ["-m", "support.worker_consumer", "--nameserver", cluster.nameservers, "--name", name, *files, *options]
    process = await cluster.start(name, command)
    assert await process.wait() != 0
    return (cluster.folder / f"{name}-1.log").read_text()


async def test_differing_subscription_is_rejected_until_the_other_members_have_left(cluster: Cluster, report: Report) -> None:
    await cluster.servers(*DEFAULTS)
    await cluster.consumer("consumer-1", "--tags", "even")
    await cluster.until_held(8, "consumer-1")
    said = await rejected_output(cluster, "stranger", "--tags", "odd")
    assert SubscriptionConflictError.__name__ in said
    assert "subscription of orders: 'even' here, 'odd' asked for" in said
    assert len((await cluster.group())["members"]) == 1, "it has left wherever it had joined"
    assert (await cluster.group())["members"][0]["subscription"] == {"orders": "even"}

    await cluster.stop("consumer-1")
    began_us = now_us()
    await cluster.consumer("consumer-2", "--tags", "odd")
    report(f"after a clean stop the other subscription joins within {(now_us() - began_us) / 1e6:.1f} s, its process's start included")
    await cluster.until_held(8, "consumer-2")

    await cluster.kill("consumer-2")
    began_us = now_us()
    await cluster.consumer("consumer-3", "--tags", "even")
    report(f"after a kill -9, in the grace of 3 s, within {(now_us() - began_us) / 1e6:.1f} s")
    await cluster.until_held(8, "consumer-3")
    assert {member["subscription"]["orders"] for member in (await cluster.group())["members"]} == {"even"}
    await cluster.stop("consumer-3")

"""`lockstep bench` measures a cluster of its own, and a running one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.protocol.native import implementation
from support.cluster import running_cluster

pytestmark = pytest.mark.e2e

PHASES = [
    "send, one at a time",
    "send, 50 in flight",
    "send_batch of 300",
    "consume in order, up to 64 per call",
    "consume in order, 1 per call",
    "consume concurrently, up to 64 per call",
    "consume concurrently, 1 per call",
    "end to end",
]


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LOCKSTEP_NAMESERVER"}
    command = [sys.executable, "-m", "lockstep.cli.main", "bench", "--count", "300", "--window", "50", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def test_bench_without_a_nameserver_option_starts_a_cluster_and_prints_every_phase() -> None:
    done = bench("--json", "--delayed", "200")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert [figure["phase"] for figure in figures] == [*PHASES, "lateness of a 1 s delay, 200 pending"]
    assert all((figure["rate"] or figure["p50_us"]) > 0 for figure in figures), "nor does a delayed message come early"
    assert {figure["kernels"] for figure in figures} == {implementation()}
    assert [figure["messages"] for figure in figures] == [300, 300, 300, 903, 903, 903, 903, 300, 300]


@pytest.mark.slow
async def test_bench_measures_the_given_cluster(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.servers(brokers=["broker-a"])
        done = bench("--unordered", "--nameserver", cluster.nameservers)
        assert done.returncode == 0, done.stderr
        assert all(phase in done.stdout for phase in PHASES)
        assert done.stdout.endswith(f"with {implementation()}\n")


def test_bench_with_an_unreachable_nameserver_prints_one_line() -> None:
    done = bench("--nameserver", "127.0.0.1:9")
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if line.startswith("lockstep: ")]) == 1
    assert "Traceback" not in done.stderr

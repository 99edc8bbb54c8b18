"""Several executors: one is killed during an ordered write, and its tasks and its share of the shuffle are repeated elsewhere."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.spark.load import verify_job
from support.processes import clean_environment
from support.spark_table import Table

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "load_generator.py"
ROWS = 120_000
LIMIT_S = 600.0
LOOK_S = 0.05
ONE_TASK_EACH = ("--conf", "spark.scheduler.minRegisteredResourcesRatio=1", "--conf", "spark.locality.wait=0")
"""With three tasks of a paced run, each executor runs one of them once every queue has rows."""
EXECUTOR = b"CoarseGrainedExecutorBackend"
CONNECTED = "01"
"""The state ESTABLISHED in /proc/net/tcp."""


def executors(group: int) -> list[int]:
    """Return the process ids of the JVMs of a process group that run tasks."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields, words = (folder / "stat").read_text().rpartition(") ")[2].split(), (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if int(fields[2]) == group and any(word.endswith(EXECUTOR) for word in words):
            found.append(int(folder.name))
    return sorted(found)


def parent(process: int) -> int:
    """Return the id of the parent of a process, 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def connected_to(port: int) -> set[int]:
    """Return the ids of the processes that have a connection to a port of this machine."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == CONNECTED and int(row[2].rpartition(":")[2], 16) == port}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(one) in sockets for one in (process / "fd").iterdir()):
                found.add(int(process.name))
        except OSError:
            continue  # it has ended, or it closed what was listed
    return found


def sending(executor: int, port: int) -> bool:
    """Return whether a task of an executor is connected to the broker: a Python process below it."""
    for process in connected_to(port):
        while process > 1:
            if process == executor:
                return True
            process = parent(process)
    return False


def words(folder: Path) -> str:
    return "".join((folder / name).read_text(errors="replace")[-1_500:] for name in ("said", "complained"))


def wait_until(job: "subprocess.Popen[bytes]", folder: Path, what: str, true: Callable[[], bool], *, may_end: bool = False) -> None:
    end = time.monotonic() + LIMIT_S
    while not true():
        assert may_end or job.poll() is None, f"it ended with {job.returncode} before {what}: {words(folder)}"
        assert time.monotonic() < end, f"not within {LIMIT_S:.0f} s: {what}: {words(folder)}"
        time.sleep(LOOK_S)


def test_killed_executor_loses_and_repeats_no_row_and_keeps_the_order(table: Table, tmp_path: Path) -> None:
    where = ["--nameserver", table.cluster.nameserver, "--topic", table.topic, "--out", str(tmp_path), "--no-warmup", "--no-progress"]
    what = ["--rows", str(ROWS), "--keys", "200", "--rate", "15000", "--partitions", "3", "--json"]
    environment = clean_environment(PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local-cluster[3,1,1024]", *ONE_TASK_EACH]
    with (tmp_path / "said").open("wb") as said, (tmp_path / "complained").open("wb") as complained:
        job = subprocess.Popen(
            [*submit, str(SCRIPT), *where, *what], stdout=said, stderr=complained, env=environment, start_new_session=True, cwd=tmp_path
        )

    def stored() -> list[int]:
        return list(table.cluster.ends(table.topic).values())

    try:
        # Several frames, because a queue's last frame, if resent, gets its offset in the response and is not counted as a repetition.
        wait_until(job, tmp_path, "frames of every task", lambda: min(stored()) > ROWS // 40)
        before = executors(job.pid)
        assert len(before) == 3
        # On a loaded machine one of them may have ended its task by now.
        os.kill(next(one for one in before if sending(one, table.cluster.broker_port)), signal.SIGKILL)
        wait_until(job, tmp_path, "the end of the job", lambda: job.poll() is not None, may_end=True)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert job.returncode == 0, words(tmp_path)
    summary = json.loads((tmp_path / "said").read_text().splitlines()[-1])
    assert summary["repeatedFrames"] > 0, "what the killed executor had sent was sent again"
    assert sum(stored()) == ROWS
    checked = verify_job.main(["--nameserver", table.cluster.nameserver, "--manifest", str(tmp_path / "manifest.json")], table.spark)
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert (checked, verdict["clean"], verdict["found"]) == (0, True, ROWS)
    assert (verdict["lost"], verdict["repeated"], verdict["outOfOrder"]) == (0, 0, 0)

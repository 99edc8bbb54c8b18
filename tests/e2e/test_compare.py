"""`./scripts/compare` measures systems in turns, and leaves no process and no file behind."""

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from compare.children import ChildError, Children
from compare.procfs import is_running, tree
from compare.report import BEGIN, END
from compare.systems.all import SYSTEMS

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--rounds", "1", "--scale", "0.001", "--sizes", "100")


@contextmanager
def running(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command with `folder` as the place of its temporary files."""
    path = os.pathsep.join(filter(None, [str(ROOT / "bench"), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "compare", *options]
    environment = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=folder) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_compare_measures_and_writes_table_picture_and_measurements(tmp_path: Path) -> None:
    work = tmp_path / "tmp"
    work.mkdir()
    page, picture, data = tmp_path / "page.md", tmp_path / "picture.svg", tmp_path / "data.json"
    page.write_text(f"{BEGIN}\n{END}\n")
    systems = [name for name in ("lockstep", "redis") if not SYSTEMS[name].missing]
    with running(
        work, *TINY, "--systems", ",".join(systems), "--markdown", str(page), "--svg", str(picture), "--json", str(data)
    ) as process:
        printed, progress = process.communicate(timeout=300)
        assert process.returncode == 0, progress
    found = json.loads(data.read_text())
    assert list(found["systems"]) == systems
    assert {each["work"] for each in found["measurements"] if each["system"] == "lockstep"} == set(SYSTEMS["lockstep"].counts)
    assert len(found["measurements"]) == sum(len(SYSTEMS[name].counts) for name in systems)
    assert all(each["messages"] > 0 and each["elapsed_us"] > 0 for each in found["measurements"])
    assert all((each["p50_us"] is not None) == (each["work"] in ("one", "e2e")) for each in found["measurements"])
    assert printed.strip() in page.read_text()
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert list(work.iterdir()) == [], "the folder of the servers is removed"


def test_interrupted_run_ends_its_servers_and_removes_its_files(tmp_path: Path) -> None:
    with running(tmp_path, "--systems", "lockstep", "--works", "one") as process:
        assert process.stderr is not None
        while "filling" not in process.stderr.readline():
            pass
        servers = tree([process.pid])[1:]
        assert len(servers) >= 2, "nameserver and broker"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
    assert "interrupted" in said
    assert os.listdir(tmp_path) == []
    assert not any(map(is_running, servers))


def test_server_that_does_not_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    children = Children(tmp_path)
    script = "import sys; print('no disk is left'); sys.exit(3)"
    with pytest.raises(ChildError, match=re.compile("broken ended with exit code 3 .*no disk is left", re.DOTALL)):
        children.start("broken", [sys.executable, "-c", script], ready="ready")
    children.end()


def test_end_of_a_server_ends_its_descendants(tmp_path: Path) -> None:
    children = Children(tmp_path)
    descendant = "import signal; print(1, flush=True); signal.pause()"
    children.start("server", ["sh", "-c", f"{sys.executable} -c '{descendant}' & wait"], ready="1")
    pids = children.pids
    assert len(pids) == 2, "the shell and its child"
    children.end()
    assert not any(map(is_running, pids))

"""The tasks that a server spawns are limited: each place that starts one has a row in the table of docs/adr/0014."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.server_sources import server_sources

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "adr" / "0014-limits-of-one-peer.md"
OWN = {
    "start", "wake", "stop", "hurry",  # daemon.py: of the process itself, once
}  # fmt: skip


def spawned(source: str) -> Iterator[str]:
    """Yield the names of the tasks that a module starts, without their variable parts."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "spawn":
            yield _name(call.args[1])
        elif call.func.attr in ("create_task", "ensure_future"):
            names = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
            if not (names and isinstance(names[0], ast.Name)):  # Tasks.spawn itself hands on the name that it was given
                yield _name(names[0]) if names else ast.unparse(call)


def _name(node: ast.expr) -> str:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)).strip(" .")


def test_each_spawned_task_has_a_row_with_its_limit_in_the_adr() -> None:
    found = {name for path in server_sources() for name in spawned(path.read_text("utf-8"))}
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text("utf-8").partition("## What is spawned")[2], re.MULTILINE)
    assert sorted(rows) == sorted(found - OWN)


def test_only_the_host_pool_runs_jobs_in_threads() -> None:
    """Its number of workers is checked by tests/unit/broker/test_app_restarts.py."""
    calls = re.compile(r"\brun_in_executor\(|\bto_thread\(|ThreadPoolExecutor\(|\bThread\(")
    found = {path.name for path in server_sources() if calls.search(path.read_text("utf-8"))}
    assert found <= {"host.py", "loop_thread.py", "log.py"}


def test_spawned_finds_the_tasks_of_a_module() -> None:
    source = """
self._tasks.spawn(run(), f"drain {endpoint.peer}")
tasks.spawn(run(), "cold reads")
asyncio.create_task(work(), name=f"{self._name} start")
group.create_task(work())
"""
    assert list(spawned(source)) == ["drain", "cold reads", "start", "group.create_task(work())"]

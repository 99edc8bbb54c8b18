"""docs/frameworks.md: every block is run as by a reader."""

import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.page_commands import Newcomer, blocks

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "frameworks.md").read_text()
PRINTED = {
    "python -m pytest -q test_shop_api.py": "2 passed",
    "python -m pytest -q test_shop_flask.py": "2 passed",
    "python use_shop_django.py": "202",
    "python send_mail.py": "2 sent",
    "python import_orders.py": "3 stored",
    "python plain_logs.py": "INFO lockstep.client broker.connected broker=broker-a",
    "python structured_logs.py": '"event": "broker.connected", "logger": "lockstep.client", "level": "info"',
    "python tracked_errors.py": "error message.dead_lettered %s ValueError",
}


def test_every_block_of_the_frameworks_page_runs(tmp_path: Path) -> None:
    for framework in ("fastapi", "httpx", "flask", "django", "taskiq", "sentry_sdk"):
        pytest.importorskip(framework)
    reader = Newcomer(tmp_path)
    reader.use_this_environment()
    reader.environment["PATH"] = f"{Path(sys.prefix) / 'bin'}:{reader.environment['PATH']}"
    ran: list[str] = []
    with ExitStack() as stack:
        for block in blocks(PAGE):
            if block.language == "python":
                name = re.findall(r"[Aa]s\s+`(\w+\.py)`", block.before)[-1]
                (tmp_path / name).write_text(reader.here(block.text))
                continue
            (command,) = block.commands
            if command == "lockstep up":
                laptop = stack.enter_context(reader.terminal(command))
                assert laptop.stdout is not None
                assert next(line for line in laptop.stdout if '"up.started"' in line)
            elif command == "python django_worker.py":
                with reader.terminal(command) as worker:
                    assert worker.stdout is not None
                    booked = {worker.stdout.readline().strip() for _ in range(4)}
                assert booked == {"booked 1001", "booked 2001", "booked 2002", "booked 3001"}
                assert worker.returncode == 0
            elif command == "taskiq worker shop_tasks:broker":
                with reader.terminal(command) as worker:
                    assert worker.stdout is not None
                    assert {worker.stdout.readline().strip() for _ in range(2)} == {"mailed 5001", "mailed 5002"}
            else:
                assert PRINTED[command] in reader.types(command)
                ran.append(command)
    assert ran == list(PRINTED)

"""docs/frameworks.md: every block is run as by a reader."""

import asyncio
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.loops import until
from support.page_commands import Newcomer, blocks
from support.ports import free_ports

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


@pytest.mark.slow
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


def answer(url: str, *, post: bool = False) -> tuple[int, dict[str, object]]:
    """Return the status and the JSON of a response; 0 while nothing listens."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST" if post else "GET"), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}


def wait(condition: Callable[[], bool], what: str) -> None:
    asyncio.run(until(condition, what, timeout_s=120))


@contextmanager
def serving(reader: Newcomer, *command: str) -> Iterator[None]:
    """Run a web server, and check that it ends in order."""
    with subprocess.Popen([sys.executable, "-m", *command], cwd=reader.folder, env=reader.environment) as server:
        try:
            yield
        finally:
            server.terminate()
            server.wait(60)


@contextmanager
def a_cluster(reader: Newcomer) -> Iterator[None]:
    with reader.terminal("lockstep up") as laptop:
        assert laptop.stdout is not None
        assert next(line for line in laptop.stdout if '"up.started"' in line)
        yield


@pytest.fixture
def reader(tmp_path: Path) -> Newcomer:
    """A reader who has copied the files of the page, and runs no broker yet."""
    for framework in ("fastapi", "uvicorn", "flask", "django"):
        pytest.importorskip(framework)
    reader = Newcomer(tmp_path)
    reader.use_this_environment()
    reader.environment["PATH"] = f"{Path(sys.prefix) / 'bin'}:{reader.environment['PATH']}"
    for block in blocks(PAGE):
        if block.language == "python":
            name = re.findall(r"[Aa]s\s+`(\w+\.py)`", block.before)[-1]
            (tmp_path / name).write_text(reader.here(block.text))
    return reader


def test_fastapi_application_serves_without_a_broker_and_sends_when_there_is_one(reader: Newcomer) -> None:
    web = f"http://127.0.0.1:{(port := free_ports(1)[0])}"
    with serving(reader, "uvicorn", "shop_api:app", "--port", str(port), "--log-level", "warning"):
        wait(lambda: "no nameserver can be reached" in str(answer(f"{web}/livez")[1].get("waits for")), "the application serves")
        status, live = answer(f"{web}/livez")
        assert (status, live["consumer"]) == (200, "starting")
        assert answer(f"{web}/readyz")[0] == 503
        status, refused = answer(f"{web}/orders/1001/created", post=True)
        assert (status, refused["detail"]) == (503, "not accepted (not stored), try again")
        with a_cluster(reader):
            wait(lambda: answer(f"{web}/orders/1001/created", post=True)[0] == 200, "an order is accepted")
            wait(lambda: answer(f"{web}/readyz")[0] == 200, "the application is ready")
            assert answer(f"{web}/livez") == (200, {"consumer": "running", "waits for": None})


def test_flask_application_serves_without_a_broker_and_sends_when_there_is_one(reader: Newcomer) -> None:
    web = f"http://127.0.0.1:{(port := free_ports(1)[0])}"
    with serving(reader, "flask", "--app", "shop_flask", "run", "--port", str(port)):
        wait(lambda: answer(f"{web}/readyz")[0] == 200, "the application serves")
        status, refused = answer(f"{web}/orders/2001", post=True)
        assert status == 503
        assert "the message is not stored" in str(refused["error"])
        status, health = answer(f"{web}/readyz")
        assert (status, health["producer"]) == (503, "starting")
        assert "no nameserver can be reached" in str(health["waits for"])
        with a_cluster(reader):
            wait(lambda: answer(f"{web}/orders/2001", post=True)[0] == 202, "an order is accepted")
            wait(lambda: answer(f"{web}/readyz")[0] == 200, "the application is ready")


def test_django_application_writes_its_order_without_a_broker(reader: Newcomer) -> None:
    post = "from django.test import Client; print(Client().post('/orders/3001').status_code)"
    program = f"import logging, shop_django; logging.basicConfig(); {post}"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=reader.folder, env=reader.environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout == "202\n"
    assert "the message is not stored" in ran.stderr

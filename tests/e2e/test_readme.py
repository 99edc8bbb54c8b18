"""The README's section "By hand", one command after the other, as a newcomer types them."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.processes import clean_environment

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
PORT = 9876
BROKER_PORT_AFTER = 1_035
LIMIT_S = 60


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    before: str
    """The prose since the block before."""

    @property
    def commands(self) -> list[str]:
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


def section() -> str:
    return (ROOT / "README.md").read_text().split("\n## By hand\n", 1)[1].split("\n## ", 1)[0]


def by_hand() -> list[Block]:
    text = section()
    found, end = [], 0
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        found.append(Block(match[1], match[2], text[end : match.start()]))
        end = match.end()
    return found


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Newcomer:
    """A terminal in an empty folder. Ports and the store's place are rewritten where they are taken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = next(port for port in range(PORT, 60_000, 100) if is_free(port) and is_free(port + BROKER_PORT_AFTER))
        self.environment = clean_environment(COLUMNS="140", NO_COLOR="1")
        if self.port != PORT:
            self.environment["LOCKSTEP_NAMESERVER"] = f"127.0.0.1:{self.port}"

    def here(self, text: str) -> str:
        text = text.replace("/tmp/lockstep-store", str(self.folder / "store")).replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{self.port}")
        return f"{text} --port {self.port}" if " up " in text and self.port != PORT else text

    def types(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", self.here(command)],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    @contextmanager
    def terminal(self, command: str) -> Iterator["subprocess.Popen[str]"]:
        """The command in a terminal of its own, ended by Ctrl-C."""
        process = subprocess.Popen(
            ["bash", "-c", "exec " + self.here(command)], cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.communicate()


def use_this_environment(newcomer: Newcomer) -> None:
    """Instead of making .venv and installing into it: this run's own environment has lockstep already."""
    if not (Path(sys.prefix) / "bin" / "lockstep").exists():
        pytest.skip("lockstep is not installed in this environment: run ./scripts/test")
    (newcomer.folder / ".venv").symlink_to(sys.prefix)


@pytest.mark.parametrize(
    "install", [pytest.param(False, id="this environment"), pytest.param(True, id="a new environment", marks=pytest.mark.slow)]
)
def test_every_command_of_the_first_page_does_what_it_says(tmp_path: Path, install: bool) -> None:
    newcomer = Newcomer(tmp_path)
    (setup, create, consumer, run_consumer, producer) = by_hand()
    assert [block.language for block in (setup, create, consumer, run_consumer, producer)] == [
        "console",
        "console",
        "python",
        "console",
        "python",
    ]
    venv, pip, up = setup.commands
    assert (venv, pip) == ("python3 -m venv .venv", '.venv/bin/pip install ".[server]"')
    if install:
        newcomer.types(venv.replace("python3", sys.executable))
        newcomer.types(pip.replace(".[server]", f"{ROOT}[server]"))
    else:
        use_this_environment(newcomer)
    name = re.search(r"as a file `([\w.]+)`", consumer.before)
    assert name is not None
    (tmp_path / name[1]).write_text(newcomer.here(consumer.text))
    with ExitStack() as stack:
        laptop = stack.enter_context(newcomer.terminal(up))
        assert laptop.stdout is not None
        assert next(json.loads(line) for line in laptop.stdout if '"up.started"' in line)
        for command in create.commands:
            shown = newcomer.types(command)
        assert [line.split()[-2] for line in shown.splitlines() if "broker-a" in line].count("2") == 1, shown
        (command,) = run_consumer.commands
        billing = stack.enter_context(newcomer.terminal(command))
        assert billing.stdout is not None
        lines = [billing.stdout.readline().split(" ", 2) for _ in range(2)]
        assert [(key, tag) for key, tag, _ in lines] == [("1001", "created"), ("1001", "paid")]
        assert len({rest.split()[-1] for _, _, rest in lines}) == 1, "both under one fence"
        (show,) = re.findall(r"`(lockstep group show \w+)`", producer.before)
        assert "created || paid" in newcomer.types(f".venv/bin/{show}"), "the member, and what it subscribes to"
        (tmp_path / "order_service.py").write_text(newcomer.here(producer.text))
        status, queue, offset = newcomer.types(".venv/bin/python order_service.py").split()
        assert (status, offset) == ("SEND_OK", "2")
        assert queue.startswith("orders@broker-a:"), "the key's queue, behind the other two"
    assert laptop.returncode == 0, "Ctrl-C stops them"
    assert billing.returncode == 0, "Ctrl-C ends it without a traceback"


def test_programs_that_the_page_names_have_the_options_that_it_names(tmp_path: Path) -> None:
    use_this_environment(newcomer := Newcomer(tmp_path))
    end = section().rsplit("```", 1)[1]
    assert "--listen" in newcomer.types(".venv/bin/lockstep nameserver --help")
    (broker,) = re.findall(r"`(lockstep broker [^`]+)`", end)
    effective = newcomer.types(f".venv/bin/{broker.replace('DIR', 'there')} --show-config")
    assert 'name = "broker-a"' in effective
    assert "--store" in newcomer.types(".venv/bin/lockstep broker --help")

"""The README's section "By hand", command by command, as a new user types them."""

import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.page_commands import PORT, Newcomer, blocks

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]


def section() -> str:
    return (ROOT / "README.md").read_text().split("\n## By hand\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize(
    "install", [pytest.param(False, id="this environment"), pytest.param(True, id="a new environment", marks=pytest.mark.slow)]
)
def test_every_command_of_the_readme_works_as_described(tmp_path: Path, install: bool) -> None:
    newcomer = Newcomer(tmp_path)
    (setup, create, consumer, run_consumer, producer) = blocks(section())
    assert [block.language for block in (setup, create, consumer, run_consumer, producer)] == [
        "console",
        "console",
        "python",
        "console",
        "python",
    ]
    venv, pip, up = setup.commands
    assert (venv, pip) == ("python3 -m venv .venv", '.venv/bin/pip install ".[dashboard]"')
    if install:
        newcomer.types(venv.replace("python3", sys.executable))
        newcomer.types(pip.replace(".[dashboard]", f"{ROOT}[dashboard]"))
    else:
        newcomer.use_this_environment()
    name = re.search(r"as a file `([\w.]+)`", consumer.before)
    assert name is not None
    (tmp_path / name[1]).write_text(newcomer.here(consumer.text))
    with ExitStack() as stack:
        laptop = stack.enter_context(newcomer.terminal(up))
        assert laptop.stdout is not None
        started = next(json.loads(line) for line in laptop.stdout if '"up.started"' in line)
        if newcomer.port == PORT:
            assert f"`{started['dashboard']}`" in create.before
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


def test_programs_in_the_readme_have_the_options_it_names(tmp_path: Path) -> None:
    newcomer = Newcomer(tmp_path)
    newcomer.use_this_environment()
    end = section().rsplit("```", 1)[1]
    assert "--listen" in newcomer.types(".venv/bin/lockstep nameserver --help")
    (broker,) = re.findall(r"`(lockstep broker [^`]+)`", end)
    effective = newcomer.types(f".venv/bin/{broker.replace('DIR', 'there')} --show-config")
    assert 'name = "broker-a"' in effective
    assert "--store" in newcomer.types(".venv/bin/lockstep broker --help")

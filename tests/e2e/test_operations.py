"""docs/operations.md: its commands are run one by one, its settings and metrics are compared with the code."""

import json
import os
import re
import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup

from lockstep.broker.config import BrokerConfig
from lockstep.broker.running_settings import FIXED
from lockstep.operations.messages.message_track import MEANINGS
from lockstep.runtime.configuration.settings import declared_settings
from support.commands import every_command
from support.page_commands import Newcomer, blocks
from support.ports import is_free

pytestmark = pytest.mark.e2e

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
CURL = """#!{python}
import sys, urllib.request
words = sys.argv[1:]
data = words[words.index("-d") + 1].encode() if "-d" in words else None
method = words[words.index("-X") + 1] if "-X" in words else "GET"
sys.stdout.write(urllib.request.urlopen(urllib.request.Request(words[-1], data, method=method)).read().decode())
"""


class Operator(Newcomer):
    """Runs commands with the ports of the page, or free ones in their places."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        free = (port for port in range(20_000, 60_000, 7) if is_free(port))
        self.ports = {
            port: port if is_free(int(port)) else str(next(free)) for port in sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", PAGE)))
        }
        self.environment["LOCKSTEP_NAMESERVER"] = f"127.0.0.1:{self.ports['9876']}"
        if shutil.which("curl") is None:
            script = folder / "bin" / "curl"
            script.parent.mkdir()
            script.write_text(CURL.format(python=sys.executable))
            script.chmod(0o755)
            self.environment["PATH"] = f"{script.parent}{os.pathsep}{os.environ['PATH']}"

    def here(self, text: str) -> str:
        text = text.replace("/tmp/lockstep-store", str(self.folder / "store"))
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda match: f"127.0.0.1:{self.ports[match[1]]}", text)


def options_of(command: object) -> set[str]:
    """Return the long options of a command and of its subcommands, without the dashes."""
    if isinstance(command, TyperGroup):
        return set().union(*map(options_of, command.commands.values()))
    assert isinstance(command, TyperCommand)
    names = (name for option in command.params for name in (*option.opts, *option.secondary_opts))
    return {name.removeprefix("--") for name in names if name.startswith("--")}


def test_every_command_of_operations_md_works_as_described(tmp_path: Path) -> None:
    operator = Operator(tmp_path)
    operator.use_this_environment()
    nameserver, broker, *others = blocks(PAGE)
    with ExitStack() as stack:
        for block, started in ((nameserver, "nameserver.started"), (broker, "broker.started")):
            (command,) = block.commands
            process = stack.enter_context(operator.terminal(command))
            assert process.stdout is not None
            assert next(json.loads(line) for line in process.stdout if f'"{started}"' in line)
        said = {command: operator.types(command) for block in others for command in block.commands}
    responses = {re.sub(r"\s+", " ", command.removeprefix(".venv/bin/lockstep ")): text for command, text in said.items()}
    assert "problems: 0" in responses["doctor"]
    assert json.loads(responses["curl -s http://127.0.0.1:10912/readyz"])["status"] == "ok"
    metrics = responses["curl -s http://127.0.0.1:10912/metrics"]
    for name in set(re.findall(r"`((?:rocketmq|lockstep)_\w+)`", PAGE)):
        assert f"# TYPE {name} " in metrics or f"# HELP {name} " in metrics, f"the page names {name}, the broker does not"
    assert responses["curl -s -X PUT -d debug http://127.0.0.1:10912/log-level"] == "debug\n"
    assert "broker-a  72     default" in responses["broker config get retention_hours"]
    changed = responses["broker config set --broker broker-a retention_hours=24 topics_max=20000"]
    assert "broker-a: retention_hours: 72 → 24; a restart brings back 72 (default)" in changed
    assert "broker-a: log_mib_max: 5000 → none, the value of its start" in responses["broker config set --all log_mib_max=none"]
    assert "8 queues to write, 8 to read" in responses["topic alter orders --queues 8"]
    assert "topic orders is deleted" in responses["topic delete orders"]
    assert "messages to consume again: 0, messages to skip: 0" in responses["group reset-offset billing --topic payments --to beginning"]
    assert "lag: 1" in responses["group show billing"]
    assert "because  group billing has no member" in responses["why billing"]
    planned = responses["group reset-offset billing --to end --dry-run"]
    assert "Group billing consumes 0 messages again and skips 1, as things are now." in planned
    assert "nothing was changed (--dry-run)" in planned
    assert "messages to consume again: 0, messages to skip: 0" in responses["group reset-offset billing --to 30m"]
    assert "may NOT consume" in responses["group update billing --no-consume"]
    assert "The progress of group billing in payments ends, in " in responses["group forget billing --topic payments --dry-run"]
    assert "the progress of group billing in payments has ended" in responses["group forget billing --topic payments"]
    assert "group billing is deleted at broker-a" in responses["group delete billing"]


def test_operations_md_has_the_meaning_of_each_track() -> None:
    reported = dict(
        re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", PAGE.split("## What became of a message")[1].split("\n## ")[0], re.MULTILINE)
    )
    assert reported == {track.value: meaning for track, meaning in MEANINGS.items()}


def test_settings_in_operations_md_have_the_documented_defaults() -> None:
    fields = declared_settings(BrokerConfig)
    for option, default in re.findall(r"`--([a-z-]+)` \((\d+)\)", PAGE):
        assert fields[option.replace("-", "_")].default == int(default), option
    commands = every_command()
    for option in set(re.findall(r"`--([a-z-]+)", PAGE)) - {"config", "show-config"} - options_of(commands):
        assert option.replace("-", "_") in fields, f"no broker has --{option}"


def test_operations_md_says_when_a_change_of_each_setting_applies() -> None:
    section = PAGE.split("## Settings at run time")[1].split("\n## ")[0]
    named = {name for cell in re.findall(r"^\| (`.+?`) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    assert named == declared_settings(BrokerConfig).keys() - FIXED.keys()

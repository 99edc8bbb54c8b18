"""`lockstep security init`: the lines that it prints start a secure cluster."""

import json
import re
import shlex
from pathlib import Path

import pytest

from support.ports import free_ports
from support.processes import clean_environment, program, run_program

pytestmark = pytest.mark.e2e


def test_printed_lines_start_servers_that_only_the_printed_client_may_use(tmp_path: Path) -> None:
    made = run_program("lockstep.cli.main", "security", "init", str(tmp_path / "the files"), "--broker", "broker-a")
    assert made.returncode == 0, made.stderr
    nameserver_port, broker_port = free_ports(2)
    text = made.stdout.replace("\\\n", "").replace("9876", str(nameserver_port)).replace("10911", str(broker_port))
    text = text.replace("HOST:", "127.0.0.1:")
    nameserver, broker = (shlex.split(line)[1:] for line in re.findall(r"^  lockstep (?:nameserver|broker) .*$", text, re.MULTILINE))
    (url,) = (shlex.split(line)[1].partition("=")[2] for line in text.splitlines() if line.startswith("  export LOCKSTEP_NAMESERVER="))
    assert f'  Producer("my-service", nameserver="{url}")' in text.splitlines()
    with (
        program("lockstep.cli.main", *nameserver, event="nameserver.started"),
        program("lockstep.cli.main", *broker, event="broker.started", directory=tmp_path),
    ):
        asked = run_program("lockstep.cli.main", "cluster", "--json", environment=clean_environment(LOCKSTEP_NAMESERVER=url))
        assert asked.returncode == 0, asked.stderr
        assert [(each["name"], each["reached"]) for each in json.loads(asked.stdout)["brokers"]] == [("broker-a", True)]
        for plain, words in [
            (f"127.0.0.1:{nameserver_port}", "requires TLS: connect with TLS"),
            (url.replace("admin@", "").partition("&password_file")[0], "requires a login"),
        ]:
            refused = run_program("lockstep.cli.main", "cluster", environment=clean_environment(LOCKSTEP_NAMESERVER=plain))
            assert refused.returncode == 1
            assert words in " ".join(refused.stderr.split())

"""`lockstep up`, and the commands against the cluster that it starts."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from lockstep.cli.standalone import BROKER_PORT_AFTER, VIP_PORT_BEFORE, StandaloneCluster, next_steps
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.host import Host
from support.http import raw, raw_response
from support.java_requests import send
from support.java_wire import JSON, java_wire
from support.ports import END, FIRST, is_free
from support.processes import clean_environment, program, run_program

pytestmark = pytest.mark.usefixtures("forked_programs")

CLI = "lockstep.cli.main"


@pytest.mark.e2e
def test_cluster_of_two_brokers_stores_and_keeps_messages(tmp_path: Path) -> None:
    up = (CLI, "up", "--port", "0", "--brokers", "2", "--store", str(tmp_path))
    with program(*up, event="up.started") as running:
        environment = clean_environment(LOCKSTEP_NAMESERVER=running.started["nameserver"])

        def lockstep(*arguments: str) -> Any:
            ended = run_program(CLI, *arguments, "--json", environment=environment)
            assert ended.returncode == 0, ended.stderr
            return json.loads(ended.stdout)

        assert [(b["name"], b["registered"], b["reached"]) for b in lockstep("cluster")["brokers"]] == [
            ("broker-a", True, True),
            ("broker-b", True, True),
        ]
        assert lockstep("topic", "create", "orders", "--queues", "2")["created"]
        first = lockstep("send", "orders", "one", "--sharding-key", "k", "--key", "key-1", "--tag", "t", "--property", "tenant=a")
        second = lockstep("send", "orders", "two", "--sharding-key", "k")
        assert (second["broker"], second["queue_id"], second["queue_offset"]) == (first["broker"], first["queue_id"], 1)
        found = lockstep("message", "show", first["offset_message_id"])
        assert (found["body"], found["keys"], found["tags"], found["sharding_key"]) == ("one", ["key-1"], "t", "k")
        assert found["properties"]["tenant"] == "a"
        tailed = run_program(CLI, "tail", "orders", "--from-start", "--count", "2", "--json", environment=environment)
        assert [json.loads(line)["body"] for line in tailed.stdout.splitlines()] == ["one", "two"]
        assert sum(queue["max_offset"] for queue in lockstep("topic", "show", "orders")["queues"]) == 2
        assert lockstep("group", "list")["groups"] == []
        unknown = run_program(CLI, "group", "show", "nobody", environment=environment)
        assert (unknown.returncode, unknown.stderr.count("\n")) == (1, 1)
        assert running.stop(signal.SIGINT) == 0
    with program(*up, event="up.started") as again:
        environment = clean_environment(LOCKSTEP_NAMESERVER=again.started["nameserver"])
        tailed = run_program(CLI, "tail", "orders", "--from-start", "--count", "2", "--json", environment=environment)
        assert [json.loads(line)["body"] for line in tailed.stdout.splitlines()] == ["one", "two"]
        assert again.stop() == 0


def free_ports(*after: int) -> int:
    """Return a free port, with free ones after it."""
    return next(port for port in range(FIRST, END, 100) if all(is_free(port + each) for each in (0, *after)))


@pytest.mark.e2e
async def test_java_clients_with_their_defaults_reach_each_broker_at_its_port_minus_2_and_may_trace(tmp_path: Path) -> None:
    port = free_ports(BROKER_PORT_AFTER, BROKER_PORT_AFTER - VIP_PORT_BEFORE)
    with program(CLI, "up", "--port", str(port), "--trace-topic", "--store", str(tmp_path), event="up.started") as running:
        async with java_wire(f"127.0.0.1:{port + BROKER_PORT_AFTER - VIP_PORT_BEFORE}", JSON) as wire:
            sent = await wire.call(310, send(), b"x")
        assert (sent.code, sent.fields["TRACE_ON"]) == (0, "true"), sent.remark
        assert running.stop(signal.SIGINT) == 0


async def read(url: str, path: str) -> tuple[int, str]:
    address = url.removeprefix("http://").rstrip("/")
    return await raw(address, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())


@pytest.mark.e2e
async def test_dashboard_runs_with_the_cluster_and_stops_with_it_although_browsers_are_connected(tmp_path: Path) -> None:
    with program(CLI, "up", "--port", "0", "--dashboard", "--store", str(tmp_path), event="up.started") as running:
        url = running.started["dashboard"]
        assert (await read(url, "/livez")) == (200, "ok\n")
        while "broker-a</th>" not in (page := await read(url, "/"))[1]:
            assert page[0] == 200
        idle = socket.create_connection(url.removeprefix("http://").rstrip("/").rsplit(":", 1))
        with idle:
            assert running.stop(signal.SIGINT) == 0
        assert running.process.stderr is not None
        assert f"Dashboard: {url}" in running.process.stderr.read()


@pytest.mark.e2e
def test_secure_cluster_serves_the_printed_client_and_no_other_one(tmp_path: Path) -> None:
    up = (CLI, "up", "--secure", "--port", "0", "--brokers", "2", "--store", str(tmp_path))

    def lockstep(*arguments: str, nameserver: str) -> "subprocess.CompletedProcess[str]":
        return run_program(CLI, *arguments, environment=clean_environment(LOCKSTEP_NAMESERVER=nameserver))

    with program(*up, event="up.started") as running:
        url = running.started["nameserver"]
        assert lockstep("send", "greetings", "hello", nameserver=url).returncode == 0
        tailed = lockstep("tail", "greetings", "--from-start", "--count", "1", "--json", nameserver=url)
        assert json.loads(tailed.stdout)["body"] == "hello", tailed.stderr
        address = url.partition("@")[2].partition("/")[0]
        for other, words in [
            (address, "requires TLS: connect with TLS"),
            (f"lockstep://{address}/?tls_ca={tmp_path / 'security' / 'ca.pem'}", "this server requires a login"),
        ]:
            refused = lockstep("send", "greetings", "hello", nameserver=other)
            assert refused.returncode == 1
            assert words in " ".join(refused.stderr.split())
        assert running.stop(signal.SIGINT) == 0
        assert running.process.stderr is not None
        printed = running.process.stderr.read()
        assert f"\n  export LOCKSTEP_NAMESERVER='{url}'\n" in printed
        assert f'Producer("my-service", nameserver="{url}")' in printed
    kept = {name: (tmp_path / "security" / name).read_bytes() for name in ("ca.pem", "users.toml", "admin.password", "broker-b.password")}
    with program(*up, event="up.started") as again:
        found = lockstep("tail", "greetings", "--from-start", "--count", "1", "--json", nameserver=again.started["nameserver"])
        assert json.loads(found.stdout)["body"] == "hello", found.stderr
        assert again.stop() == 0
    assert {name: (tmp_path / "security" / name).read_bytes() for name in kept} == kept


@pytest.mark.e2e
async def test_dashboard_of_a_secure_cluster_lets_the_administrator_in(tmp_path: Path) -> None:
    with program(CLI, "up", "--secure", "--dashboard", "--port", "0", "--store", str(tmp_path), event="up.started") as running:
        url = running.started["dashboard"]
        assert (await read(url, "/"))[0] == 401
        form = urlencode({"user": "admin", "password": (tmp_path / "security" / "admin.password").read_text().strip(), "then": "/doctor"})
        address = url.removeprefix("http://").rstrip("/")
        fields = f"Host: {address}\r\nOrigin: http://{address}\r\nContent-Type: application/x-www-form-urlencoded\r\nConnection: close\r\n"
        request = f"POST /login HTTP/1.1\r\n{fields}Content-Length: {len(form)}\r\n\r\n{form}"
        status, headers, _ = await raw_response(address, request.encode())
        assert (status, headers["location"]) == (303, "/doctor")
        assert running.stop() == 0


@pytest.mark.e2e
def test_taken_port_of_the_dashboard_ends_up_with_one_line(tmp_path: Path) -> None:
    port = free_ports(4, BROKER_PORT_AFTER)
    with socket.create_server(("127.0.0.1", port + 4)):
        ended = run_program(CLI, "up", "--port", str(port), "--dashboard", "--store", str(tmp_path))
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert f"the dashboard can't listen on 127.0.0.1:{port + 4}" in ended.stderr


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["up", "--dashboard"], "starlette", "dashboard"),
        (["dashboard"], "starlette", "dashboard"),
        (["up", "--secure"], "cryptography", "secure"),
        (["up", "--secure"], "tomlkit", "secure"),
    ],
)
def test_start_without_its_extra_names_what_to_install(arguments: list[str], module: str, extra: str, tmp_path: Path) -> None:
    without = f"import sys; sys.modules[{module!r}] = None; from lockstep.cli.main import main; main({arguments!r})"
    ended = subprocess.run(
        [sys.executable, "-c", without], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    advice = f"lockstep: {module} is not installed: it belongs to the extra [{extra}]; run: pip install 'lockstep-mq[{extra}]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", advice)
    assert list(tmp_path.iterdir()) == [], "nothing was started"


def test_dashboard_is_on_a_port_that_follows_from_the_nameservers() -> None:
    ports = [StandaloneCluster(Host.real(), store="dir", port=port, broker_count=1).dashboard_port for port in (9876, 0)]
    assert ports == [9880, 0]


def test_brokers_have_their_own_ports_and_directories() -> None:
    laptop = StandaloneCluster(Host.real(), store="dir", port=9876, broker_count=2)
    configs = [laptop.broker_config(index, "127.0.0.1:9876") for index in range(2)]
    assert [(c.name, c.listen, c.store) for c in configs] == [
        ("broker-a", ("127.0.0.1:10911", "vip=127.0.0.1:10909"), "dir/broker-a"),
        ("broker-b", ("127.0.0.1:10921", "vip=127.0.0.1:10919"), "dir/broker-b"),
    ]
    assert all(config.auto_create_topics and not config.trace_topic for config in configs)
    traced = StandaloneCluster(Host.real(), store="dir", port=9876, broker_count=1, trace_topic=True)
    assert traced.broker_config(0, "127.0.0.1:9876").trace_topic


def test_port_0_gives_each_broker_a_free_port() -> None:
    assert StandaloneCluster(Host.real(), store="dir", port=0, broker_count=1).broker_config(0, "127.0.0.1:1").listen == ("127.0.0.1:0",)


def test_broker_port_above_65535_is_rejected() -> None:
    assert StandaloneCluster(Host.real(), store="d", port=64_500, broker_count=1).broker_config(0, "127.0.0.1:64500").listen == (
        "127.0.0.1:65535",
        "vip=127.0.0.1:65533",
    )
    with pytest.raises(ConfigError, match="broker-a would listen on port 65536"):
        StandaloneCluster(Host.real(), store="dir", port=64_501, broker_count=1).broker_config(0, "127.0.0.1:64501")


def test_next_steps_name_the_nameserver_only_if_commands_would_use_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    brokers = {"broker-a": "127.0.0.1:10911"}
    monkeypatch.setenv("LOCKSTEP_CLIENT_FILE", str(tmp_path / "client.toml"))
    assert "export" not in next_steps("127.0.0.1:9876", brokers, "dir")
    assert "export LOCKSTEP_NAMESERVER=127.0.0.1:1234" in next_steps("127.0.0.1:1234", brokers, "dir")
    (tmp_path / "client.toml").touch()
    assert "export LOCKSTEP_NAMESERVER=127.0.0.1:9876" in next_steps("127.0.0.1:9876", brokers, "dir")


def test_next_steps_name_the_dashboard_only_if_there_is_one() -> None:
    brokers = {"broker-a": "127.0.0.1:10911"}
    assert "Dashboard" not in next_steps("127.0.0.1:9876", brokers, "dir")
    assert "Dashboard: http://127.0.0.1:9880/\n" in next_steps("127.0.0.1:9876", brokers, "dir", "http://127.0.0.1:9880/")

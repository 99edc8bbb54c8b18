"""Every command against a real cluster, as users and scripts run it: stdout, at most one line on stderr, an exit code."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.headers.pull import SUBSCRIPTION, SUSPEND
from support.background import background
from support.native import native
from support.processes import LIMIT_S, clean_environment, program, run_program

pytestmark = pytest.mark.e2e

CLI = "lockstep.cli.main"
MIB = 1 << 20
Ended = subprocess.CompletedProcess[str]


@dataclass
class Cluster:
    """`lockstep up` with two brokers, a topic `good` that a group consumes, a topic `orders` with one message."""

    address: str
    message: dict[str, Any]

    def run(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Ended:
        ended = subprocess.run(
            [sys.executable, "-m", CLI, *arguments],
            input=stdin,
            capture_output=True,
            timeout=LIMIT_S,
            env=clean_environment(**{"LOCKSTEP_NAMESERVER": self.address, **environment}),
            check=False,
        )
        return Ended(ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode())

    def done(self, *arguments: str, **more: Any) -> str:
        """Return its stdout; it must succeed and print nothing on stderr."""
        ended = self.run(*arguments, **more)
        assert (ended.returncode, ended.stderr) == (0, ""), ended
        return ended.stdout

    def json(self, *arguments: str, **more: Any) -> Any:
        """Return the JSON document that it prints."""
        text = self.done(*arguments, "--json", **more)
        assert text.count("\n") == 1, text
        return json.loads(text)

    def misused(self, *arguments: str, **more: Any) -> str:
        """Return the one line on stderr."""
        ended = self.run(*arguments, **more)
        assert ended.returncode == 2, ended
        assert ended.stderr.startswith("lockstep: "), ended
        assert ended.stderr.count("\n") == 1, ended.stderr
        return ended.stderr


def side_by_side(run: Callable[..., Ended], commands: Sequence[Sequence[str]]) -> list[Ended]:
    """Run several commands concurrently, because the start of Python takes most of the time."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda arguments: run(*arguments), commands))


@pytest.fixture(scope="module")
def lockstep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("commands")
    up = ("-m", CLI, "up", "--port", "0", "--brokers", "2", "--store", str(folder / "store"))
    with background(folder, "up", *up, ready="up.started") as running:
        cluster = Cluster(running.started("up.started")["nameserver"], {})
        cluster.message = cluster.json("send", "orders", "hello", "--key", "k-1", "--tag", "paid", "--property", "tenant=a")
        good = ("-m", "support.good_pair", "--nameserver", cluster.address, "--topic", "good")
        with background(folder, "pair", *good, ready="pair.ready") as pair:
            pair.started("pair.progress")
            yield cluster


# --------------------------------------------------------------------------------------------------------- ordinary use


def test_created_topic_is_listed_and_shown(lockstep: Cluster) -> None:
    made = lockstep.json("topic", "create", "bills", "--queues", "3")
    assert (made["topic"], made["created"]) == ("bills", True)
    counts = [(each["broker_name"], each["write_queue_count"], each["read_queue_count"]) for each in made["entries"]]
    assert counts == [("broker-a", 3, 3), ("broker-b", 3, 3)]
    assert [(e["broker_name"], e["write_queue_count"]) for e in made["entries"]] == [("broker-a", 3), ("broker-b", 3)]
    assert "topic bills exists already: 3 queues on broker-a, 3 queues on broker-b" in lockstep.done("topic", "create", "bills", "-q", "3")
    listed = {each["topic"]: each for each in lockstep.json("topic", "list")["topics"]}
    assert listed["bills"] == {"topic": "bills", "queues": 6, "brokers": ["broker-a", "broker-b"], "version": 1}
    assert {"good", "orders"} < set(listed)
    assert "bills" in lockstep.done("topic", "list")
    shown = lockstep.json("topic", "show", "orders")
    assert sum(queue["max_offset"] for queue in shown["queues"]) == 1
    assert [queue["number"] for queue in shown["queues"]] == list(range(len(shown["queues"])))
    assert "queues to write" in lockstep.done("topic", "show", "bills")


def test_forget_deleted_forgets_only_first_deletions(lockstep: Cluster) -> None:
    """All brokers and nameservers forget the first deletions of topics; second deletions stay, unless --all is given."""
    for name, times in (("forgotten", 1), ("remembered", 2)):
        for _ in range(times):
            lockstep.done("topic", "create", name)
            lockstep.done("topic", "delete", name)
    first = lockstep.json("topic", "forget-deleted")
    assert first["forgotten"] >= 1
    assert lockstep.json("topic", "forget-deleted") == {"forgotten": 0, "remembered": first["remembered"]}
    assert lockstep.json("topic", "forget-deleted", "--all") == {"forgotten": first["remembered"], "remembered": 0}
    assert first["remembered"] >= 1
    lockstep.done("topic", "create", "forgotten")
    assert "0 deleted topics were forgotten at 3 servers, 0 are still remembered" in lockstep.done("topic", "forget-deleted")


def test_group_list_and_show_print_members_and_owners(lockstep: Cluster) -> None:
    (line,) = [each for each in lockstep.json("group", "list")["groups"] if each["group"] == "good-consumers"]
    assert "good-consumers" in lockstep.done("group", "list")
    shown = lockstep.json("group", "show", "good-consumers")
    assert (line["kind"], line["members"]) == ("ordered" if shown["ordered"] else "concurrent", len(shown["members"]))
    assert line["lag"] is not None
    assert len(shown["members"]) == 1
    owner = shown["members"][0]["client_id"]
    assert {queue["owner"] for queue in shown["queues"]} == {owner}
    assert all(isinstance(queue["epoch"], str) and int(queue["epoch"]) > 1 << 32 for queue in shown["queues"])
    assert shown["failed"] == {}
    table = lockstep.done("group", "show", "good-consumers")
    assert owner in table
    assert "ordered" in table


def test_cluster_lists_both_brokers(lockstep: Cluster) -> None:
    brokers = lockstep.json("cluster")["brokers"]
    assert [(b["name"], b["cluster"], b["registered"], b["reached"]) for b in brokers] == [
        ("broker-a", "DefaultCluster", True, True),
        ("broker-b", "DefaultCluster", True, True),
    ]
    assert brokers[0]["address"] in lockstep.done("cluster")


def test_send_stores_arguments_and_stdin_unchanged(lockstep: Cluster) -> None:
    keyed = [lockstep.json("send", "bytes", "-", "--sharding-key", "k", stdin=data) for data in (b"\x00\xff\n", b"\r\n second")]
    assert [(each["queue_id"], each["queue_offset"]) for each in keyed] == [(keyed[0]["queue_id"], 0), (keyed[0]["queue_id"], 1)]
    shown = lockstep.json("message", "show", keyed[0]["offset_message_id"])
    assert (shown["body"], shown["bodyHex"]) == (None, "00ff0a")
    assert lockstep.done("send", "bytes", "plain").startswith("SEND_OK bytes@broker-")


def test_message_show_prints_body_keys_tags_and_properties(lockstep: Cluster) -> None:
    sent = lockstep.message
    shown = lockstep.json("message", "show", sent["offset_message_id"])
    assert (shown["body"], shown["keys"], shown["tags"], shown["properties"]["tenant"]) == ("hello", ["k-1"], "paid", "a")
    assert (shown["broker"], shown["queue_id"], shown["message_id"]) == (sent["broker"], sent["queue_id"], sent["message_id"])
    assert "hello" in lockstep.done("message", "show", sent["offset_message_id"].lower(), "--broker", sent["broker"])


@pytest.mark.parametrize("ignored", [False, True], ids=["", "SIGINT was ignored at first"])
def test_tail_prints_stored_and_new_messages_and_ends_with_ctrl_c(lockstep: Cluster, ignored: bool) -> None:
    ended = lockstep.run("tail", "orders", "--from-start", "--count", "1", "--tag", "paid", "--json")
    assert (ended.returncode, json.loads(ended.stdout)["body"]) == (0, "hello")
    background = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if ignored else []
    tail = subprocess.Popen(
        [*background, sys.executable, "-m", CLI, "tail", "orders"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(LOCKSTEP_NAMESERVER=lockstep.address),
    )
    try:
        assert tail.stderr is not None
        assert tail.stdout is not None
        assert "queues of orders; press Ctrl-C to stop" in tail.stderr.readline()
        lockstep.json("send", "orders", "while you look\x1b[2J", "--key", "k-2")
        line = tail.stdout.readline()
        assert "key=k-2" in line
        assert line.endswith("while you look\\x1b[2J\n")
        tail.send_signal(signal.SIGINT)
        assert tail.wait(30) == 0
        assert tail.stderr.read() == ""
    finally:
        tail.kill()
        tail.communicate()


@pytest.mark.slow
def test_bench_json_has_rates_and_latencies(lockstep: Cluster) -> None:
    ended = lockstep.run("bench", "--count", "100", "--queues", "2", "--json")
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout)
    assert {"phase", "messages", "body_bytes", "rate", "p50_us", "p99_us"} <= set(figures[0])
    assert all(figure["messages"] >= 100 for figure in figures)


# ------------------------------------------------------------------------------------------------------------ how they fail


FAILURES: list[tuple[Sequence[str], Sequence[str]]] = [
    (("topic", "create", "good", "--queues", "9"), ("topic good exists already with 4 queues on broker-a",)),
    (("topic", "show", "nowhere"), ("nowhere", "lockstep topic create nowhere")),
    (("group", "show", "nobody"), ("nobody", "lockstep group list")),
    (("tail", "nowhere"), ("nowhere", "lockstep topic create nowhere")),
    (("message", "show", "7F00000100002A9F0000000000FFFFFF"), ("was not found", "broker-a", "broker-b")),
    (("message", "show", "7F00000100002A9F0000000000FFFFFF", "--broker", "nobody"), ("no broker is named 'nobody'", "broker-a, broker-b")),
    (("message", "show", "F" * 32), ("F" * 32, "which a producer gave")),
]
MISUSES: list[tuple[Sequence[str], Sequence[str]]] = [
    (("topic", "create", "a b"), ("topic 'a b'", "allowing only")),
    (("topic", "create", "LOCKSTEP_SYS_STATE"), ("LOCKSTEP_SYS_STATE",)),
    (("send", "orders", ""), ("body", "1 byte")),
    (("send", "orders", "x", "--property", "tenant"), ("'tenant'", "NAME=VALUE")),
    (("send", "orders", "x", "--tag", "a || b"), ("tag",)),
    (("message", "show", "not-an-id"), ("not-an-id",)),
    (("cluster", "--nameserver", "nowhere"), ("nowhere", "HOST:PORT")),
]
"""Requests that are never possible, in any state of the cluster."""


def test_rejected_command_prints_the_reason_in_one_line(lockstep: Cluster) -> None:
    rows = [(1, *row) for row in FAILURES] + [(2, *row) for row in MISUSES]
    for (code, arguments, words), ended in zip(rows, side_by_side(lockstep.run, [arguments for _, arguments, _ in rows]), strict=True):
        assert (ended.returncode, ended.stdout) == (code, ""), (arguments, ended)
        assert ended.stderr.startswith("lockstep: "), (arguments, ended)
        assert ended.stderr.count("\n") == 1, (arguments, ended.stderr)
        for word in words:
            assert word in ended.stderr, arguments


def test_too_large_body_is_rejected_with_both_sizes(lockstep: Cluster) -> None:
    said = lockstep.misused("send", "orders", "-", stdin=bytes(5 * MIB))
    assert str(5 * MIB) in said
    assert str(4 * MIB) in said


USAGE: list[tuple[Sequence[str], str]] = [
    (("tpic", "list"), "topic"),
    (("topic", "create", "x", "--qeues", "3"), "--queues"),
    (("send", "orders"), "body"),
    (("topic", "create", "x", "--queues", "0"), "queues"),
    (("up", "--log-level", "loud"), "debug, info, warning, error"),
]


def test_usage_error_exits_with_2_and_suggests_a_correction(lockstep: Cluster) -> None:
    for (arguments, words), ended in zip(USAGE, side_by_side(lockstep.run, [arguments for arguments, _ in USAGE]), strict=True):
        assert ended.returncode == 2, (arguments, ended)
        assert words in ended.stderr, arguments
        assert "Traceback" not in ended.stderr


def test_help_is_printed_on_stdout_with_exit_0(lockstep: Cluster) -> None:
    commands = [(*command.split(), "--help") for command in ("", "topic create", "broker")]
    for arguments, ended in zip(commands, side_by_side(lockstep.run, commands), strict=True):
        assert (ended.returncode, ended.stderr) == (0, ""), arguments
        assert "--help" in ended.stdout


# ------------------------------------------------------------------------------------------------------- settings of a broker


def config_rows(shown: str) -> dict[str, tuple[str, str]]:
    """Return key → (value, origin)."""
    rows = [line.partition("  # ") for line in shown.splitlines()]
    return {row.partition(" = ")[0].strip(): (row.partition(" = ")[2].strip(), origin.strip()) for row, _, origin in rows}


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    listen = '["127.0.0.1:0", "two=127.0.0.1:0"]'
    file.write_text(f'name = "from-file"\nflush = "sync"\nlisten = {listen}\nsegment_mib = 7\nretention_hours = 1.5\n')
    environment = clean_environment(LOCKSTEP_NAME="from-env", LOCKSTEP_SEGMENT_MIB="8", LOCKSTEP_NAMESERVER="127.0.0.1:1")
    command = ("broker", "--config", str(file), "--segment-mib", "9", "--show-config")
    shown = run_program(CLI, *command, environment=environment)
    assert (shown.returncode, shown.stderr) == (0, "")
    rows = config_rows(shown.stdout)
    assert rows["name"] == ('"from-env"', "environment LOCKSTEP_NAME")
    assert rows["flush"] == ('"sync"', f"file {file}")
    assert rows["listen"] == (listen, f"file {file}")
    assert rows["segment_mib"] == ("9", "flag --segment-mib")
    assert rows["nameserver"] == ('"127.0.0.1:1"', "environment LOCKSTEP_NAMESERVER")
    assert rows["cluster"] == ('"DefaultCluster"', "default")
    again = tmp_path / "shown.toml"
    again.write_text(shown.stdout)
    repeated = config_rows(run_program(CLI, "broker", "--config", str(again), "--show-config").stdout)
    assert {key: value for key, (value, _) in repeated.items()} == {key: value for key, (value, _) in rows.items()}


@pytest.mark.parametrize("server", ["broker", "nameserver"])
def test_unknown_setting_is_rejected_with_a_suggestion(tmp_path: Path, server: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text('lsten = "127.0.0.1:0"\n')
    requested = {
        f"lockstep {server}: unknown argument '--lsten'; did you mean '--listen'?": run_program(CLI, server, "--lsten", "x"),
        f"settings file {file}: unknown key 'lsten'; did you mean 'listen'?": run_program(CLI, server, "--config", str(file)),
    }
    for words, ended in requested.items():
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended
        assert words in ended.stderr


def test_server_runs_in_an_environment_of_kubernetes_and_warns_of_an_unknown_variable() -> None:
    links = {"LOCKSTEP_BROKER_PORT": "tcp://10.96.0.7:10911", "LOCKSTEP_NAMESERVER_SERVICE_HOST": "10.96.0.8"}
    environment = clean_environment(**links, LOCKSTEP_LSTEN="x")
    with program("lockstep.nameserver", "--listen", "127.0.0.1:0", event="nameserver.started", environment=environment) as nameserver:
        assert nameserver.stop() == 0
    ended = run_program(CLI, "broker", "--nameserver", "127.0.0.1:1", "--store", "/dev/null", "--name", "a", environment=environment)
    (warned,) = [json.loads(line) for line in ended.stdout.splitlines() if "settings.unknown_variable" in line]
    assert (warned["level"], warned["variable"], warned["did_you_mean"]) == ("warning", "LOCKSTEP_LSTEN", "LOCKSTEP_LISTEN")


SETTINGS: list[tuple[Sequence[str], str]] = [
    (("--flush", "never"), "'never'"),
    (("--disconnect-grace-ms", "10"), "disconnect_grace_ms = '10' (flag --disconnect-grace-ms)"),
    (("--name", "a b"), "broker name 'a b'"),
    (("--listen", "outside=127.0.0.1:0"), "internal"),
    (("--config", "/no/such/file"), "/no/such/file"),
]


def test_invalid_setting_prints_one_line_and_exits_with_2(lockstep: Cluster) -> None:
    commands = [("broker", *arguments) for arguments, _ in SETTINGS]
    for (arguments, words), ended in zip(SETTINGS, side_by_side(lockstep.run, commands), strict=True):
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), (arguments, ended)
        assert words in ended.stderr, arguments


# ------------------------------------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_drains_a_broker_and_ends_it_with_exit_0(tmp_path: Path, number: signal.Signals) -> None:
    """Pending requests get a response, stored messages stay, the next start has nothing to cut."""
    command = ("-m", CLI, "broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "s"))
    with background(tmp_path, "broker", *command, ready="broker.started") as broker:
        async with native(broker.started("broker.started")["address"]) as client:
            await client.create("orders")
            held = client.pull("orders", sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=20_000)
            assert (await client.send("orders", b"kept", 0)).code == ResponseCode.SUCCESS
            assert (await held).code == ResponseCode.SUCCESS
            waiting = client.pull("orders", 1, sys_flag=SUBSCRIPTION | SUSPEND, suspend_timeout_millis=20_000)
            await client.send_request(12_345)
            broker.process.send_signal(number)
            assert (await waiting).code == ResponseCode.PULL_NOT_FOUND
        assert broker.process.wait(30) == 0
        assert broker.complained.read_text() == ""
        assert broker.find("broker.stopped", clean=True)
    with background(tmp_path, "again", *command, ready="broker.started") as broker:
        started = broker.started("broker.started")
        assert (started["clean"], started["cut_bytes"]) == (True, 0)
        async with native(started["address"]) as client:
            assert await client.everything("orders") == [b"kept"]


def group_queues(nameserver: str) -> list[dict[str, int]]:
    """Return the queues of the group of topic `good`, of which at least one has progress."""
    environment = clean_environment(LOCKSTEP_NAMESERVER=nameserver)
    shown = run_program(CLI, "group", "show", "good-consumers", "--json", environment=environment)
    return [queue for queue in json.loads(shown.stdout)["queues"] if queue["committed_offset"] >= 0]


def test_ctrl_c_ends_up_under_load_and_nothing_is_lost(tmp_path: Path) -> None:
    up = ("-m", CLI, "up", "--port", "0", "--store", str(tmp_path / "store"))
    with background(tmp_path, "up", *up, ready="up.started") as running:
        where = running.started("up.started")["nameserver"]
        assert "Press Ctrl-C to stop." in running.complained.read_text()
        good = ("-m", "support.good_pair", "--nameserver", where, "--topic", "good")
        with background(tmp_path, "pair", *good, ready="pair.ready") as pair:
            pair.started("pair.progress")
            while not (committed := sum(queue["committed_offset"] for queue in group_queues(where))):
                pass
            assert running.stop(signal.SIGINT) == 0
            handled = pair.find("pair.progress")[-1]["handled"]
            assert "Traceback" not in running.complained.read_text()
    with background(tmp_path, "up-again", *up, ready="up.started") as running:
        where = running.started("up.started")["nameserver"]
        queues = group_queues(where)
        assert sum(queue["committed_offset"] for queue in queues) >= committed
        assert sum(queue["max_offset"] for queue in queues) >= handled


def test_signal_ends_a_broker_that_waits_for_a_nameserver(tmp_path: Path) -> None:
    command = ("-m", CLI, "broker", "--listen", "127.0.0.1:0", "--store", str(tmp_path / "s"), "--nameserver", "127.0.0.1:1")
    with background(tmp_path, "broker", *command, ready="registration.changed") as broker:
        assert broker.started("registration.changed")["standing"] == "unreachable"
        assert broker.stop() == 0
        assert broker.complained.read_text() == ""
        assert broker.find("broker.started") == []


def test_up_on_a_store_in_use_prints_one_line_and_exits_with_6(tmp_path: Path) -> None:
    up = (CLI, "up", "--port", "0", "--store", str(tmp_path / "store"))
    with program(*up, event="up.started"):
        ended = run_program(*up)
        assert (ended.returncode, ended.stderr.count("\n")) == (6, 1), ended
        assert f"{tmp_path / 'store' / 'broker-a'} is open in another broker" in ended.stderr


def test_closed_pipe_ends_a_command_without_an_error(lockstep: Cluster) -> None:
    """As in `lockstep tail … | head -1`."""
    tail = f"{sys.executable} -m {CLI} tail good --from-start --json | head -1 > /dev/null; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", tail],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=clean_environment(LOCKSTEP_NAMESERVER=lockstep.address),
        check=False,
    )
    assert ended.returncode == 0, ended
    assert ended.stderr.count("\n") == 1, "only that it reads"

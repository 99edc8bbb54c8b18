"""lockstep broker config get | set, and the command line that they share with `lockstep broker`, which runs a broker."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.broker.config import BrokerConfig
from lockstep.broker.running_settings import FIXED
from lockstep.cli import main as cli
from lockstep.cli.servers import runs_server
from lockstep.protocol.errors import NoPermissionError
from lockstep.runtime.configuration.settings import declared_settings
from support.fake_broker import FakeBroker, ThreadedCluster


@pytest.fixture
def cluster() -> Iterator[ThreadedCluster]:
    with ThreadedCluster(FakeBroker("broker-a"), FakeBroker("broker-b")) as made:
        yield made


@pytest.fixture
def config(cluster: ThreadedCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LOCKSTEP_NAMESERVER", cluster.nameserver)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(("broker", "config", *arguments))
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


def retention(cluster: ThreadedCluster) -> list[float]:
    return [broker.settings.config.retention_hours for broker in cluster.brokers.values()]


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_get_shows_each_setting_of_each_broker_with_its_origin(config: Any) -> None:
    config("set", "--broker", "broker-b", "retention_hours=24")
    code, out, err = config("get")
    assert (code, err) == (0, "")
    head, *rows = lines(out)
    assert head == ["setting", "broker", "value", "from", "changes", "at", "run", "time"]
    assert [row[:2] for row in rows] == [[name, broker] for name in declared_settings(BrokerConfig) for broker in ("broker-a", "broker-b")]
    assert ["retention_hours", "broker-a", "72", "default", "yes"] in rows
    assert ["retention_hours", "broker-b", "24", "set", "at", "run", "time", "yes"] in rows
    assert ["flush", "broker-a", '"async"', "default", "no"] in rows
    assert ["log_mib_max", "broker-a", "none", "default", "yes"] in rows


def test_get_of_one_setting_at_one_broker_says_why_it_needs_a_restart(config: Any) -> None:
    code, out, _ = config("get", "--broker", "broker-a", "disconnect-grace-ms")
    _, row, why = out.splitlines()
    assert (code, row.split()) == (0, ["disconnect_grace_ms", "broker-a", "3000", "default", "no"])
    assert why == f"disconnect_grace_ms needs a restart of the broker: {FIXED['disconnect_grace_ms']}"


def test_json_of_get_has_typed_values(config: Any) -> None:
    config("set", "--all", "log_mib_max=5")
    code, out, _ = config("get", "--json")
    document = json.loads(out)
    assert (code, list(document["brokers"]), document["failed"]) == (0, ["broker-a", "broker-b"], {})
    found = {each["setting"]: each for each in document["brokers"]["broker-a"]}
    assert {name: found[name]["value"] for name in ("listen", "insecure", "flush", "log_mib_max", "store")} == {
        "listen": ["127.0.0.1:10911"],
        "insecure": False,
        "flush": "async",
        "log_mib_max": 5,
        "store": None,
    }
    assert found["log_mib_max"] == {
        "setting": "log_mib_max",
        "value": 5,
        "origin": "set at run time",
        "start_value": None,
        "start_origin": "default",
        "changeable": True,
        "fixed_because": None,
    }


def test_set_at_all_brokers_prints_before_and_after_and_how_to_keep_it(config: Any, cluster: ThreadedCluster) -> None:
    code, out, err = config("set", "--all", "retention_hours=24", "auto-create-topics=yes")
    assert (code, err, retention(cluster)) == (0, "", [24, 24])
    assert out.splitlines() == [
        "broker-a: auto_create_topics: false → true; a restart brings back false (default)",
        "broker-a: retention_hours: 72 → 24; a restart brings back 72 (default)",
        "broker-b: auto_create_topics: false → true; a restart brings back false (default)",
        "broker-b: retention_hours: 72 → 24; a restart brings back 72 (default)",
        "to keep this after a restart: start it with --auto-create-topics --retention-hours 24, "
        "or the variables LOCKSTEP_AUTO_CREATE_TOPICS=true LOCKSTEP_RETENTION_HOURS=24, "
        "or auto_create_topics = true, retention_hours = 24 in its settings file",
    ]


def test_set_of_the_value_in_force_or_that_of_the_start_says_so(config: Any) -> None:
    config("set", "--broker", "broker-a", "log_mib_max=5")
    code, out, _ = config("set", "--broker", "broker-a", "log_mib_max=none", "groups_max=10000")
    assert (code, out.splitlines()) == (
        0,
        [
            "broker-a: groups_max was 10000 already, the value of its start (default)",
            "broker-a: log_mib_max: 5 → none, the value of its start (default)",
        ],
    )


def test_json_of_set_has_the_value_before_each_change(config: Any) -> None:
    code, out, _ = config("set", "--broker", "broker-b", "retention_hours=1.5", "--json")
    (change,) = json.loads(out)["brokers"]["broker-b"]
    assert (code, change["before"], change["value"], change["origin"]) == (0, 72, 1.5, "set at run time")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("set", "retention_hours=1"), 2, "which broker? Use either --broker NAME or --all"),
        (("set", "retention_hours=1", "--all", "--broker", "broker-a"), 2, "which broker?"),
        (("set", "--all", "retention_hours"), 2, "'retention_hours': expected SETTING=VALUE"),
        (("set", "--all", "=1"), 2, "'=1': expected SETTING=VALUE"),
        (("set", "--all", "retention_hours=1", "retention-hours=2"), 2, "retention_hours is named twice"),
        (("set", "--broker", "broker-c", "retention_hours=1"), 1, "no broker is named 'broker-c'; did you mean"),
        (("set", "--all", "retention_hours=1", "flush=sync"), 1, "flush needs a restart: start the broker with --flush sync"),
        (("set", "--all", "retention_hours=1", "group_max=2"), 1, "unknown setting 'group_max'; did you mean 'groups_max'?"),
        (("set", "--all", "retention_hours=1", "groups_max=0"), 1, "groups_max = '0'"),
        (("get", "group_max"), 2, "unknown setting 'group_max'; did you mean 'groups_max'?"),
        (("get", "--broker", "broker-c"), 1, "no broker is named 'broker-c'"),
    ],
)
def test_invalid_request_prints_one_line_and_changes_nothing(
    config: Any, cluster: ThreadedCluster, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ended, out, err = config(*arguments)
    assert (ended, out, err.count("\n"), retention(cluster)) == (code, "", 1, [72, 72])
    assert words in err


def test_broker_that_refuses_or_is_away_is_named_and_the_others_change(
    config: Any, cluster: ThreadedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(texts: dict[str, str], peer: str) -> None:
        raise NoPermissionError("not now")

    monkeypatch.setattr(cluster.brokers["broker-b"].settings, "change", refuse)
    code, out, err = config("set", "--all", "retention_hours=24")
    assert (code, retention(cluster)) == (1, [24, 72])
    assert "broker-a: retention_hours: 72 → 24" in out
    assert err == "lockstep: some brokers don't have the change: broker broker-b: NO_PERMISSION: not now\n"
    cluster.run(cluster.brokers["broker-b"].stop())
    code, out, err = config("get", "retention_hours")
    assert (code, lines(out)[1][:3]) == (1, ["retention_hours", "broker-a", "24"])
    assert "the result is incomplete: broker broker-b" in err


@pytest.mark.parametrize(
    ("arguments", "runs"),
    [
        (["broker"], True),
        (["broker", "--name", "b"], True),
        (["broker", "-h"], True),
        (["nameserver", "--listen", "127.0.0.1:0"], True),
        (["broker", "config"], False),
        (["broker", "config", "get", "--json"], False),
        (["broker", "nothing"], False),
        (["topic", "list"], False),
        ([], False),
    ],
)
def test_name_of_a_server_with_nothing_or_an_option_after_it_runs_the_server(arguments: list[str], runs: bool) -> None:
    assert runs_server(arguments) is runs


def test_help_of_broker_names_its_subcommand_and_unknown_subcommands_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for arguments in (("broker", "--help"), ("broker", "config", "--help"), ("broker", "drop")):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        out, err = capsys.readouterr()
        said[arguments] = (ended.value.code, " ".join((out + err).split()))
    assert said["broker", "--help"][0] == 0
    assert "`lockstep broker config` shows and changes those of a running one" in said["broker", "--help"][1]
    assert said["broker", "config", "--help"][0] == 0
    assert "Show and change the settings of running brokers." in said["broker", "config", "--help"][1]
    assert (said["broker", "drop"][0], "No such command 'drop'" in said["broker", "drop"][1]) == (2, True)

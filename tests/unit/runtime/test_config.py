"""Settings: precedence of the sources, refusals, and the output of --show-config."""

import json
import tomllib
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.config import BrokerConfig
from lockstep.broker.witness.config import WitnessConfig
from lockstep.dashboard.config import DashboardConfig
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.config import (
    CLIENT_VARIABLES,
    PROGRAM_OPTIONS,
    LoadedSettings,
    Settings,
    describe_options,
    load,
    parse_texts,
    setting_name,
    toml_text,
    variable_of,
)
from lockstep.runtime.configuration.settings import Range, declared_settings
from lockstep.runtime.connections.listen_address import ListenAddress, Waiver, check_exposure, parse_listen_address, parse_listeners


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """A program for tests."""

    name: Annotated[str, "Its name, 100% free."] = "broker-a"
    listen: Annotated[tuple[str, ...], Range(1), "Where it listens."] = ("127.0.0.1:1",)
    flush: Literal["async", "sync"] = "async"
    store: str | None = None
    port_count: Annotated[int, Range(1, 9)] = 3
    auto_create_topics: bool = False
    log_mib_max: Annotated[int | None, Range(1)] = None
    waive: bool | Literal["plaintext", "anonymous"] = False
    hours: Annotated[float, Range(0, above=True)] = 72

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "forbidden":
            raise ConfigError("the name 'forbidden' is taken")


@dataclass(frozen=True, kw_only=True)
class Needy(Settings):
    nameserver: str


def loaded(*argv: str, env: dict[str, str] | None = None) -> LoadedSettings[Config]:
    return load(Config, argv, "prog", environment=env or {})


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "prog.toml"
    path.write_text('name = "from-file"\nlisten = ["a=127.0.0.1:7", "b=127.0.0.1:8"]\nport_count = 4\n')
    return path


def test_settings_have_their_defaults() -> None:
    config, origins, unknown = loaded()
    assert not unknown
    assert config == Config()
    assert set(origins.values()) == {"default"}
    assert list(origins) == list(declared_settings(Config))


def test_file_overrides_default_environment_overrides_file_and_flag_overrides_environment(toml: Path) -> None:
    config, origins, _ = loaded("--config", str(toml), "--port-count", "6", env={"LOCKSTEP_NAME": "from-env", "LOCKSTEP_PORT_COUNT": "5"})
    assert (config.listen, origins["listen"]) == (("a=127.0.0.1:7", "b=127.0.0.1:8"), f"file {toml}")
    assert (config.name, origins["name"]) == ("from-env", "environment LOCKSTEP_NAME")
    assert (config.port_count, origins["port_count"]) == (6, "flag --port-count")
    assert (config.flush, origins["flush"]) == ("async", "default")


def test_settings_file_is_selected_by_the_environment_or_the_flag_which_has_precedence(toml: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('name = "other"\n')
    assert loaded(env={"LOCKSTEP_CONFIG": str(toml)}).config.name == "from-file"
    assert loaded("--config", str(other), env={"LOCKSTEP_CONFIG": str(toml)}).config.name == "other"


def test_list_setting_is_a_repeated_flag_or_comma_separated() -> None:
    assert loaded("--listen", "x=h:1", "--listen", "h:2").config.listen == ("x=h:1", "h:2")
    assert loaded(env={"LOCKSTEP_LISTEN": "x=h:1, h:2,"}).config.listen == ("x=h:1", "h:2")


def test_single_string_in_the_file_is_a_list_of_one(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text('listen = "h:1"\n')
    assert loaded("--config", str(path)).config.listen == ("h:1",)


@pytest.mark.parametrize(
    ("argv", "env", "value"),
    [
        (["--auto-create-topics"], {}, True),
        *(([], {"LOCKSTEP_AUTO_CREATE_TOPICS": word}, True) for word in ("1", "true", "TRUE", "yes", "on")),
        *(([], {"LOCKSTEP_AUTO_CREATE_TOPICS": word}, False) for word in ("0", "false", "False", "no", "off")),
    ],
)
def test_boolean_setting_is_a_flag_or_a_word(argv: list[str], env: dict[str, str], value: bool) -> None:
    assert loaded(*argv, env=env).config.auto_create_topics is value
    assert loaded("--no-auto-create-topics", env=env).config.auto_create_topics is False


@pytest.mark.parametrize("word", ["plaintext", "anonymous"])
def test_flag_may_have_a_word(word: str, tmp_path: Path) -> None:
    file = tmp_path / "prog.toml"
    file.write_text(f'waive = "{word}"\n')
    for argv, env, value in [
        ([], {}, False),
        (["--waive"], {"LOCKSTEP_WAIVE": word}, True),
        (["--waive", "--name", "x"], {}, True),
        (["--waive", word], {"LOCKSTEP_WAIVE": "true"}, word),
        ([], {"LOCKSTEP_WAIVE": word}, word),
        ([], {"LOCKSTEP_WAIVE": "on"}, True),
        (["--config", str(file)], {}, word),
        (["--config", str(file), "--no-waive"], {}, False),
    ]:
        assert loaded(*argv, env=env).config.waive == value


def test_variables_of_the_native_kernels_are_not_settings() -> None:
    assert loaded(env={"LOCKSTEP_PURE_PYTHON": "1", "LOCKSTEP_NATIVE": "require"})[0] == Config()


@pytest.mark.parametrize(
    ("argv", "env", "message"),
    [
        (["--flus", "sync"], {}, "unknown argument '--flus'; did you mean '--flush'?"),
        (["--port_count=3"], {}, "unknown argument '--port_count=3'; did you mean '--port-count'?"),
        (["--zzz"], {}, "unknown argument '--zzz'; known are --auto-create-topics"),
        (["stray"], {}, "unknown argument 'stray'"),
        (["--flush", "later"], {}, "argument --flush: invalid choice: 'later'"),
        (["--waive", "later"], {}, "argument --waive: invalid choice: 'later'"),
        ([], {"LOCKSTEP_WAIVE": "later"}, "waive = 'later' (environment LOCKSTEP_WAIVE): expected true or false or plaintext or anonymous"),
        ([], {"LOCKSTEP_FLUSH": "later"}, "flush = 'later' (environment LOCKSTEP_FLUSH): expected async or sync"),
        (["--port-count", "10"], {}, "port_count = '10' (flag --port-count): expected an integer in 1 … 9"),
        (["--port-count", "x"], {}, "port_count = 'x' (flag --port-count): expected an integer in 1 … 9"),
        (["--log-mib-max", "0"], {}, "log_mib_max = '0' (flag --log-mib-max): expected an integer of at least 1"),
        (["--port-count", "0"], {}, "port_count = '0' (flag --port-count): expected an integer in 1 … 9"),
        (["--port-count", "3.5"], {}, "port_count = '3.5' (flag --port-count): expected an integer in 1 … 9"),
        (["--hours", "0"], {}, "hours = '0' (flag --hours): expected a number above 0"),
        (["--hours", "nan"], {}, "hours = 'nan' (flag --hours): expected a number above 0"),
        (["--hours", "inf"], {}, "hours = 'inf' (flag --hours): expected a number above 0"),
        (
            ["--port-count", "10"],
            {"LOCKSTEP_FLUSH": "later"},
            "flush = 'later' (environment LOCKSTEP_FLUSH): expected async or sync; port_count = '10' (flag --port-count): expected",
        ),
        ([], {"LOCKSTEP_LISTEN": ","}, "listen = [] (environment LOCKSTEP_LISTEN): expected a list of texts, at least one"),
        (
            [],
            {"LOCKSTEP_AUTO_CREATE_TOPICS": "maybe"},
            "auto_create_topics = 'maybe' (environment LOCKSTEP_AUTO_CREATE_TOPICS): expected true",
        ),
        (["--name", "forbidden"], {}, "the name 'forbidden' is taken"),
        (["--config", "/nowhere/x.toml"], {}, "settings file /nowhere/x.toml: No such file or directory"),
    ],
)
def test_invalid_setting_is_rejected_with_a_one_line_error(argv: list[str], env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(*argv, env=env)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("auto-create-topics = true", "unknown key 'auto-create-topics'; did you mean 'auto_create_topics'?"),
        ("nmae = 'x'", "unknown key 'nmae'; did you mean 'name'?"),
        ("name = ", "Invalid value"),
        ("port_count = 'x'", "port_count = 'x' (file "),
        ("listen = 5", ": expected a list of texts"),
        ("listen = [1]", "listen = [1] (file "),
        ("name = 3", ": expected a text"),
        ("port_count = true", "port_count = True (file "),
        ("auto_create_topics = 1", ": expected true or false"),
    ],
)
def test_error_for_an_invalid_settings_file_names_it(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        loaded("--config", str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_error_for_a_missing_setting_lists_every_way_to_set_it() -> None:
    with pytest.raises(ConfigError, match="nameserver is needed: --nameserver, LOCKSTEP_NAMESERVER or TOML key nameserver"):
        load(Needy, [], "prog", environment={})


def test_environment_variables_of_other_programs_are_ignored() -> None:
    for others in ("LOCKSTEP_NAMESERVER", "LOCKSTEP_RETENTION_HOURS", "LOCKSTEP_INSECURE"):
        assert loaded(env={others: "h:1", "LOCKSTEP_TEST_SLOW": "1", "PATH": "x"}).config == Config()


def test_unknown_variable_is_reported_with_the_one_that_may_be_meant() -> None:
    found = loaded(env={"LOCKSTEP_STOER": "x", "LOCKSTEP_FLUSH": "sync", "LOCKSTEP_QQQQQQQQ": "1"})
    assert found.unknown == {"LOCKSTEP_STOER": "LOCKSTEP_STORE", "LOCKSTEP_QQQQQQQQ": None}
    assert found.config == replace(Config(), flush="sync")


KUBERNETES = {
    "LOCKSTEP_BROKER_SERVICE_HOST": "10.96.0.7",
    "LOCKSTEP_BROKER_SERVICE_PORT": "10911",
    "LOCKSTEP_BROKER_SERVICE_PORT_CLIENTS": "10911",
    "LOCKSTEP_BROKER_PORT": "tcp://10.96.0.7:10911",
    "LOCKSTEP_BROKER_PORT_10911_TCP": "tcp://10.96.0.7:10911",
    "LOCKSTEP_BROKER_PORT_10911_TCP_PROTO": "tcp",
    "LOCKSTEP_BROKER_PORT_10911_TCP_PORT": "10911",
    "LOCKSTEP_BROKER_PORT_10911_TCP_ADDR": "10.96.0.7",
    "LOCKSTEP_NAMESERVER_SERVICE_HOST": "10.96.0.8",
    "LOCKSTEP_PORT": "tcp://10.96.0.9:9876",
    "LOCKSTEP_SERVICE_HOST": "10.96.0.9",
}
"""What Kubernetes sets in every container of a namespace with the services lockstep-broker, lockstep-nameserver and lockstep."""


def test_variables_that_kubernetes_and_compose_set_are_ignored() -> None:
    found = loaded(env={**KUBERNETES, "LOCKSTEP_HOST": "192.168.1.5", "LOCKSTEP_BIND": "0.0.0.0"})
    assert found.config == Config()
    assert not found.unknown


def test_variable_that_only_ends_like_one_of_kubernetes_is_reported() -> None:
    assert set(loaded(env={"LOCKSTEP_LISTEN_PORT": "9876", "LOCKSTEP_SERVICE": "x"}).unknown) == {
        "LOCKSTEP_LISTEN_PORT",
        "LOCKSTEP_SERVICE",
    }


def test_program_options_list_the_settings_of_all_programs() -> None:
    programs = BrokerConfig, NameserverConfig, WitnessConfig, DashboardConfig
    assert {"config", *(name for program in programs for name in declared_settings(program))} == PROGRAM_OPTIONS
    assert not CLIENT_VARIABLES & set(map(variable_of, PROGRAM_OPTIONS)), "a variable means one thing"


def test_show_config_prints_a_loadable_file_with_the_origin_of_each_setting(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--config", str(toml), "--port-count", "6", "--auto-create-topics"]
    with pytest.raises(SystemExit) as ended:
        loaded(*argv, "--show-config")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert loaded("--config", str(again)).config == loaded(*argv).config
    by_key = {line.split(" = ")[0]: line.rpartition("# ")[2] for line in shown.splitlines() if " = " in line}
    assert by_key["name"] == f"file {toml}"
    assert by_key["port_count"] == "flag --port-count"
    assert by_key["flush"] == "default"
    assert "# store is not set" in shown


def test_help_lists_options_defaults_and_environment_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        loaded("--help")
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in ("A program for tests.", "--port-count", "(default: 3)", "100% free", "May be repeated", "--config FILE", "LOCKSTEP_"):
        assert part in text


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        loaded().config.name = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("internal=0.0.0.0:10911", ListenAddress("internal", "0.0.0.0", 10911)),
        ("127.0.0.1:0", ListenAddress("internal", "127.0.0.1", 0)),
        ("external=[::1]:20911", ListenAddress("external", "::1", 20911)),
    ],
)
def test_listener_is_a_name_and_an_address(text: str, listen: ListenAddress) -> None:
    assert parse_listen_address(text) == listen


@pytest.mark.parametrize("text", ["", "=127.0.0.1:1", "internal=", "internal=127.0.0.1", "internal=127.0.0.1:x"])
def test_invalid_listener_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_listen_address(text)


def test_duplicate_listener_name_is_rejected() -> None:
    assert parse_listeners(["h:1", "external=h:2"]) == {"internal": ("h", 1), "external": ("h", 2)}
    with pytest.raises(ConfigError, match="'internal' occurs twice"):
        parse_listeners(["h:1", "internal=h:2"])


@pytest.mark.parametrize(
    ("host", "reachable"),
    [
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.7", True),
        ("broker.example", True),
        ("", True),
    ],
)
def test_listener_that_other_machines_reach_is_refused(host: str, reachable: bool) -> None:
    listeners = {"internal": ("127.0.0.1", 1), "external": (host, 2)}
    if reachable:
        with pytest.raises(ConfigError, match=r"listener 'external' .*--insecure"):
            check_exposure(listeners, False, tls=False, users=False)
    else:
        check_exposure(listeners, False, tls=False, users=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tls": "allow"}, r"and does not require TLS \(leave --tls allow out\): change"),
        ({"users": "optional"}, r"and requires no login \(leave --users optional out\): change"),
    ],
)
def test_server_that_is_switched_over_is_told_what_it_lacks(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        NameserverConfig(listen=("0.0.0.0:1",), tls_cert="a.pem", tls_key="a.key", security="users.toml", **settings)  # type: ignore[arg-type]


TLS_HINT, USERS_HINT = "`lockstep security init", "`lockstep user add"


@pytest.mark.parametrize(
    ("tls", "users", "waiver", "words"),
    [
        (False, False, False, [TLS_HINT, USERS_HINT, "pass --insecure if"]),
        (True, False, False, [USERS_HINT, "pass --insecure anonymous if"]),
        (False, True, False, [TLS_HINT, "pass --insecure plaintext if"]),
        (False, False, "plaintext", [USERS_HINT, "pass --insecure if"]),
        (False, False, "anonymous", [TLS_HINT, "pass --insecure if"]),
        (True, False, "plaintext", [USERS_HINT, "pass --insecure anonymous if"]),
        (False, True, "anonymous", [TLS_HINT, "pass --insecure plaintext if"]),
        (True, True, False, []),
        (False, True, "plaintext", []),
        (True, False, "anonymous", []),
        *((tls, users, True, []) for tls in (True, False) for users in (True, False)),
    ],
)
def test_what_a_reachable_listener_lacks_has_to_be_waived(tls: bool, users: bool, waiver: Waiver, words: list[str]) -> None:
    listeners = {"internal": ("0.0.0.0", 1)}
    if not words:
        check_exposure(listeners, waiver, tls=tls, users=users)
        return
    with pytest.raises(ConfigError) as caught:
        check_exposure(listeners, waiver, tls=tls, users=users)
    assert [word for word in (TLS_HINT, USERS_HINT) if word in str(caught.value)] == words[:-1]
    assert words[-1] in str(caught.value)


@given(st.text(max_size=30))
def test_any_text_is_a_listener_or_a_config_error(text: str) -> None:
    try:
        listen = parse_listen_address(text)
    except ConfigError:
        return
    assert listen.name
    assert 0 <= listen.port <= 65_535


def test_texts_of_settings_are_parsed_as_variables_and_none_removes_an_optional_value() -> None:
    texts = {"port_count": "6", "auto_create_topics": "YES", "listen": "a, b", "store": "none", "name": "none"}
    assert parse_texts(Config, texts, "a request") == {
        "port_count": 6,
        "auto_create_topics": True,
        "listen": ("a", "b"),
        "store": None,
        "name": "none",
    }
    with pytest.raises(ConfigError, match=r"port_count = 'x' \(a request\): expected an integer"):
        parse_texts(Config, {"port_count": "x"}, "a request")


def test_name_of_a_setting_has_dashes_or_underscores() -> None:
    assert setting_name(Config, "port-count") == setting_name(Config, "port_count") == "port_count"
    with pytest.raises(ConfigError, match=r"unknown setting 'prt-count'; did you mean 'port_count'\?"):
        setting_name(Config, "prt-count")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"port_count": 6, "name": "a b"}, "with --port-count 6 --name 'a b'"),
        ({"auto_create_topics": True, "insecure": False}, "with --auto-create-topics --no-insecure"),
        ({"insecure": "plaintext"}, "with --insecure plaintext"),
        ({"listen": ("a", "b")}, "with --listen a --listen b"),
        ({"store": None}, "without --store"),
        ({"store": None, "listen": (), "port_count": 6}, "with --port-count 6 and without --store --listen"),
        ({}, ""),
    ],
)
def test_options_that_give_settings_their_values_are_described(values: dict[str, object], words: str) -> None:
    assert describe_options(values) == words


@pytest.mark.parametrize(
    ("value", "text"), [(72.0, "72"), (1.5, "1.5"), (True, "true"), ('a"b', '"a\\"b"'), (("a", "b"), '["a", "b"]'), (12, "12")]
)
def test_value_is_written_as_toml_and_json_have_it(value: object, text: str) -> None:
    assert toml_text(value) == text
    assert tomllib.loads(f"key = {text}")["key"] == json.loads(text)

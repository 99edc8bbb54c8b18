"""A program's settings: defaults < TOML file (--config) < environment (LOCKSTEP_…) < flags. An unknown flag or key of the file is an error,
an unknown variable a warning, each with a suggestion: variables are set by others too, as Kubernetes does.

A program declares its settings as the fields of a dataclass, a subclass of Settings, with their help texts in their types:
`topics_max: Annotated[int, Range(1, 65_536), "Topics of the cluster; one more is refused."] = 16_384`. The flag --topics-max, the variable
LOCKSTEP_TOPICS_MAX and the TOML key topics_max set it. A tuple of strings is a flag that may be repeated, a TOML array, and in the
environment a comma-separated list. `insecure: bool | Literal["plaintext"]` is a flag that may have a word after it.
"""

import argparse
import difflib
import json
import os
import re
import shlex
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.native import KERNEL_VARIABLES
from lockstep.runtime.configuration.settings import Setting, check_settings, declared_settings

ENVIRONMENT_PREFIX = "LOCKSTEP_"
PROGRAM_OPTIONS = frozenset(
    {
        *(
            "config",
            "name",
            "cluster",
            "listen",
            "advertise",
            "nameserver",
            "store",
            "flush",
            "auto_create_topics",
            "topics_max",
            "insecure",
        ),
        *(
            "disconnect_grace_ms",
            "session_timeout_ms",
            "segment_mib",
            "retention_hours",
            "scrub_kib_per_s",
            "disk_used_percent_max",
            "log_mib_max",
        ),
        *(
            "disk_reserve_mib",
            "cut_corrupt",
            "adopt",
            "adopt_without",
            "replica_of",
            "ha",
            "silence_ms",
            "alone",
            "catch_up_mib_s",
            "log_level",
            "admin_listen",
            "audit",
            "admin_host",
            "admin_token_file",
            "admin_open",
            "connections_max",
            "message_delay_level",
            "timer_days_max",
            "timer_pending_max",
            "timer_mib_max",
            "transaction_check_ms",
            "transaction_hours_max",
            "transactions_open_max",
        ),
        *("held_pulls_max", "held_pulls_per_group_max", "groups_max", "progress_max", "members_max", "subscriptions_mib_max"),
        *("group_idle_days", "trace_topic", "host_name", "root_path", "no_bodies", "allow_changes", "require_login"),
        *("tls", "tls_cert", "tls_key", "tls_client_ca"),
        *("security", "users", "security_last_good", "core"),
    }
)
"""The options of all lockstep programs: a shell may set variables for all of them, and a program ignores those of the others."""
TEST_PREFIX = ENVIRONMENT_PREFIX + "TEST_"
"""Variables of the test suite, which programs ignore."""
COMPOSE_VARIABLES = frozenset({"LOCKSTEP_HOST", "LOCKSTEP_BIND"})
"""Variables of docker-compose.yml, which programs ignore."""
CLIENT_VARIABLES = frozenset(
    {"LOCKSTEP_URL", "LOCKSTEP_USER", "LOCKSTEP_PASSWORD", "LOCKSTEP_PASSWORD_FILE", "LOCKSTEP_LOGIN", "LOCKSTEP_CLIENT_FILE"}
)
"""Variables of clients and commands, which servers ignore."""
SERVICE_LINK = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
SERVICE_URL = re.compile(r"(tcp|udp|sctp)://")
"""Kubernetes sets such variables in each container for each service of the namespace, here for one whose name begins with lockstep."""
NUMBER_END = 1 << 63
"""Numbers that a request sets fit int64, so that what is computed from them is finite."""
NOT_SET = "none"
"""Stands for None where no value can be left out."""
SHOWN_MAX = 200
"""Characters of an invalid name or value that an error shows."""
BOOLEANS = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}
"""Texts for a setting that is true or false, in any case."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of a program's settings. A subclass that compares fields with each other extends `__post_init__`, and raises ConfigError.

    It has no slots: `super()` would not find the class that @dataclass replaces then."""

    def __post_init__(self) -> None:
        check_settings(self)


S = TypeVar("S", bound=Settings)


class LoadedSettings(NamedTuple, Generic[S]):
    """Settings and the origin of each value: "default", "file …", "environment …" or "flag …"."""

    config: S
    origins: dict[str, str]
    unknown: dict[str, str | None]
    """Variables with the prefix that no program of lockstep has, and for each the known one with the nearest name, if one is near."""


def load(
    model: type[S],
    argv: Sequence[str],
    prog: str,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedSettings[S]:
    """Load the settings of a program. Raise ConfigError if they are invalid, and SystemExit(0) after --help and --show-config."""
    settings = declared_settings(model)
    parsed, unknown = _parser(model, prog).parse_known_args(argv)
    if unknown:
        options = [*map(_flag, settings), "--config", "--show-config", "--help"]
        raise ConfigError(f"unknown argument {unknown[0]!r}{did_you_mean(unknown[0].partition('=')[0], options)}")
    flags = vars(parsed)
    show, path = flags.pop("show_config"), flags.pop("config")
    environment = os.environ if environment is None else environment
    variables = _from_environment(settings, environment)
    named = variables.pop("config", None)
    path = path or named
    values: dict[str, Any] = {}
    origins = dict.fromkeys(settings, "default")
    for key, value in (_from_file(settings, path) if path else {}).items():
        values[key], origins[key] = value, f"file {path}"
    for key, value in variables.items():
        values[key], origins[key] = value, f"environment {variable_of(key)}"
    for key, value in flags.items():
        if value is not None:
            values[key], origins[key] = value, f"flag {_flag(key)}"
    config = model(**_converted(settings, values, origins))
    if show:
        print(render(config, origins))
        raise SystemExit(0)
    return LoadedSettings(config, origins, unknown_variables(settings, environment))


def setting_name(model: type[Settings], text: str) -> str:
    """Return the name of the setting that a text names, with "-" or "_". Raise ConfigError, with the nearest name, if there is none."""
    name, settings = text.replace("-", "_"), declared_settings(model)
    if name not in settings:
        raise ConfigError(f"unknown setting {text[:SHOWN_MAX]!r}{did_you_mean(name[:SHOWN_MAX], settings)}")
    return name


def parse_texts(model: type[Settings], texts: Mapping[str, str], origin: str) -> dict[str, Any]:
    """Return the values that texts stand for, by the name of the setting: as in variables of the environment, or "none" for no value.

    Raise ConfigError, one line with every text that is invalid.
    """
    settings = {name: declared_settings(model)[name] for name in texts}
    values = {
        name: None if text == NOT_SET and settings[name].accepts(None) else _parsed(settings[name], text) for name, text in texts.items()
    }
    converted = _converted(settings, values, dict.fromkeys(texts, origin))
    if large := [name for name, value in converted.items() if isinstance(value, int | float) and value >= NUMBER_END]:
        raise ConfigError(f"{', '.join(large)}: a number of at most {NUMBER_END - 1:,} is expected")
    return converted


def unknown_variables(known: Iterable[str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that look like settings and are none, each with the one that may be meant. `known`: the program's settings."""
    ours = {*known, *PROGRAM_OPTIONS}
    ignored = {*map(variable_of, ours), *KERNEL_VARIABLES, *COMPOSE_VARIABLES, *CLIENT_VARIABLES}
    unknown = [
        name
        for name, text in environment.items()
        if name.startswith(ENVIRONMENT_PREFIX) and not name.startswith(TEST_PREFIX) and name not in ignored and not _is_link(name, text)
    ]
    near = {name: _nearest(name.removeprefix(ENVIRONMENT_PREFIX).lower(), ours) for name in sorted(unknown)}
    return {name: None if key is None else variable_of(key) for name, key in near.items()}


def _is_link(name: str, text: str) -> bool:
    """Return whether Kubernetes sets this variable."""
    return bool(SERVICE_LINK.fullmatch(name) or (name.endswith("_PORT") and SERVICE_URL.match(text)))


def render(config: Settings, origins: Mapping[str, str]) -> str:
    """Return the effective settings as a TOML file that reproduces them, each with its origin as a comment."""
    rows = [
        (f"{key} = {toml_text(getattr(config, key))}" if getattr(config, key) is not None else f"# {key} is not set", origins[key])
        for key in origins
    ]
    width = max(len(row) for row, _ in rows)
    return "\n".join(f"{row:<{width}}  # {origin}" for row, origin in rows)


def toml_text(value: object) -> str:
    """Return a value as a TOML file has it, which JSON can read too."""
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value if isinstance(value, bool | int | float) else str(getattr(value, "value", value)), ensure_ascii=False)


def describe_options(values: Mapping[str, object]) -> str:
    """Describe the options that give settings these values: "with --a 1 --no-b and without --c"."""
    options: list[str] = []
    left_out: list[str] = []
    for key, value in values.items():
        if value is None or value == ():
            left_out.append(_flag(key))
        elif isinstance(value, bool):
            options.append(_flag(key) if value else _flag(f"no_{key}"))
        else:
            options += [f"{_flag(key)} {shlex.quote(str(each))}" for each in (value if isinstance(value, tuple) else (value,))]
    return " and ".join(f"{word} {' '.join(each)}" for word, each in (("with", options), ("without", left_out)) if each)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def variable_of(key: str) -> str:
    """Return the variable of the environment that sets a setting."""
    return ENVIRONMENT_PREFIX + key.upper()


def _is_list(setting: Setting) -> bool:
    return any(typing.get_origin(kind) is tuple for kind in setting.kinds)


def _choices(setting: Setting) -> tuple[str, ...] | None:
    return next((typing.get_args(kind) for kind in setting.kinds if typing.get_origin(kind) is Literal), None)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser(model: type[Settings], prog: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description=(model.__doc__ or "").strip().splitlines()[0] if model.__doc__ else None,
        epilog=f"Every option has an environment name ({ENVIRONMENT_PREFIX}…) and a TOML key of the same name.",
        allow_abbrev=False,
    )
    for key, setting in declared_settings(model).items():
        help_text, default = setting.help, setting.default
        if default is not MISSING and default not in (None, (), False):
            shown = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
            help_text += f" (default: {shown})"
        help_text = help_text.replace("%", "%%")
        if bool in setting.kinds and (words := _choices(setting)):
            parser.add_argument(_flag(key), dest=key, default=None, nargs="?", const=True, choices=words, help=help_text)
            parser.add_argument(_flag(f"no_{key}"), dest=key, default=None, action="store_false", help=argparse.SUPPRESS)
        elif bool in setting.kinds:
            parser.add_argument(_flag(key), dest=key, default=None, action=argparse.BooleanOptionalAction, help=help_text)
        elif _is_list(setting):
            parser.add_argument(_flag(key), dest=key, default=None, action="append", help=help_text + " May be repeated.")
        else:
            parser.add_argument(_flag(key), dest=key, default=None, choices=_choices(setting), help=help_text)
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of these options")
    parser.add_argument("--show-config", action="store_true", help="print the effective values and their origin, and exit")
    return parser


def _from_file(settings: Mapping[str, Setting], path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:  # world: the settings are read before there is a Host
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path}: {error}") from error
    for key, value in table.items():
        if key not in settings:
            raise ConfigError(f"settings file {path}: unknown key {key!r}{did_you_mean(key, settings)}")
        if _is_list(settings[key]) and isinstance(value, str):
            table[key] = [value]
    return table


def _from_environment(settings: Mapping[str, Setting], environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in ("config", *settings):
        text = environment.get(variable_of(key))
        if text is not None:
            values[key] = _parsed(settings[key], text) if key in settings else text
    return values


def _parsed(setting: Setting, text: str) -> Any:
    """Return the items of a list that a text has, or the text."""
    return [part.strip() for part in text.split(",") if part.strip()] if _is_list(setting) else text


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the nearest known one, or else all."""
    near = _nearest(name if name.startswith("-") else name.replace("-", "_"), known)
    return f"; did you mean {near!r}?" if near is not None else f"; known are {', '.join(sorted(known))}"


def _converted(settings: Mapping[str, Setting], values: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, Any]:
    """Return the values in the types of their settings. Raise ConfigError, one line with every setting that is missing or invalid."""
    converted = {key: _convert(settings[key], value) for key, value in values.items()}
    problems: list[str] = []
    for key, setting in settings.items():
        if key not in values:
            if setting.default is MISSING:
                problems.append(f"{key} is needed: {_flag(key)}, {variable_of(key)} or TOML key {key}")
        elif not setting.accepts(converted[key]):
            problems.append(f"{key} = {repr(values[key])[:SHOWN_MAX]} ({origins[key]}): expected {_expected(setting)}")
    if problems:
        raise ConfigError("; ".join(problems))
    return converted


def _convert(setting: Setting, value: Any) -> Any:
    """Return a list as a tuple, and the number or truth value that a text stands for. Anything else is returned as it is."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, str):
        return value
    if bool in setting.kinds:
        return BOOLEANS.get(value.lower(), value)
    for number in (int, float):
        if number in setting.kinds:
            try:
                return number(value)
            except ValueError:
                return value
    return value


def _expected(setting: Setting) -> str:
    """Describe the valid values of a setting."""
    if words := [*(("true", "false") if bool in setting.kinds else ()), *(_choices(setting) or ())]:
        return " or ".join(words)
    if _is_list(setting):
        return "a list of texts" if setting.limits is None else "a list of texts, at least one"
    what = "an integer" if int in setting.kinds else "a number" if float in setting.kinds else "a text"
    return what if setting.limits is None else f"{what} {setting.limits}"

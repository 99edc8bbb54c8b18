"""A program's settings: defaults < TOML file (--config) < environment (LOCKSTEP_…) < flags. Unknown settings are rejected with a
suggestion.

A program describes its settings as a subclass of Settings: one field per option, with its help text as description. `flush` is then the
flag --flush, the variable LOCKSTEP_FLUSH and the TOML key flush. A tuple of strings is a flag that may be repeated, a TOML array, and in
the environment a comma-separated list.
"""

import argparse
import difflib
import json
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from lockstep.protocol.errors import ConfigError

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
        *("disk_reserve_mib", "cut_corrupt", "log_level", "admin_listen", "admin_host", "connections_max", "message_delay_level"),
        *("held_pulls_max", "held_pulls_per_group_max", "groups_max", "progress_max", "members_max", "subscriptions_mib_max"),
        "group_idle_days",
    }
)
"""The options of all lockstep programs: a shell may set variables for all of them, and a program ignores those of the others."""
TEST_PREFIX = ENVIRONMENT_PREFIX + "TEST_"
"""Variables of the test suite, which programs ignore."""


class Settings(BaseModel):
    """Base class of a program's settings: frozen, unknown names are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


S = TypeVar("S", bound=Settings)


class LoadedSettings(NamedTuple, Generic[S]):
    """Settings and the origin of each value: "default", "file …", "environment …" or "flag …"."""

    config: S
    origins: dict[str, str]


def load(
    model: type[S],
    argv: Sequence[str],
    prog: str,
    *,
    environment: Mapping[str, str] | None = None,
) -> LoadedSettings[S]:
    """Load the settings of a program. Raise ConfigError if they are invalid, and SystemExit(0) after --help and --show-config."""
    parsed, unknown = _parser(model, prog).parse_known_args(argv)
    if unknown:
        options = [*map(_flag, model.model_fields), "--config", "--show-config", "--help"]
        raise ConfigError(f"unknown argument {unknown[0]!r}{_suggestion(unknown[0].partition('=')[0], options)}")
    flags = vars(parsed)
    show, path = flags.pop("show_config"), flags.pop("config")
    variables = _from_environment(model, os.environ if environment is None else environment)
    named = variables.pop("config", None)
    path = path or named
    values: dict[str, Any] = {}
    origins = dict.fromkeys(model.model_fields, "default")
    for key, value in (_from_file(model, path) if path else {}).items():
        values[key], origins[key] = value, f"file {path}"
    for key, value in variables.items():
        values[key], origins[key] = value, f"environment {_variable(key)}"
    for key, value in flags.items():
        if value is not None:
            values[key], origins[key] = value, f"flag {_flag(key)}"
    try:
        config = model.model_validate({key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
    except ValidationError as error:
        raise ConfigError(_explain(model, error, origins)) from None
    if show:
        print(render(config, origins))
        raise SystemExit(0)
    return LoadedSettings(config, origins)


def render(config: Settings, origins: Mapping[str, str]) -> str:
    """Return the effective settings as a TOML file that reproduces them, each with its origin as a comment."""
    rows = [
        (f"{key} = {_toml(getattr(config, key))}" if getattr(config, key) is not None else f"# {key} is not set", origins[key])
        for key in origins
    ]
    width = max(len(row) for row, _ in rows)
    return "\n".join(f"{row:<{width}}  # {origin}" for row, origin in rows)


def _toml(value: object) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value if isinstance(value, bool | int | float) else str(getattr(value, "value", value)), ensure_ascii=False)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _variable(key: str) -> str:
    return ENVIRONMENT_PREFIX + key.upper()


def _is_list(field: FieldInfo) -> bool:
    return any(typing.get_origin(kind) in (tuple, list) for kind in (field.annotation, *typing.get_args(field.annotation)))


def _is_bool(field: FieldInfo) -> bool:
    return field.annotation is bool


def _choices(field: FieldInfo) -> tuple[str, ...] | None:
    kinds = (field.annotation, *typing.get_args(field.annotation)) if isinstance(field.annotation, types.UnionType) else (field.annotation,)
    for kind in kinds:
        if typing.get_origin(kind) is typing.Literal:
            return tuple(map(str, typing.get_args(kind)))
    return None


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
    for key, field in model.model_fields.items():
        help_text = field.description or ""
        if not field.is_required() and field.default not in (None, (), False):
            default = field.get_default(call_default_factory=True)
            shown = ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)
            help_text += f" (default: {shown})"
        help_text = help_text.replace("%", "%%")
        if _is_bool(field):
            parser.add_argument(_flag(key), dest=key, default=None, action=argparse.BooleanOptionalAction, help=help_text)
        elif _is_list(field):
            parser.add_argument(_flag(key), dest=key, default=None, action="append", help=help_text + " May be repeated.")
        else:
            parser.add_argument(_flag(key), dest=key, default=None, choices=_choices(field), help=help_text)
    parser.add_argument("--config", metavar="FILE", help="TOML file with any of these options")
    parser.add_argument("--show-config", action="store_true", help="print the effective values and their origin, and exit")
    return parser


def _from_file(model: type[Settings], path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:  # world: the settings are read before there is a Host
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path}: {error}") from error
    for key, value in table.items():
        if key not in model.model_fields:
            raise ConfigError(f"settings file {path}: unknown key {key!r}{_suggestion(key, model.model_fields)}")
        if _is_list(model.model_fields[key]) and isinstance(value, str):
            table[key] = (value,)
    return table


def _from_environment(model: type[Settings], environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    known = {_variable(key): key for key in model.model_fields}
    foreign = {_variable(key) for key in PROGRAM_OPTIONS}
    for name in sorted(environment):
        text = environment[name]
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(TEST_PREFIX):
            continue
        if name == _variable("config"):
            values["config"] = text
        elif name in known:
            listed = _is_list(model.model_fields[known[name]])
            values[known[name]] = tuple(part.strip() for part in text.split(",") if part.strip()) if listed else text
        elif name not in foreign:
            raise ConfigError(f"environment: unknown variable {name}{_suggestion(name, sorted({*known, *foreign}))}")
    return values


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name if name.startswith("-") else name.replace("-", "_"), known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"


def _explain(model: type[Settings], error: ValidationError, origins: Mapping[str, str]) -> str:
    """Return one line: the setting, its value and origin, and the expected values."""
    parts: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        key = str(problem["loc"][0]) if problem["loc"] else ""
        if not key:
            part = problem["msg"].removeprefix("Value error, ")
        elif problem["type"] == "missing":
            part = f"{key} is needed: {_flag(key)}, {_variable(key)} or TOML key {key}"
        else:
            part = f"{key} = {problem['input']!r} ({origins.get(key, 'default')}): expected {_expected(model.model_fields[key])}"
        parts.setdefault(key, part)
    return "; ".join(parts.values())


def _expected(field: FieldInfo) -> str:
    """Describe the valid values of a setting."""
    if choices := _choices(field):
        return " or ".join(choices)
    if _is_bool(field):
        return "true or false"
    if _is_list(field):
        return "a list of texts, at least one" if field.is_required() or field.default else "a list of texts"
    kinds = (field.annotation, *typing.get_args(field.annotation))
    what = "an integer" if int in kinds else "a number" if float in kinds else "a text"
    limits = {name: getattr(each, name) for each in field.metadata for name in ("gt", "ge", "le") if hasattr(each, name)}
    if "ge" in limits and "le" in limits:
        return f"{what} in {limits['ge']:,} … {limits['le']:,}"
    words = {"gt": "above", "ge": "of at least", "le": "of at most"}
    return " ".join([what, *(f"{words[name]} {limit:,}" for name, limit in limits.items())])

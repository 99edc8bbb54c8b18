"""lockstep broker config get | set."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from lockstep.cli.options import JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results
from lockstep.operations.errors import OperationError, raise_if_incomplete
from lockstep.protocol.bodies import BrokerAddress, BrokerSetting, BrokerSettings, SettingChange
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.config import NOT_SET, describe_options, did_you_mean, variable_of

BrokerOption = Annotated[str | None, typer.Option("--broker", metavar="NAME", help="The name of one broker.")]
SettingArgument = Annotated[str | None, typer.Argument(help="One setting, as in a settings file: retention_hours.")]
ChangesArgument = Annotated[
    list[str],
    typer.Argument(metavar="SETTING=VALUE", help='As in retention_hours=24. The value "none" removes one that need not be set.'),
]


def get_command(
    setting: SettingArgument = None,
    broker: BrokerOption = None,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Show the settings in force, where their values come from, and which can be changed at run time."""
    run(_get(setting, broker, nameserver, as_json))


def set_command(
    changes: ChangesArgument,
    broker: BrokerOption = None,
    all_brokers: Annotated[bool, typer.Option("--all", help="Change the settings at all brokers.")] = False,
    nameserver: NameserverOption = DEFAULT_NAMESERVER,
    as_json: JsonOption = False,
) -> None:
    """Change settings of running brokers, at once and until they end. A broker changes all the given settings or none."""
    run(_set(changes, broker, all_brokers, nameserver, as_json))


async def _get(setting: str | None, broker: str | None, nameserver: str, as_json: bool) -> None:
    admin = admin_client(nameserver)
    brokers = await _chosen(admin, broker)
    results = await gather_results({name: admin.settings(each) for name, each in brokers.items()})
    shown = _chosen_settings(results.values, setting)
    if as_json:
        print_json({"brokers": {name: list(map(_plain, settings)) for name, settings in shown.items()}, "failed": dict(results.failed)})
    else:
        place = {each.name: number for settings in shown.values() for number, each in enumerate(settings)}
        rows = [(each, name) for name, settings in shown.items() for each in settings]
        rows.sort(key=lambda row: (place[row[0].name], row[1]))
        cells = [(each.name, name, _text(each.value), each.origin, each.fixed_because is None) for each, name in rows]
        print_table(["setting", "broker", "value", "from", "changes at run time"], cells, empty="no broker has responded")
        if setting is not None:
            for reason in sorted({each.fixed_because for each, _ in rows if each.fixed_because is not None}):
                print_line(f"{rows[0][0].name} needs a restart of the broker: {reason}")
    raise_if_incomplete(results.failed)


async def _set(changes: Sequence[str], broker: str | None, all_brokers: bool, nameserver: str, as_json: bool) -> None:
    if (broker is None) is not all_brokers:
        raise ConfigError("which broker? Use either --broker NAME or --all")
    values = parse_changes(changes)
    admin = admin_client(nameserver)
    brokers = await _chosen(admin, broker)
    results = await gather_results({name: admin.change_settings(each, values) for name, each in brokers.items()})
    made = {name: reply.changes for name, reply in results.values.items()}
    if as_json:
        plain = {name: [{**_plain(each.setting), "before": _value(each.before)} for each in each_made] for name, each_made in made.items()}
        print_json({"brokers": plain, "failed": dict(results.failed)})
    else:
        for name, each_made in made.items():
            for change in each_made:
                print_line(f"{name}: {describe_change(change)}")
        if advice := _advice(change.setting for each_made in made.values() for change in each_made):
            print_line(advice)
    if results.failed:
        whole = "some brokers don't have the change" if made else "no broker has the change"
        raise OperationError(f"{whole}: {broker_reasons(results.failed)}")


async def _chosen(admin: AdminClient, broker: str | None) -> dict[str, BrokerAddress]:
    """Return the broker of this name, or all that the nameserver knows. Raise OperationError if there is none."""
    known = by_name(await admin.brokers())
    if not known:
        raise OperationError("no broker is registered at the nameserver: start one first")
    if broker is None:
        return known
    if broker not in known:
        raise OperationError(f"no broker is named {broker!r}{did_you_mean(broker, known)}")
    return {broker: known[broker]}


def _chosen_settings(replies: Mapping[str, BrokerSettings], setting: str | None) -> dict[str, list[BrokerSetting]]:
    """Return broker → all settings, or the one of this name, with "-" or "_". Raise ConfigError if no broker has it."""
    name = None if setting is None else setting.replace("-", "_")
    chosen = {broker: [each for each in reply.settings if name in (None, each.name)] for broker, reply in replies.items()}
    if name is not None and replies and not any(chosen.values()):
        known = {each.name for reply in replies.values() for each in reply.settings}
        raise ConfigError(f"unknown setting {name[:80]!r}{did_you_mean(name[:80], known)}")
    return chosen


def parse_changes(changes: Iterable[str]) -> dict[str, str]:
    """Return name → text of arguments SETTING=VALUE. Raise ConfigError for another form and for a setting that is named twice."""
    values: dict[str, str] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        name = name.replace("-", "_")
        if not name or not equals:
            raise ConfigError(f"{change[:80]!r}: expected SETTING=VALUE, as in retention_hours=24")
        if name in values:
            raise ConfigError(f"{name[:80]} is named twice")
        values[name] = text
    return values


def describe_change(change: SettingChange) -> str:
    """Describe what a change did at one broker."""
    setting, before = change.setting, _text(change.before)
    what = f"{setting.name} was {before} already"
    if change.before != setting.value:
        what = f"{setting.name}: {before} → {_text(setting.value)}"
    if setting.value == setting.start_value:
        return f"{what}, the value of its start ({setting.start_origin})"
    return f"{what}; a restart brings back {_text(setting.start_value)} ({setting.start_origin})"


def _advice(settings: Iterable[BrokerSetting]) -> str:
    """Return how to keep the changes that a restart would take back, or nothing if it would take back none."""
    kept = {each.name: each.value for each in settings if each.value != each.start_value}
    options = describe_options({name: _value(value) for name, value in kept.items()})
    set_ones = {name: value for name, value in kept.items() if value is not None}
    variables = " ".join(variable_of(name) + "=" + value.strip('"') for name, value in set_ones.items())
    lines = ", ".join(f"{name} = {value}" for name, value in set_ones.items())
    ways = [f"start it {options}", *([f"the variables {variables}", f"{lines} in its settings file"] if set_ones else [])]
    return f"to keep this after a restart: {', or '.join(ways)}" if kept else ""


def _plain(setting: BrokerSetting) -> dict[str, Any]:
    return {
        "setting": setting.name,
        "value": _value(setting.value),
        "origin": setting.origin,
        "start_value": _value(setting.start_value),
        "start_origin": setting.start_origin,
        "changeable": setting.fixed_because is None,
        "fixed_because": setting.fixed_because,
    }


def _text(value: str | None) -> str:
    return NOT_SET if value is None else value


def _value(value: str | None) -> Any:
    """Return the value that a broker has written as in a TOML file, or the text if this version can't read it."""
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        return value

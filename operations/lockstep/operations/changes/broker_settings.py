"""Change settings of running brokers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from lockstep.operations.admin_client import AdminClient, broker_reasons, by_name, gather_results
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.errors import OperationError
from lockstep.protocol.bodies import BrokerAddress, BrokerSetting, SettingChange
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.config import NOT_SET, describe_options, did_you_mean, variable_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfigSet(Operation):
    """Change settings of running brokers, at once and until they end. A broker changes all the given settings or none."""

    words = ("broker", "config", "set")
    path = "broker-config-set"

    changes: Annotated[
        tuple[str, ...],
        Argument(metavar="SETTING=VALUE", help='As in retention_hours=24. The value "none" removes one that need not be set.'),
    ]
    broker: Annotated[str | None, Option(flags=("--broker",), metavar="NAME", help="The name of one broker.")] = None
    every: Annotated[bool, Option(flags=("--all",), help="Change the settings at all brokers.")] = False

    async def plan(self, admin: AdminClient) -> Plan:
        if (self.broker is None) is not self.every:
            raise ConfigError("which broker? Use either --broker NAME or --all")
        values = parse_changes(self.changes)
        brokers = await chosen_brokers(admin, self.broker)

        async def carry_out() -> ChangeOutcome:
            results = await gather_results({name: admin.change_settings(each, values) for name, each in brokers.items()})
            made = {name: reply.changes for name, reply in results.values.items()}
            plain = {
                name: [{**setting_json(each.setting), "before": value_of(each.before)} for each in each_made]
                for name, each_made in made.items()
            }
            lines = [f"{name}: {describe_change(change)}" for name, each_made in made.items() for change in each_made]
            if advice := _advice(change.setting for each_made in made.values() for change in each_made):
                lines.append(advice)
            failed = None
            if results.failed:
                whole = "some brokers don't have the change" if made else "no broker has the change"
                failed = f"{whole}: {broker_reasons(results.failed)}"
            return ChangeOutcome(lines, {"brokers": plain, "failed": dict(results.failed)}, failed=failed)

        settings = ", ".join(f"{name} = {text}" for name, text in values.items())
        return Plan([f"{settings} at {', '.join(brokers)}, until each of them ends."], carry_out, tuple(brokers))


async def chosen_brokers(admin: AdminClient, broker: str | None) -> dict[str, BrokerAddress]:
    """Return the broker of this name, or all that the nameserver knows. Raise OperationError if there is none."""
    known = by_name(await admin.brokers())
    if not known:
        raise OperationError("no broker is registered at the nameserver: start one first")
    if broker is None:
        return known
    if broker not in known:
        raise OperationError(f"no broker is named {broker!r}{did_you_mean(broker, known)}")
    return {broker: known[broker]}


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
    setting, before = change.setting, text_of_value(change.before)
    what = f"{setting.name} was {before} already"
    if change.before != setting.value:
        what = f"{setting.name}: {before} → {text_of_value(setting.value)}"
    if setting.value == setting.start_value:
        return f"{what}, the value of its start ({setting.start_origin})"
    return f"{what}; a restart brings back {text_of_value(setting.start_value)} ({setting.start_origin})"


def _advice(settings: Iterable[BrokerSetting]) -> str:
    """Return how to keep the changes that a restart would take back, or nothing if it would take back none."""
    kept = {each.name: each.value for each in settings if each.value != each.start_value}
    options = describe_options({name: value_of(value) for name, value in kept.items()})
    set_ones = {name: value for name, value in kept.items() if value is not None}
    variables = " ".join(variable_of(name) + "=" + value.strip('"') for name, value in set_ones.items())
    lines = ", ".join(f"{name} = {value}" for name, value in set_ones.items())
    ways = [f"start it {options}", *([f"the variables {variables}", f"{lines} in its settings file"] if set_ones else [])]
    return f"to keep this after a restart: {', or '.join(ways)}" if kept else ""


def setting_json(setting: BrokerSetting) -> dict[str, Any]:
    return {
        "setting": setting.name,
        "value": value_of(setting.value),
        "origin": setting.origin,
        "start_value": value_of(setting.start_value),
        "start_origin": setting.start_origin,
        "changeable": setting.fixed_because is None,
        "fixed_because": setting.fixed_because,
    }


def text_of_value(value: str | None) -> str:
    return NOT_SET if value is None else value


def value_of(value: str | None) -> Any:
    """Return the value that a broker has written as in a TOML file, or the text if this version can't read it."""
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        return value

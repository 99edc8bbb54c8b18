"""The subcommands of `lockstep broker`. `lockstep broker` itself runs a broker (servers.py)."""

from collections.abc import Mapping
from typing import Annotated

import typer

from lockstep.cli.change_command import add_changes
from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.admin_client import gather_results
from lockstep.operations.changes.broker_drain import BrokerDrain, BrokerRemove
from lockstep.operations.changes.broker_settings import BrokerConfigSet, chosen_brokers, setting_json, text_of_value
from lockstep.operations.errors import raise_if_incomplete
from lockstep.protocol.bodies import BrokerSetting, BrokerSettings
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.config import did_you_mean
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(
    no_args_is_help=True, help="Run a broker (its options: `lockstep broker --help`), change a running one, or take one away."
)
config_app = typer.Typer(no_args_is_help=True, help="Show and change the settings of running brokers.")

BrokerOption = Annotated[str | None, typer.Option("--broker", metavar="NAME", help="The name of one broker.")]
SettingArgument = Annotated[str | None, typer.Argument(help="One setting, as in a settings file: retention_hours.")]


@config_app.command("get")
def get_command(
    setting: SettingArgument = None,
    broker: BrokerOption = None,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Show the settings in force, where their values come from, and which can be changed at run time."""
    run(_get(setting, broker, nameserver, as_json))


async def _get(setting: str | None, broker: str | None, nameserver: ClusterAddress, as_json: bool) -> None:
    admin = admin_client(nameserver)
    brokers = await chosen_brokers(admin, broker)
    results = await gather_results({name: admin.settings(each) for name, each in brokers.items()})
    shown = _chosen_settings(results.values, setting)
    if as_json:
        print_json(
            {"brokers": {name: list(map(setting_json, settings)) for name, settings in shown.items()}, "failed": dict(results.failed)}
        )
    else:
        place = {each.name: number for settings in shown.values() for number, each in enumerate(settings)}
        rows = [(each, name) for name, settings in shown.items() for each in settings]
        rows.sort(key=lambda row: (place[row[0].name], row[1]))
        cells = [(each.name, name, text_of_value(each.value), each.origin, each.fixed_because is None) for each, name in rows]
        print_table(["setting", "broker", "value", "from", "changes at run time"], cells, empty="no broker has responded")
        if setting is not None:
            for reason in sorted({each.fixed_because for each, _ in rows if each.fixed_because is not None}):
                print_line(f"{rows[0][0].name} needs a restart of the broker: {reason}")
    raise_if_incomplete(results.failed)


def _chosen_settings(replies: Mapping[str, BrokerSettings], setting: str | None) -> dict[str, list[BrokerSetting]]:
    """Return broker → all settings, or the one of this name, with "-" or "_". Raise ConfigError if no broker has it."""
    name = None if setting is None else setting.replace("-", "_")
    chosen = {broker: [each for each in reply.settings if name in (None, each.name)] for broker, reply in replies.items()}
    if name is not None and replies and not any(chosen.values()):
        known = {each.name for reply in replies.values() for each in reply.settings}
        raise ConfigError(f"unknown setting {name[:80]!r}{did_you_mean(name[:80], known)}")
    return chosen


add_changes(config_app, (BrokerConfigSet,))
app.add_typer(config_app, name="config")
add_changes(app, (BrokerDrain, BrokerRemove))

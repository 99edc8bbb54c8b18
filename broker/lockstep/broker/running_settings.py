"""The settings of a running broker: their values, where these come from, and changes that last until it ends. RocketMQ: Configuration.

A change is a whole new BrokerConfig, checked as at the start, which `apply` hands to every part that uses a setting (running.py). A setting
that is not in FIXED may change at run time; tests/unit/broker/test_running_settings.py has the effect of each.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from lockstep.broker.config import BrokerConfig
from lockstep.protocol.bodies import BrokerSetting, BrokerSettings, SettingChange, SettingChanges
from lockstep.protocol.errors import ConfigError, MessageIllegalError, NoPermissionError
from lockstep.runtime.configuration.config import SHOWN_MAX, describe_options, parse_texts, setting_name
from lockstep.runtime.configuration.reported_settings import LOG_LEVEL, report_setting, setting_text, value_in_force
from lockstep.runtime.configuration.settings import declared_settings
from lockstep.runtime.logs import log

_STORE = "the store is bound to it"
_LISTENS = "ports are opened at the start"
_REGISTERS = "the broker tells nameservers at the start"
FIXED = {
    "name": _STORE,
    "cluster": _STORE,
    "listen": _LISTENS,
    "admin_listen": _LISTENS,
    "admin_host": _LISTENS,
    **dict.fromkeys(("admin_token_file", "admin_open", "insecure"), _LISTENS),
    **dict.fromkeys(("tls", "tls_cert", "tls_key", "tls_client_ca", "security", "users", "security_last_good"), _LISTENS),
    "audit": "the file is opened at the start",
    "core": "what a crash leaves is decided at the start",
    "advertise": _REGISTERS,
    "nameserver": _REGISTERS,
    "store": "the log is opened at the start",
    "flush": "a crash of the machine is judged by the mode that the start has recorded",
    "segment_mib": "the files of a store have the length with which it was made",
    "replica_of": "a broker is a replica or a master from its start on; `lockstep replica promote` makes one a master",
    "ha": "a copy of a broker has a register, or none, from its start on",
    "silence_ms": "a copy decides at its start how long it waits for its master",
    "alone": "replicas are asked at the start",
    "trace_topic": "the topic is created at the start",
    "cut_corrupt": "the log is checked for damage at the start",
    "adopt": "a directory of another broker is taken over at the start",
    "adopt_without": "a directory of another broker is taken over at the start",
    "connections_max": "file descriptors are divided at the start",
    "disconnect_grace_ms": "clients stop their calls by the value that they were given, and a start waits until it is over",
    "session_timeout_ms": "clients prove their life as often as the value requires that they were given",
    "message_delay_level": "waiting messages are taken up at the start, by their levels",
}
"""The settings that need a restart, and why."""


class RunningSettings:
    """The settings of one broker. `origins`, from the start's `load`, has the source of each value; a program that makes a broker by itself
    has none."""

    def __init__(self, config: BrokerConfig, origins: Mapping[str, str], apply: Callable[[BrokerConfig], None]) -> None:
        self.config = config
        """The settings in force, except for the log level: that is the process's, and the admin port may change it too."""
        self._start = config
        self._origins = origins
        self._apply = apply

    def report(self) -> BrokerSettings:
        """Return all settings, in the order of their declaration."""
        return BrokerSettings(tuple(map(self._setting, declared_settings(BrokerConfig))))

    def change(self, texts: Mapping[str, str], peer: str) -> SettingChanges:
        """Change all the settings that `texts` names, or none, from now on. `peer` asked for it: each change is logged.

        Raise MessageIllegalError for an unknown name or an invalid value, NoPermissionError for a setting that needs a restart.
        """
        try:
            values = parse_texts(BrokerConfig, {setting_name(BrokerConfig, name): text for name, text in texts.items()}, "of the request")
            self._check_changeable(values)
            config = replace(self.config, **values)
        except ConfigError as error:
            raise MessageIllegalError(f"nothing was changed: {error}") from None
        before = {name: value_in_force(self.config, name) for name in values}
        self._apply(config)
        self.config = config
        if LOG_LEVEL in values:
            log.set_level(config.log_level)
        for name, value in values.items():
            if value != before[name]:  # announced: the log level may be what was changed
                log.announce("setting.changed", name=name, before=before[name], after=value, peer=peer)
        return SettingChanges(tuple(SettingChange(self._setting(name), setting_text(before[name])) for name in values))

    def _check_changeable(self, values: Mapping[str, object]) -> None:
        if fixed := [name for name in values if name in FIXED]:
            raise NoPermissionError("nothing was changed: " + "; ".join(_needs_restart(name, values[name]) for name in fixed))

    def _setting(self, name: str) -> BrokerSetting:
        return report_setting(name, self.config, self._start, self._origins, FIXED.get(name))


def _needs_restart(name: str, value: object) -> str:
    return f"{name} needs a restart: start the broker {describe_options({name: value})[:SHOWN_MAX]} ({FIXED[name]})"

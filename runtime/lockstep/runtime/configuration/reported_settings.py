"""What a running server reports of its settings: the values in force, and where they come from."""

from collections.abc import Mapping

from lockstep.protocol.bodies import BrokerSetting
from lockstep.runtime.configuration.config import Settings, toml_text
from lockstep.runtime.configuration.settings import declared_settings
from lockstep.runtime.logs import log

SET = "set at run time"
LOG_LEVEL = "log_level"


def value_in_force(config: Settings, name: str) -> object:
    """Return the value of a setting. The log level is the process's: the admin port may have changed it."""
    return log.level() if name == LOG_LEVEL else getattr(config, name)


def report_setting(name: str, config: Settings, start: Settings, origins: Mapping[str, str], fixed_because: str | None) -> BrokerSetting:
    """Return one setting of a server that was started with `start` and has `config` now. `origins`, from the start's `load`, has the source
    of each value; a program that makes a server by itself has none."""
    value, start_value = value_in_force(config, name), getattr(start, name)
    default = "default" if start_value == declared_settings(type(start))[name].default else "the program that made the server"
    start_origin = origins.get(name, default)
    origin = start_origin if value == start_value else SET
    return BrokerSetting(name, origin, start_origin, setting_text(value), setting_text(start_value), fixed_because)


def setting_text(value: object) -> str | None:
    """Return a value as in a TOML file, or None for a setting that is not set."""
    return None if value is None else toml_text(value)

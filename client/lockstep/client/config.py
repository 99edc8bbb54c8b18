"""The settings of a client; every number has its unit in its name and its source beside it."""

import difflib
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, TypedDict, TypeVar

from lockstep.protocol.errors import ConfigError

InitT = TypeVar("InitT", bound=Callable[..., None])


Nameserver = str | list[str] | tuple[str, ...]
"""One address or several: "HOST:PORT;HOST:PORT", or a list of them."""
DEFAULT_NAMESERVER = "127.0.0.1:9876"


class ClientOptions(TypedDict, total=False):
    """The keywords of Client beside its nameserver: ClientConfig's fields."""

    heartbeat_interval_ms: int
    route_interval_ms: int
    keepalive_interval_ms: int
    request_timeout_ms: int
    route_refresh_spacing_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Times that all producers and consumers of one client share."""

    heartbeat_interval_ms: int = 30_000
    """RocketMQ: heartbeatBrokerInterval."""
    route_interval_ms: int = 30_000
    """RocketMQ: pollNameServerInterval."""
    keepalive_interval_ms: int = 5_000
    """A native client sends something at least this often (ordering.md 1.6)."""
    request_timeout_ms: int = 3_000
    """RocketMQ: mqClientApiTimeout. Heartbeats, routes, leaving."""
    route_refresh_spacing_ms: int = 1_000
    """A refused connection or a stale layout asks for routes at most this often."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not (type(value) is int and value >= 1):
                raise ConfigError(f"{f.name} {value!r}: expected an integer of at least 1")


def nameserver_addresses(nameserver: Nameserver) -> tuple[str, ...]:
    """`"host:port;host:port"` or a list of them as a tuple; ConfigError names what does not fit."""
    given = nameserver.replace(",", ";").split(";") if isinstance(nameserver, str) else list(nameserver)
    addresses = tuple(dict.fromkeys(address.strip() for address in given if address.strip()))
    if not addresses:
        raise ConfigError('no nameserver address: give nameserver="HOST:PORT" (several are separated by ";")')
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not (colon and host and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65_536):
            raise ConfigError(f'nameserver address "{address}": expected HOST:PORT with a port of 1 to 65535')
    return addresses


def takes_settings_of(config: type) -> Callable[[InitT], InitT]:
    """For an `__init__` whose `**options` are the fields of the dataclass `config`.

    help() and IDEs that ask for the signature show every setting with its default; one that there is not is a TypeError that names the
    class which the user called, and what may have been meant.
    """

    def decorate(init: InitT) -> InitT:
        own = inspect.signature(init)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        settings = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=_default(one), annotation=one.type)
            for one in fields(config)
        ]
        shown = own.replace(parameters=[*named, *settings])
        known = [name for name, one in shown.parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY]

        @functools.wraps(init)
        def checked(self: object, *args: object, **options: object) -> None:
            for name in options:
                if name not in shown.parameters:
                    close = difflib.get_close_matches(name, known, n=1)
                    hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"
                    raise TypeError(f"{type(self).__name__}() has no setting {name!r}: {hint}")
            init(self, *args, **options)

        setattr(checked, "__signature__", shown)  # noqa: B010
        return checked  # type: ignore[return-value]

    return decorate


def _default(one: "Field[Any]") -> object:
    if one.default is not MISSING:
        return one.default
    return inspect.Parameter.empty if one.default_factory is MISSING else one.default_factory()

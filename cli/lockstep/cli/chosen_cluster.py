"""Which cluster a command is for: the one of its option, else of the environment, else the stored login `default`, else its own default."""

import os
from contextvars import ContextVar
from typing import Any

from lockstep.operations.client_file import DEFAULT_LOGIN, LOGIN_NAME, ClientFile
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.security.watched_files import read_file

LOGIN_VARIABLE = "LOCKSTEP_LOGIN"
origin: ContextVar[str] = ContextVar("origin", default="")
"""Where the running command has address and user from, if it was not told them."""


def chosen_cluster(given: str | None, default: ClusterAddress | None, context: Any) -> ClusterAddress | None:
    """Return the cluster of a command. `given`: the text of its option. `context`: the command's, which ends with it.

    Raises:
        ConfigError: An address is invalid, there is no login of this name, or the environment names two clusters.
    """
    if given is not None:
        return _stored(given, context, instead_of="HOST:PORT") if LOGIN_NAME.fullmatch(given) else ClusterAddress.parse(given)
    found, name = ClusterAddress.of_environment(), os.environ.get(LOGIN_VARIABLE)
    if found is not None and name:
        raise ConfigError(f"{LOGIN_VARIABLE} ({name[:80]}) and an address ({found}) are both in the environment: unset one of them")
    if name:
        return _stored(name, context)
    if found is None and default is not None and DEFAULT_LOGIN in ClientFile.of_environment().read():
        return _stored(DEFAULT_LOGIN, context)
    return found or default


def _stored(name: str, context: Any, *, instead_of: str = "") -> ClusterAddress:
    file = ClientFile.of_environment()
    try:
        stored = file.login(name)
    except ConfigError as error:
        raise ConfigError(f"{f'{name!r} is not {instead_of}, and ' if instead_of else ''}{error}") from None
    for path in () if stored.tls is None else stored.tls.paths():
        try:
            read_file(path)
        except ConfigError as error:
            raise ConfigError(f"login {name} in {file.path}: {error}") from None
    token = origin.set(f"the address is that of the login {name} in {file.path}, whose user is {stored.user or 'not given'}")
    context.call_on_close(lambda: origin.reset(token))
    return stored

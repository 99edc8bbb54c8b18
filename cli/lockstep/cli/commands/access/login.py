"""lockstep login: stores the address, the user and the password of a cluster for later commands."""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, LoginArgument, NameserverOption, run
from lockstep.cli.password import PasswordOption, read_password
from lockstep.cli.render import print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.client_file import DEFAULT_LOGIN, ClientFile, check_login_name
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.security.tls import Tls

app = typer.Typer(add_completion=False)


@app.command("login")
def login_command(
    name: LoginArgument = DEFAULT_LOGIN,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    user: Annotated[str | None, typer.Option("--user", help="The user. Default: that of the address, or LOCKSTEP_USER.")] = None,
    password_file: PasswordOption = None,
    shows: Annotated[bool, typer.Option("--list", help="List the stored logins, without their passwords.")] = False,
) -> None:
    """Log in to a cluster, and store its address, the user and the password in ~/.lockstep/client.toml, or LOCKSTEP_CLIENT_FILE.

    Commands without an address use the login `default`, and those with `--nameserver NAME`, or LOCKSTEP_LOGIN, the one of that name.
    `lockstep logout` removes it.
    """
    run(_list() if shows else _log_in(name, nameserver, user, password_file))


async def _log_in(name: str, address: ClusterAddress, user: str | None, password_file: Path | None) -> None:
    check_login_name(name)
    user = user or address.user or os.environ.get("LOCKSTEP_USER")
    if user is None:
        raise ConfigError("a login needs a user: give --user NAME")
    if password_file is None and address.password_file is not None:
        password_file = Path(address.password_file)
    file, password = ClientFile.of_environment(), read_password(user, password_file, is_new=False)
    tried = replace(address, user=user, password=password, password_file=None, tls=address.tls and _anywhere(address.tls))
    await admin_client(tried).brokers()
    file.store(name, tried)
    print_line(f"Logged in as {user} at {';'.join(tried.nameservers)}: stored as {name} in {file.path}.")


def _anywhere(tls: Tls) -> Tls:
    """Return settings with the same files, whatever the working directory of a later command is."""
    paths = {each.name: getattr(tls, each.name) for each in fields(Tls) if each.name != "server_name"}
    return replace(tls, **{name: os.path.abspath(path) for name, path in paths.items() if path is not None})


async def _list() -> None:
    logins = ClientFile.of_environment().read()
    rows = [(name, ";".join(each.nameservers), each.user, "no" if each.tls is None else "yes") for name, each in sorted(logins.items())]
    print_table(["login", "nameserver", "user", "TLS"], rows, empty="no login is stored")

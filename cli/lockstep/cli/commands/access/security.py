"""`lockstep security`: what a cluster needs to be secure."""

import shlex
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.options import JsonOption, run
from lockstep.cli.render import print_json, print_line
from lockstep.operations.errors import OperationError
from lockstep.operations.text import format_time
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.extras import with_advice
from lockstep.runtime.host import Host

app = typer.Typer(no_args_is_help=True, help="Make the certificates and the users of a cluster.")

DAYS = 397
"""The longest that browsers accept."""


@app.callback()
def security() -> None:
    """Make the certificates and the users of a cluster."""


@app.command("init")
def init_command(
    directory: Annotated[Path, typer.Argument(help="The directory for the files. It is made if there is none.")],
    name: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name or address under which clients reach the server; may be repeated. By default those of this machine."
        ),
    ] = None,
    server: Annotated[str, typer.Option(help="The name of the files: one certificate for all servers, or one for each.")] = "server",
    days: Annotated[int, typer.Option(min=1, max=3_650, help="Days for which the certificate is valid.")] = DAYS,
    broker: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A broker, which gets a user of its name; may be repeated.")
    ] = None,
    users: Annotated[bool, typer.Option("--users/--no-users", help="Make the file of users, users.toml, too.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Make what a secure cluster needs: an authority, a certificate for servers, and users with random passwords.

    What is there remains: with an authority the command makes only a certificate, with a file of users only the users of brokers that it
    lacks. Servers read their files again within seconds, so the same command renews a certificate. Only this command needs the authority's
    key (ca.key): keep it where no server is.
    """
    run(_init(directory, server, name or own_names(), days, broker or [], users, as_json))


def own_names() -> list[str]:
    """Return the names under which this machine reaches itself."""
    return [socket.gethostname(), "localhost", "127.0.0.1", "::1"]


async def _init(directory: Path, server: str, names: list[str], days: int, brokers: list[str], users: bool, as_json: bool) -> None:
    if server in ("ca", "") or server != Path(server).name:
        raise ConfigError(f"--server is {server[:80]!r}: expected a name for files, other than ca")
    if brokers and not users:
        raise ConfigError("--broker makes a user, and --no-users none: leave one of them out")
    try:
        from lockstep.operations.secured_cluster import secure_cluster
    except ModuleNotFoundError as error:
        raise OperationError(str(with_advice(error))) from error
    host = Host.current()
    secured = secure_cluster(
        directory,
        server,
        names,
        days,
        brokers=brokers,
        with_users=users,
        now_ms=host.clock.wall_ms(),
        random_bytes=host.random.token,
    )
    if as_json:
        print_json(_facts(secured))
        return
    for line in [*_report(secured), "", *_next_steps(secured, brokers)]:
        print_line(line)


def _facts(secured: Any) -> dict[str, object]:
    made = secured.certificate
    return {
        **{"ca": str(made.ca), "ca_key": str(made.ca_key), "cert": str(made.cert), "key": str(made.key)},
        **{"names": list(made.names), "ends_ms": int(made.ends.timestamp() * 1000), "new_authority": made.is_new_authority},
        **{"users": None if secured.users is None else str(secured.users)},
        **{"passwords": {user: str(path) for user, path in secured.passwords.items()}},
    }


def _report(secured: Any) -> list[str]:
    """Return what was made."""
    made = secured.certificate
    signed = f"by a new authority, {made.ca}" if made.is_new_authority else f"by the authority {made.ca}"
    ends = format_time(int(made.ends.timestamp() * 1000))
    lines = [f"Made {made.cert} for {', '.join(made.names)}, valid until {ends}, signed {signed}."]
    if secured.passwords:
        files = ", ".join(path.name for path in secured.passwords.values())
        lines.append(f"Added {', '.join(secured.passwords)} to {secured.users}, with random passwords in {files} beside it.")
    return [*lines, f"Only this command needs {made.ca_key}: keep it where no server is."]


def _next_steps(secured: Any, brokers: list[str]) -> list[str]:
    """Return the lines that start servers with these files, and those that a client needs."""
    made = secured.certificate
    users = "--insecure anonymous" if secured.users is None else f"--security {shlex.quote(str(secured.users))}"
    files = f"    {users} --tls-cert {shlex.quote(str(made.cert))} --tls-key {shlex.quote(str(made.key))}"
    lines = ["HOST is a name of the certificate. Nameservers:", "  lockstep nameserver --listen 0.0.0.0:9876 \\", files]
    for name in brokers if secured.users is not None else ["broker-a"]:
        url = shlex.quote(secured.url("HOST:9876", name))
        start = f"  lockstep broker --name {name} --listen 0.0.0.0:10911 --advertise HOST:10911 \\"
        lines += [f"Broker {name}:", start, f"{files} \\", f"    --nameserver {url}"]
    if secured.users is not None and not brokers:
        lines.append("Brokers: run this again with --broker NAME for each, so that they get users.")
    return [*lines, "Clients and commands:", *(f"  {line}" for line in secured.client_lines("HOST:9876"))]

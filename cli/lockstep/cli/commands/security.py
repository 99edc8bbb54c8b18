"""`lockstep security`: what a cluster needs to be secure."""

import socket
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.options import JsonOption, run
from lockstep.cli.render import print_json, print_line
from lockstep.operations.errors import OperationError
from lockstep.operations.text import format_time
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.extras import with_advice
from lockstep.runtime.host import Host

app = typer.Typer(no_args_is_help=True, help="Make the certificates of a cluster's servers.")

DAYS = 397
"""The longest that browsers accept."""


@app.callback()
def security() -> None:
    """Make the certificates of a cluster's servers."""


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
    as_json: JsonOption = False,
) -> None:
    """Make an authority, and a certificate for servers that it signs; with an authority that is there only the certificate.

    Servers that run with these files read them again within seconds, so the same command renews a certificate. Only this command needs the
    authority's key (ca.key): keep it where no server is.
    """
    run(_init(directory, server, name or own_names(), days, as_json))


def own_names() -> list[str]:
    """Return the names under which this machine reaches itself."""
    return [socket.gethostname(), "localhost", "127.0.0.1", "::1"]


async def _init(directory: Path, server: str, names: list[str], days: int, as_json: bool) -> None:
    if server in ("ca", "") or server != Path(server).name:
        raise ConfigError(f"--server is {server[:80]!r}: expected a name for files, other than ca")
    try:
        from lockstep.operations.certificates import make_certificate
    except ModuleNotFoundError as error:
        raise OperationError(str(with_advice(error))) from error
    made = make_certificate(directory, server, names, days, Host.current().clock.wall_ms())
    ends_ms = int(made.ends.timestamp() * 1000)
    if as_json:
        files = {"ca": str(made.ca), "ca_key": str(made.ca_key), "cert": str(made.cert), "key": str(made.key)}
        print_json({**files, "names": list(made.names), "ends_ms": ends_ms, "new_authority": made.is_new_authority})
        return
    signed = f"by a new authority, {made.ca}" if made.is_new_authority else f"by the authority {made.ca}"
    print_line(f"Made {made.cert} for {', '.join(made.names)}, valid until {format_time(ends_ms)}, signed {signed}.")
    print_line(f"Servers:  --tls-cert {made.cert} --tls-key {made.key}")
    print_line(f"Brokers:  --nameserver 'lockstep://HOST:9876/?tls_ca={made.ca}'")
    print_line(f'Clients:  Client("HOST:9876", tls=Tls(ca="{made.ca}")), or the URL of the brokers')
    print_line(f"Only this command needs {made.ca_key}: keep it where no server is.")

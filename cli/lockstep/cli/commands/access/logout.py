"""lockstep logout: removes a stored login."""

import typer

from lockstep.cli.options import LoginArgument, run
from lockstep.cli.render import print_line
from lockstep.operations.client_file import DEFAULT_LOGIN, ClientFile

app = typer.Typer(add_completion=False)


@app.command("logout")
def logout_command(name: LoginArgument = DEFAULT_LOGIN) -> None:
    """Remove a login that `lockstep login` has stored. Connections that use it remain."""
    run(_log_out(name))


async def _log_out(name: str) -> None:
    file = ClientFile.of_environment()
    file.remove(name)
    print_line(f"Removed the login {name} from {file.path}.")

"""lockstep send: declared in operations/changes/send.py."""

import typer

from lockstep.cli.change_command import add_changes
from lockstep.operations.changes.send import MessageSend

app = typer.Typer(add_completion=False)
add_changes(app, (MessageSend,))

"""`lockstep acl`: what the users of a file may do."""

from typing import Annotated

import typer

from lockstep.cli.commands.user import FileOption
from lockstep.cli.options import JsonOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.operations.errors import OperationError
from lockstep.runtime.security.rights import Rule
from lockstep.runtime.security.users import User, Users, read_users

app = typer.Typer(no_args_is_help=True, help="Show and test what users may do. The rules are in the file of users.")


@app.command("list")
def list_command(
    security: FileOption,
    user: Annotated[str | None, typer.Option("--user", help="The user. Default: all.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the rules of users, roles as the rules that they stand for."""

    async def work() -> None:
        users = read_users(str(security))
        chosen = [_user(users, user)] if user is not None else list(users.users.values())
        rows = [row for each in chosen for row in _rows(each)]
        if as_json:
            print_json([dict(zip(("user", "effect", "rule"), row, strict=True)) for row in rows])
        else:
            print_table(["user", "effect", "rule"], rows)

    run(work())


@app.command("test")
def test_command(
    rule: Annotated[str, typer.Argument(help='What is asked, as "Pub topic:payments". Several actions: may the user do all of them?')],
    user: Annotated[str, typer.Option("--user", help="The user.")],
    security: FileOption,
) -> None:
    """Tell whether a user may do something, and by which rule. Exits with 1 if not."""

    async def work() -> None:
        asked, rights = Rule.parse(rule), _user(read_users(str(security)), user).rights
        decisions = [(action, *rights.decide(action, asked.kind, asked.name)) for action in asked.actions]
        for action, allowed, why in decisions:
            print_line(f"User {user} may {'' if allowed else 'not '}{action} {asked.target}: {why}.")
        if not all(allowed for _, allowed, _ in decisions):
            raise typer.Exit(1)

    run(work())


def _user(users: Users, name: str) -> User:
    found = users.users.get(name)
    if found is None:
        raise OperationError(f"user {name[:80]} does not exist; the users are {', '.join(sorted(users.users)) or 'none'}")
    return found


def _rows(user: User) -> list[tuple[str, str, str]]:
    if user.rights.is_super:
        return [(user.name, "allow", "everything")]
    rules = [(user.name, "deny", str(rule)) for rule in user.rights.deny]
    rules += [(user.name, "allow", str(rule)) for rule in user.rights.allow]
    return [*rules, *((user.name, "allow", f"register {broker}") for broker in user.brokers)]

"""`lockstep acl`: what the users of a file may do."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.commands.access.user import FileOption, change_users, summary
from lockstep.cli.options import JsonOption, print_error, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.operations.errors import UnknownUserError
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.rights import Rule
from lockstep.runtime.security.users import User, Users, read_users
from lockstep.runtime.security.watched_files import read_file

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


@app.command("import")
def import_command(
    path: Annotated[Path, typer.Argument(metavar="PLAIN_ACL", help="RocketMQ's plain_acl.yml.")],
    security: FileOption,
    keep_open: Annotated[
        bool,
        typer.Option(
            "--keep-open", help="Import it although it has addresses that need no signature: they are left out, with a warning each."
        ),
    ] = False,
) -> None:
    """Add the accounts of RocketMQ's plain_acl.yml to the file of users, and write their secrets into files beside it (mode 0600)."""

    def work(users: Any) -> None:
        from lockstep.operations.plain_acl import parse_plain_acl

        content = read_file(str(path))
        try:
            found = parse_plain_acl(content, keep_open=keep_open)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        files = {each.access_key: security.parent / f"{each.access_key}.secret" for each in found.accounts}
        tables = {each.access_key: {"secret": users.secret_entry(files[each.access_key]), **each.entries} for each in found.accounts}
        users.add_all(tables, {files[each.access_key]: each.secret for each in found.accounts})
        for line in found.left_out:
            print_error(f"left out: {line}")
        added = users.read().users
        for name in tables:
            print_line(f"Added user {name} to {security}, with its secret in {files[name]}. It may do: {summary(added[name])}.")

    run(change_users(security, work))


def _user(users: Users, name: str) -> User:
    found = users.users.get(name)
    if found is None:
        raise UnknownUserError(name, users.users)
    return found


def _rows(user: User) -> list[tuple[str, str, str]]:
    if user.rights.is_super:
        return [(user.name, "allow", "everything")]
    rules = [(user.name, "deny", str(rule)) for rule in user.rights.deny]
    rules += [(user.name, "allow", str(rule)) for rule in user.rights.allow]
    return [*rules, *((user.name, "allow", f"register {broker}") for broker in user.brokers)]

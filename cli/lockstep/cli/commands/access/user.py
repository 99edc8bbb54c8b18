"""`lockstep user`: the file of the users of a cluster."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, print_error, run
from lockstep.cli.password import PasswordOption, read_password
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.brokers.last_logins import LastLogin, read_last_logins
from lockstep.operations.errors import OperationError
from lockstep.operations.text import format_time
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.extras import with_advice
from lockstep.runtime.host import Host
from lockstep.runtime.security.users import User, read_users

app = typer.Typer(no_args_is_help=True, help="Change the file of users: who may log in, and by which password.")

NameArgument = Annotated[str, typer.Argument(help="The user's name.")]
FileOption = Annotated[
    Path,
    typer.Option("--security", envvar="LOCKSTEP_SECURITY", help="The file of users, which all servers have (--security)."),
]


@app.command("add")
def add_command(
    name: NameArgument,
    security: FileOption,
    password_file: PasswordOption = None,
    allowed_from: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="NETWORK", help="Where the user may log in from; may be repeated. Default: everywhere."),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="producer, consumer, viewer or operator, for --topic and --group; may be repeated.")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="A topic of the roles, or TOP* for all that begin so.")] = None,
    group: Annotated[list[str] | None, typer.Option("--group", help="A group of the roles, or GR* for all that begin so.")] = None,
    allow: Annotated[list[str] | None, typer.Option("--allow", metavar="RULE", help='A rule besides, as "Pub topic:receipts".')] = None,
    deny: Annotated[list[str] | None, typer.Option("--deny", metavar="RULE", help="What is denied in any case.")] = None,
    broker: Annotated[
        list[str] | None, typer.Option("--broker", metavar="BROKER", help="A broker that registers at nameservers as this user.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", metavar="KEY=VALUE", help="What the user may use of a server, as bytes_in_per_s=20MiB; may be repeated."),
    ] = None,
    is_super: Annotated[bool, typer.Option("--super", help="The user may do everything.")] = False,
    secret_file: Annotated[
        Path | None,
        typer.Option("--secret-file", help="For RocketMQ's clients: the file whose first line is the secret of the AccessKey NAME."),
    ] = None,
) -> None:
    """Add a user, and make the file if there is none. Without a role or a rule the user may do nothing. Servers read it again within
    seconds. With --secret-file the user has a password only if --password-file is given."""
    entries = {"from": allowed_from, "role": role, "topics": topic, "groups": group, "allow": allow, "deny": deny, "brokers": broker}
    limits = dict(each.partition("=")[::2] for each in limit or ())

    def work(users: Any) -> None:
        secret = None if secret_file is None else users.secret_entry(secret_file)
        by_secret, made = secret is not None and password_file is None, "" if security.exists() else ", which is new"
        password = None if by_secret else read_password(name, password_file, is_new=True)
        users.add(name, password, {"secret": secret, **entries, "super": is_super, "limits": limits})
        print_line(f"Added user {name} to {security}{made}.")

    run(change_users(security, work))


@app.command("passwd")
def passwd_command(name: NameArgument, security: FileOption, password_file: PasswordOption = None) -> None:
    """Change a user's password. Connections that used another one are closed within 10 s after servers have read the file."""

    def work(users: Any) -> None:
        users.change_password(name, read_password(name, password_file, is_new=True))
        print_line(f"Changed the password of {name} in {security}.")

    run(change_users(security, work))


@app.command("rotate")
def rotate_command(
    name: NameArgument,
    security: FileOption,
    password_file: PasswordOption = None,
    end: Annotated[bool, typer.Option("--end", help="Take all passwords away but the last one that was added.")] = False,
) -> None:
    """Add a password to a user's, then give it to the clients one after the other, then take the old one away by --end."""

    def work(users: Any) -> None:
        if end:
            print_line(f"Took {users.end_rotation(name)} passwords of {name} away in {security}.")
            return
        count = users.add_password(name, read_password(name, password_file, is_new=True))
        print_line(f"User {name} has {count} passwords in {security}. When all clients have the new one: lockstep user rotate {name} --end")

    run(change_users(security, work))


@app.command("rm")
def rm_command(name: NameArgument, security: FileOption) -> None:
    """Remove a user. Its connections are closed within 10 s after servers have read the file."""

    def work(users: Any) -> None:
        users.remove(name)
        print_line(f"Removed user {name} from {security}.")

    run(change_users(security, work))


@app.command("list")
def list_command(
    security: FileOption,
    last_login: Annotated[
        bool,
        typer.Option(
            "--last-login",
            help="Ask the servers when and from where each user has logged in last, by its password or an AccessKey. They know it in "
            "memory: `never` means not since their starts. It takes a super user or the right to Get the cluster.",
        ),
    ] = False,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """List the users of the file. With --last-login a connection counts once: a user who has stayed connected since has connections."""
    run(_list(security, nameserver if last_login else None, as_json))


async def _list(security: Path, nameserver: ClusterAddress | None, as_json: bool) -> None:
    users = read_users(str(security))
    logins = None if nameserver is None else await read_last_logins(admin_client(nameserver))
    listed = users.users.values()
    if as_json:
        shown = [{**_user_json(each), **({} if logins is None else _login_json(logins.values.get(each.name)))} for each in listed]
        print_json({"digest": users.digest, "users": shown, **({} if logins is None else {"failed": dict(logins.failed)})})
    else:
        columns = ["user", "passwords", "secrets", "from", "may", "limits"]
        if logins is not None:
            columns += ["last login", "came from", "server", ">connections"]
        unknown = "never" if logins is None or not logins.failed else "not known"
        rows = [_user_row(each) + (() if logins is None else _login_row(logins.values.get(each.name), unknown)) for each in listed]
        print_table(columns, rows)
    for server, why in {} if logins is None else logins.failed.items():
        print_error(f"warning: the last logins at {server} are not known: {why}")


def _user_json(user: User) -> dict[str, Any]:
    return {
        "user": user.name,
        "passwords": len(user.verifiers),
        "secrets": len(user.secrets),
        "from": [str(network) for network in user.networks],
        "super": user.rights.is_super,
        "allow": list(map(str, user.rights.allow)),
        "deny": list(map(str, user.rights.deny)),
        "brokers": list(user.brokers),
        "limits": _limits(user),
    }


def _user_row(user: User) -> tuple[object, ...]:
    networks, limits = ", ".join(map(str, user.networks)), ", ".join(f"{key}={value}" for key, value in _limits(user).items())
    return user.name, len(user.verifiers), len(user.secrets), networks or "everywhere", summary(user), limits


def _login_json(last: LastLogin | None) -> dict[str, Any]:
    if last is None:
        return {"lastLogin": None, "connections": 0}
    time, login = format_time(last.login.wall_ms), last.login
    return {
        "lastLogin": {"time": time, "peer": login.peer, "server": last.server, "signed": login.signed},
        "connections": last.connections,
    }


def _login_row(last: LastLogin | None, unknown: str) -> tuple[object, ...]:
    return (unknown, None, None, 0) if last is None else (format_time(last.login.wall_ms), last.login.peer, last.server, last.connections)


def summary(user: User) -> str:
    """Return in few words what a user may do."""
    rights = user.rights
    if rights.is_super:
        return "everything"
    told = [f"register {', '.join(user.brokers)}"] if user.brokers else []
    told += [f"{len(rules)} rules {word}" for word, rules in (("allow", rights.allow), ("deny", rights.deny)) if rules]
    return "; ".join(told) or "nothing"


def _limits(user: User) -> dict[str, int]:
    return {key: value for key, value in asdict(user.limits).items() if value is not None}


async def change_users(security: Path, work: Callable[[Any], None]) -> None:
    """Call `work` with the UsersFile. Raise OperationError if a package for it is missing."""
    try:
        from lockstep.operations.users_file import UsersFile
    except ModuleNotFoundError as error:
        raise OperationError(str(with_advice(error))) from error
    work(UsersFile(security, Host.current().random.token))

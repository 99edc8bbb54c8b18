"""The users of a universe: their file, which all servers read again while they run, and the passwords of their clients."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lockstep.protocol.names import TRACE_TOPIC
from lockstep.runtime.connections.cluster_address import ClusterAddress, Login
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from lockstep.runtime.security.scram import ITERATIONS_MIN, Verifier
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.users import Users, parse_users
from lockstep.runtime.security.watched_files import WatchedFiles
from sweep.events.access import Account, UsersInForce, UsersWritten
from sweep.history import Event
from sweep.settings import AUDIT, CLASSIC, GROUP, MAILING, NEWS, READERS, TOPIC, Setting

OPERATOR = "ops"
"""A super user, as which all programs of operators log in."""
TWIN = "twin"
"""Has the rights of every member, but owns nothing."""
RIVAL = "rival"
"""Has the rights of every producer, but owns nothing."""
DENIED = "denied"
"""May everything with topics, but nothing with those of the universe: rules that deny."""
NEAR = "near"
"""May what has a name that is longer than those of the universe."""
OWN_GROUP = "spies"
"""The group of the last two users."""
INTRUDER = "10.0.3.41"
"""The machine of their programs."""
SALT = b"0123456789abcdef"


def member_name(group: str, address: str) -> str:
    """Return the user of a group's member on a machine."""
    return f"{group}-{address.rpartition('.')[2]}"


def producer_name(address: str) -> str:
    """Return the user of the producer on a machine."""
    return f"producer-{address.rpartition('.')[2]}"


@lru_cache(maxsize=256)
def _verifier(password: str) -> str:
    return str(Verifier.of(password, SALT, ITERATIONS_MIN))


class Access:
    """The file of users. Each change of it is written at once; servers notice it when they look."""

    def __init__(self, accounts: list[Account], record: Callable[[Event], None], origin: Callable[[], tuple[float, str, int]]) -> None:
        self.usual = {account.name: account for account in accounts}
        """The accounts that have all their rights."""
        self.accounts = dict(self.usual)
        self._record, self._origin = record, origin
        self._valid = {account.name: account.passwords for account in accounts}
        """The passwords with which a user may log in, also while it is removed."""
        self._used = {account.name: account.passwords[0] for account in accounts}
        """The password that clients use, one of these."""
        self._version = 0
        self._content = b""
        self._write()

    # ------------------------------------------------------------------------------------------------------------- the file

    def _write(self) -> None:
        self._version += 1
        accounts = tuple(replace(account, passwords=self._valid[name]) for name, account in self.accounts.items())
        self._content = "\n".join([f'key = "{"0a" * 32}"', *map(_toml, accounts)]).encode()
        self._record(UsersWritten(*self._origin(), self._version, accounts))

    def put(self, name: str, *, allow: tuple[str, ...], deny: tuple[str, ...]) -> None:
        """Give a user these rules, also one that was removed."""
        self.accounts[name] = replace(self.usual[name], allow=allow, deny=deny)
        self._write()

    def remove(self, name: str) -> None:
        if self.accounts.pop(name, None) is not None:
            self._write()

    def give_back(self, name: str) -> None:
        """Give a user all rights again."""
        self.accounts[name] = self.usual[name]
        self._write()

    def restore(self) -> None:
        """Give back everything."""
        self.accounts = dict(self.usual)
        self._write()

    # ------------------------------------------------------------------------------------------------------------- passwords

    def add_password(self, name: str) -> str | None:
        """Add a password beside the present one. Return it; None if there are two already."""
        if len(self._valid[name]) > 1:
            return None
        added = f"password of {name}.{self._version}"
        self._valid[name] += (added,)
        self._write()
        return added

    def use_password(self, name: str, password: str) -> None:
        """Let the clients of a user log in with this password from now on."""
        self._used[name] = password

    def end_rotation(self, name: str) -> None:
        """Take all passwords away but the one that clients use."""
        self._valid[name] = (self._used[name],)
        self._write()

    def password(self, name: str) -> str:
        """Return the password that the clients of a user use."""
        return self._used[name]

    # --------------------------------------------------------------------------------------------------------------- security

    def server(self, peers: ClientSecurity = NO_SECURITY) -> ServerSecurity:
        """Return the security of a server that starts now. Call it in the server's process."""

        def read() -> Users:
            self._record(UsersInForce(*self._origin(), self._version))
            return parse_users(self._content)

        return ServerSecurity(users=WatchedFiles(["users.toml"], read, read=lambda _: self._content), peers=peers)

    def client(self, user: str) -> ClientSecurity:
        """Return how the clients of a user connect."""
        return ClusterAddress(()).security(Login(user, lambda: self.password(user)), environment={})


def _toml(account: Account) -> str:
    verifiers = tuple(map(_verifier, account.passwords))
    lists = {"verifier": verifiers, "allow": account.allow, "deny": account.deny, "brokers": account.brokers}
    lines = [f"{key} = {json.dumps(texts)}" for key, texts in lists.items()]
    return "\n".join([f"[user.{account.name}]", *lines, *(["super = true"] if account.is_super else [])])


def accounts_of(setting: Setting, brokers: list[str], consumers: list[str], classics: list[str], producers: list[str]) -> list[Account]:
    """Return the users of a universe: one of each member of each group, one of each producer and broker, and those who try to intrude."""

    def account(name: str, *allow: str, **more: Any) -> Account:
        return Account(name, (f"password of {name}.0",), allow, **more)

    of_topics = tuple(f"topic:{topic}" for topic in setting.topics)
    sub, pub = tuple(f"Sub {each}" for each in of_topics), tuple(f"Pub {each}" for each in of_topics)
    groups = [*setting.groups, *([MAILING] if setting.concurrent else []), *([READERS] if setting.readers else [])]
    groups += [NEWS] if setting.broadcast else []
    members = [(group, address) for group in groups if group != CLASSIC for address in consumers]
    members += [(setting.groups[-1], address) for address in classics]
    return [
        account(OPERATOR, is_super=True),
        *(account(name, brokers=(name,)) for name in brokers),
        *(account(member_name(group, address), *sub, f"Sub group:{group}") for group, address in members),
        *(account(producer_name(address), *pub) for address in producers),
        account(TWIN, *sub, "Sub group:*"),
        account(RIVAL, *pub, f"Pub topic:{TRACE_TOPIC}"),
        account(DENIED, "Pub,Sub topic:*", f"Sub group:{OWN_GROUP}", deny=tuple(f"Pub,Sub {each}" for each in of_topics)),
        account(
            NEAR,
            f"Pub,Sub topic:{TOPIC}-*",
            f"Sub group:{OWN_GROUP}",
            *(f"Sub group:{group}-*" for group in (GROUP, AUDIT, CLASSIC, MAILING, READERS)),
        ),
    ]


def consuming_users(access: Access) -> list[str]:
    """Return the users of members."""
    return [name for name, account in access.usual.items() if name not in (TWIN, DENIED, NEAR) and any(map(_subs, account.allow))]


def sending_users(access: Access) -> list[str]:
    """Return the users of producers."""
    return [name for name in access.usual if name.startswith("producer-")]


def _subs(rule: str) -> bool:
    return rule.startswith("Sub ")

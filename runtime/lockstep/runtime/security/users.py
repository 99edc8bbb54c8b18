"""The users of a cluster, from a TOML file that all servers have.

    key = "5f1d…"                      32 bytes in hex, made with the file: unknown users look like known ones by it

    [user.billing]
    verifier = "SCRAM-SHA-256$…"       of the password, or a list while it is changed: `lockstep user` writes it
    secret = { file = "billing.secret" }   of the AccessKey `billing` of RocketMQ's clients, or a list (access_keys.py)
    from = ["10.0.0.0/8"]              addresses from which the user may log in; without it from all
    role = "consumer"                  or a list of roles (rights.py), for these names:
    topics = ["orders*"]
    groups = ["billing"]
    allow = ["Pub topic:invoices"]     more rules
    deny = ["Sub topic:orders-secret"]
    limits = { connections = 50, bytes_in_per_s = "20MiB" }     of each server (user_limits.py)

    [user.ops]
    super = true                       may do everything

    [user.broker-a]
    brokers = ["broker-a"]             names, or beginnings of names with a *: the user registers these brokers at nameservers

The file has no passwords, but a verifier lets its reader guess them at leisure.
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.access_keys import SecretSource, is_signed
from lockstep.runtime.security.rights import (
    NEED_GROUPS,
    NEED_TOPICS,
    NO_RIGHTS,
    ROLES,
    Action,
    Kind,
    Rights,
    Rule,
    is_name_pattern,
    matches_name,
)
from lockstep.runtime.security.scram import USER_LENGTH_MAX, Verifier, made_up_verifier
from lockstep.runtime.security.user_limits import NO_LIMITS, UserLimits
from lockstep.runtime.security.watched_files import WatchedFiles, check_mode, read_file

_NAME = re.compile(r"[^\s\x00-\x1f\x7f=,/?#@:]{1,127}")
_KEYS = ("verifier", "secret", "from", "role", "topics", "groups", "allow", "deny", "super", "brokers", "limits")
_OF_BROKERS = (Rule((Action.GET, Action.LIST), Kind.TOPIC), Rule((Action.GET,), Kind.CLUSTER))
"""What a broker asks nameservers for, besides its registration."""


@dataclass(frozen=True, slots=True)
class User:
    """One user."""

    name: str
    verifiers: tuple[Verifier, ...]
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Where the user may log in from; empty: from everywhere."""
    rights: Rights = NO_RIGHTS
    brokers: tuple[str, ...] = ()
    """Names of brokers that the user may register, or beginnings of names with a * at the end."""
    secrets: tuple[SecretSource, ...] = ()
    """Where the secrets are with which requests may be signed that have the user's name as AccessKey."""
    limits: UserLimits = NO_LIMITS

    def may_come_from(self, address: str) -> bool:
        """Return whether the user may log in from an IP address."""
        if not self.networks:
            return True
        try:
            found = ip_address(address.strip("[]"))
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any(each in network for network in self.networks for each in (found, mapped) if each is not None)

    def may_be_broker(self, name: str) -> bool:
        """Return whether the user may register a broker of this name."""
        return self.rights.is_super or any(matches_name(each, name) for each in self.brokers)


@dataclass(frozen=True, slots=True)
class Users:
    """The content of the file."""

    users: Mapping[str, User]
    key: bytes = field(repr=False)
    digest: str
    """The first 8 hex digits of the file's SHA-256, by which servers can be compared."""
    limited: Mapping[str, UserLimits]
    """User → limits, of those who have some."""
    secrets: Mapping[str, Sequence[bytes]] = field(default_factory=dict, repr=False)
    """The secrets of each user who has some, if they were read."""

    def verifiers(self, name: str) -> Sequence[Verifier]:
        """Return the verifiers of a user, or one that no password has."""
        user = self.users.get(name)
        return (user.verifiers if user is not None else ()) or (made_up_verifier(self.key, name),)

    def is_valid(self, name: str, verifier: Verifier | None, address: str) -> bool:
        """Return whether a login with this verifier from this address would succeed."""
        user = self.users.get(name)
        return user is not None and verifier in user.verifiers and user.may_come_from(address)

    def is_signed(self, name: str, fields: Mapping[str, Any], body: bytes | bytearray | memoryview, address: str) -> bool:
        """Return whether a request from this address is signed by the user who has this name as AccessKey."""
        user = self.users.get(name)
        return user is not None and user.may_come_from(address) and is_signed(self.secrets.get(name, ()), fields, body)


def check_user_name(name: str) -> str:
    """Return the name. Raise ConfigError if it is not one."""
    if not _NAME.fullmatch(name):
        shown = repr(name[:80])
        raise ConfigError(
            f"{shown} is not the name of a user: expected 1 to {USER_LENGTH_MAX} characters, no spaces and none of = , / ? # @ :"
        )
    return name


def read_users(path: str, *, secrets_beside: str | None = None) -> Users:
    """Read the file. `secrets_beside`: the directory of secrets without an absolute path; None: secrets are not read.

    Raise ConfigError, which names the file and the user concerned.
    """
    content = read_file(path)
    check_mode(path)
    try:
        users = parse_users(content)
        return users if secrets_beside is None else _with_secrets(users, secrets_beside)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def watch_users(path: str, *, beside: str | None = None) -> WatchedFiles[Users]:
    """Read the file and the secrets that it names, as a server does. `beside`: the file beside which they are, by default the file itself.

    Raise ConfigError if one can't be used.
    """
    directory = os.path.dirname(path if beside is None else beside)

    def files(users: Users) -> Sequence[str]:
        return [source.path(directory) for user in users.users.values() for source in user.secrets if source.file]

    return WatchedFiles([path], lambda: read_users(path, secrets_beside=directory), files)


def _with_secrets(users: Users, directory: str) -> Users:
    secrets = {}
    for user in users.users.values():
        try:
            if user.secrets:
                secrets[user.name] = tuple(source.read(directory) for source in user.secrets)
        except ConfigError as error:
            raise ConfigError(f"user.{user.name}: secret: {error}") from None
    return replace(users, secrets=secrets)


def parse_users(content: bytes) -> Users:
    """Return the users that the content of a file has. Raise ConfigError."""
    try:
        table = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"it is not TOML: {error}") from None
    if unknown := sorted(table.keys() - {"key", "user"}):
        raise ConfigError(f"unknown key {unknown[0]!r}: expected key and user")
    if not table:
        raise ConfigError("it is empty: copy the file of another server, or remove it, and let `lockstep user add` make one")
    key = table.get("key")
    if not isinstance(key, str) or not re.fullmatch(r"[0-9a-f]{64}", key):
        raise ConfigError("key: expected 64 hexadecimal digits, as `lockstep user add` makes them")
    named = table.get("user", {})
    if not isinstance(named, dict):
        raise ConfigError("user: expected tables [user.NAME]")
    users = {check_user_name(name): _user(name, entry) for name, entry in named.items()}
    limited = {user.name: user.limits for user in users.values() if user.limits != NO_LIMITS}
    return Users(users, bytes.fromhex(key), hashlib.sha256(content).hexdigest()[:8], limited)


def _user(name: str, entry: Any) -> User:
    if not isinstance(entry, dict):
        raise ConfigError(f"user.{name}: expected a table")
    if unknown := sorted(entry.keys() - set(_KEYS)):
        raise ConfigError(f"user.{name}: unknown key {unknown[0]!r}: expected {', '.join(_KEYS)}")
    texts = _texts(name, "verifier", entry.get("verifier"))
    try:
        secrets = SecretSource.parse(entry.get("secret"))
    except ConfigError as error:
        raise ConfigError(f"user.{name}: {error}") from None
    if not (texts or secrets):
        raise ConfigError(f"user.{name}: verifier is missing: `lockstep user passwd {name}` makes it; or secret, for RocketMQ's clients")
    try:
        verifiers = tuple(map(Verifier.parse, texts))
    except ConfigError as error:
        raise ConfigError(f"user.{name}: verifier {error}") from None
    if len({(each.salt, each.iterations) for each in verifiers}) > 1:
        raise ConfigError(f"user.{name}: its verifiers differ in salt or iterations: `lockstep user rotate {name}` makes ones that do not")
    try:
        networks = tuple(map(ip_network, _texts(name, "from", entry.get("from"))))
    except ValueError as error:
        raise ConfigError(f"user.{name}: from: {error}: expected networks as 10.0.0.0/8, or addresses") from None
    is_super = entry.get("super", False)
    if not isinstance(is_super, bool):
        raise ConfigError(f"user.{name}: super: expected true or false")
    brokers = _patterns(name, "brokers", entry.get("brokers"))
    try:
        limits = UserLimits.parse(entry.get("limits", {}))
    except ConfigError as error:
        raise ConfigError(f"user.{name}: limits{error}") from None
    return User(name, verifiers, networks, _rights(name, entry, is_super=is_super, is_broker=bool(brokers)), brokers, secrets, limits)


def _rights(name: str, entry: Mapping[str, Any], *, is_super: bool, is_broker: bool) -> Rights:
    roles, *lists = (_texts(name, key, entry.get(key)) for key in ("role", "allow", "deny"))
    topics, groups = (_patterns(name, key, entry.get(key)) for key in ("topics", "groups"))
    allow = [*_OF_BROKERS] if is_broker else []
    for role in roles:
        if role not in ROLES:
            raise ConfigError(f"user.{name}: role {role[:40]!r}: expected one of {', '.join(ROLES)}")
        if (role in NEED_TOPICS and not topics) or (role in NEED_GROUPS and not groups):
            raise ConfigError(f"user.{name}: role {role} needs {'topics and groups' if role in NEED_GROUPS else 'topics'}")
        allow += ROLES[role](topics, groups)
    if (topics or groups) and not roles:
        raise ConfigError(f"user.{name}: topics and groups are those of a role: set role to one of {', '.join(ROLES)}")
    try:
        allowed, denied = (tuple(map(Rule.parse, rules)) for rules in lists)
        return Rights((*allow, *allowed), denied, is_super)
    except ConfigError as error:
        raise ConfigError(f"user.{name}: {error}") from None


def _patterns(name: str, key: str, value: Any) -> tuple[str, ...]:
    found = _texts(name, key, value)
    if (bad := next((each for each in found if not is_name_pattern(each)), None)) is not None:
        raise ConfigError(f"user.{name}: {key}: {bad[:80]!r}: expected a name, or its beginning with a * at the end")
    return found


def _texts(name: str, key: str, value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else () if value is None else value
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"user.{name}: {key}: expected a text or a list of texts")
    return tuple(found)

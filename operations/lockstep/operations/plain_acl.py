"""Reads RocketMQ's `plain_acl.yml` as users of ours. It needs the package PyYAML.

| plain_acl.yml | the file of users |
|---|---|
| accessKey, secretKey | the user's name, and its secret in a file of its own |
| admin: true | super |
| defaultTopicPerm, defaultGroupPerm: PUB, SUB | allow, for all topics or groups |
| topicPerms, groupPerms: PUB, SUB | allow, for the topic or group; deny what the default would allow besides |
| DENY | deny |
| whiteRemoteAddress, globalWhiteRemoteAddresses | refused, or left out: they are addresses that need no signature |

A group's PUB allows nothing in RocketMQ, so it becomes no rule. Texts stay as they are written: a secretKey of digits is no number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import RETRY_PREFIX
from lockstep.runtime.security.access_keys import SECRET_LENGTH_MAX, SECRET_LENGTH_MIN
from lockstep.runtime.security.rights import Action, Kind, Rule
from lockstep.runtime.security.users import check_user_name

_PERMISSIONS: Mapping[str, tuple[Action, ...]] = {
    "": (),
    "DENY": (),
    "PUB": (Action.PUB,),
    "SUB": (Action.SUB,),
    **dict.fromkeys(("PUB|SUB", "SUB|PUB"), (Action.PUB, Action.SUB)),
}
_MATTERS = {Kind.TOPIC: (Action.PUB, Action.SUB), Kind.GROUP: (Action.SUB,)}
"""What RocketMQ asks for."""
_KEYS = {*("accessKey", "secretKey", "whiteRemoteAddress", "admin"), *("defaultTopicPerm", "defaultGroupPerm", "topicPerms", "groupPerms")}
_FILE_KEYS = {"globalWhiteRemoteAddresses", "accounts", "dataVersion"}
_BOOLEANS = {**dict.fromkeys(("true", "yes", "on"), True), **dict.fromkeys(("false", "no", "off", ""), False)}


@dataclass(frozen=True, slots=True)
class ImportedAccount:
    """An account of the file."""

    access_key: str
    secret: bytes
    entries: Mapping[str, Any]
    """What its table in the file of users has besides the secret."""

    def __repr__(self) -> str:
        return f"ImportedAccount({self.access_key!r})"


@dataclass(frozen=True, slots=True)
class ImportedAcl:
    """What a file says."""

    accounts: Sequence[ImportedAccount]
    left_out: Sequence[str]
    """What was left out, in words."""


def parse_plain_acl(content: bytes, *, keep_open: bool) -> ImportedAcl:
    """Return the accounts of a file. `keep_open`: leave addresses out that need no signature; without it they are refused.

    Raise ConfigError, which shows no secret.
    """
    try:
        found = yaml.load(content, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigError(f"it is not YAML{'' if mark is None else f': line {mark.line + 1}'}") from None
    table = _table("the file", found, _FILE_KEYS)
    opened = [f"globalWhiteRemoteAddresses: {address}" for address in _texts("globalWhiteRemoteAddresses", table) if address]
    accounts: list[ImportedAccount] = []
    left_out = []
    for number, each in enumerate(_list("accounts", table.get("accounts")), 1):
        where = f"accounts, number {number}"
        entry = _table(where, each, _KEYS)
        name = check_user_name(_text(where, entry, "accessKey"))
        if any(known.access_key == name for known in accounts):
            raise ConfigError(f"account {name}: it occurs twice")
        accounts.append(_account(name, entry))
        if address := _text(f"account {name}", entry, "whiteRemoteAddress"):
            opened.append(f"account {name}: whiteRemoteAddress {address}")
        if accounts[-1].entries.get("super") and any(entry.get(key) for key in ("topicPerms", "groupPerms")):
            left_out.append(f"account {name}: topicPerms and groupPerms: it is an admin, and a super user may do everything")
    if opened and not keep_open:
        raise ConfigError(
            f"{'; '.join(opened)}: RocketMQ asks for no signature from these addresses, lockstep does from all. Give the programs there an "
            "AccessKey and its secret. --keep-open imports the accounts and leaves the addresses out"
        )
    return ImportedAcl(accounts, [*(f"{each}: requests from there need a signature now" for each in opened), *left_out])


def _account(name: str, entry: Mapping[str, Any]) -> ImportedAccount:
    where = f"account {name}"
    secret = _text(where, entry, "secretKey")
    if not SECRET_LENGTH_MIN <= len(secret) <= SECRET_LENGTH_MAX or "\n" in secret or "\r" in secret:
        raise ConfigError(f"{where}: secretKey: expected a line of {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX} characters")
    admin = _BOOLEANS.get(_text(where, entry, "admin").lower())
    if admin is None:
        raise ConfigError(f"{where}: admin: expected true or false")
    if admin:
        return ImportedAccount(name, secret.encode(), {"super": True})
    allow: list[Rule] = []
    deny: list[Rule] = []
    defaults = {
        kind: _permission(f"{where}: {key}", _text(where, entry, key))
        for kind, key in ((Kind.TOPIC, "defaultTopicPerm"), (Kind.GROUP, "defaultGroupPerm"))
    }
    for kind, default in defaults.items():
        allow += _rules(default, kind, "*")
    for (kind, resource), granted in _named(where, entry).items():
        allow += _rules(granted, kind, resource)
        deny += _rules([each for each in _MATTERS[kind] if each not in granted and (each in defaults[kind] or not granted)], kind, resource)
    return ImportedAccount(name, secret.encode(), {"allow": list(map(str, allow)), "deny": list(map(str, deny))})


def _rules(actions: Sequence[Action], kind: Kind, name: str) -> list[Rule]:
    matter = tuple(each for each in actions if each in _MATTERS[kind])
    return [Rule(matter, kind, name)] if matter else []


def _named(where: str, entry: Mapping[str, Any]) -> dict[tuple[Kind, str], tuple[Action, ...]]:
    """Return the actions of each topic and group that is named. A retry topic is its group."""
    found: dict[tuple[Kind, str], tuple[Action, ...]] = {}
    for key, of in (("topicPerms", Kind.TOPIC), ("groupPerms", Kind.GROUP)):
        for text in _texts(key, entry):
            name, equals, permission = (part.strip() for part in text.partition("="))
            kind, name = (Kind.GROUP, name.removeprefix(RETRY_PREFIX)) if name.startswith(RETRY_PREFIX) else (of, name)
            if not equals or not name or "*" in name or any(map(str.isspace, name)):
                raise ConfigError(f"{where}: {key}: {text[:80]!r}: expected NAME=PERMISSION, without a * in the name")
            if (kind, name) in found:
                raise ConfigError(f"{where}: {key}: {name[:80]!r} occurs twice")
            found[kind, name] = _permission(f"{where}: {key}: {name[:80]}", permission)
    return found


def _permission(where: str, text: str) -> tuple[Action, ...]:
    if text.strip() not in _PERMISSIONS:
        raise ConfigError(f"{where}: {text[:40]!r}: expected {', '.join(filter(None, _PERMISSIONS))}")
    return _PERMISSIONS[text.strip()]


def _table(where: str, value: Any, keys: set[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{where}: expected a table of {', '.join(sorted(keys))}")
    if unknown := sorted(value.keys() - keys):
        raise ConfigError(f"{where}: unknown key {unknown[0][:40]!r}: expected {', '.join(sorted(keys))}")
    return value


def _list(key: str, value: Any) -> list[Any]:
    if value in (None, ""):
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{key}: expected a list")
    return value


def _texts(key: str, table: Mapping[str, Any]) -> list[str]:
    found = _list(key, table.get(key))
    if not all(isinstance(each, str) for each in found):
        raise ConfigError(f"{key}: expected a list of texts")
    return found


def _text(where: str, entry: Mapping[str, Any], key: str) -> str:
    found = entry.get(key, "")
    if not isinstance(found, str):
        raise ConfigError(f"{where}: {key}: expected a text")
    return "" if found in ("null", "~") else found

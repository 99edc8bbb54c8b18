"""The checks of `lockstep doctor` that concern TLS, users and the admin port, in a cluster whose servers have TLS or users. Pure."""

import json
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.text import format_time
from lockstep.protocol.bodies import BrokerSettings, UserLogin
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.listen_address import is_loopback, parse_listen_address
from lockstep.runtime.security.rights import Action, Kind
from lockstep.runtime.security.users import User, Users

ENDS_DAYS_MIN = 30
"""A certificate that ends sooner is a finding."""
DAY_S = 86_400
NAMED_MAX = 5
"""The users whom a finding names."""


@dataclass(frozen=True, slots=True)
class SecuredServer:
    """What a server reports of its settings and of logins."""

    where: str
    settings: Mapping[str, Any]
    """Name → value."""
    users_digest: str | None
    logins: tuple[UserLogin, ...] = ()
    reload_failure: str | None = None

    @classmethod
    def of(cls, where: str, report: BrokerSettings) -> "SecuredServer":
        settings = {each.name: None if each.value is None else json.loads(each.value) for each in report.settings}
        return cls(where, settings, report.users_digest, report.logins or (), report.reload_failure)

    @property
    def has_tls(self) -> bool:
        return self.settings.get("tls_cert") is not None and self.settings.get("tls") != "off"

    @property
    def has_users(self) -> bool:
        return self.settings.get("security") is not None

    @property
    def reachable(self) -> list[str]:
        """Return the ports of clients that other machines reach."""
        listeners = map(parse_listen_address, self.settings.get("listen") or ())
        return [f"{host}:{port}" for _, host, port in listeners if not is_loopback(host)]


def check_servers(servers: Sequence[SecuredServer]) -> list[Finding]:
    """Compare what servers require with what others of the cluster require. Nothing if none has TLS or users."""
    tls, users = (any(map(has, servers)) for has in (lambda each: each.has_tls, lambda each: each.has_users))
    found = [_encrypted(each) for each in servers if tls and each.reachable]
    found += [_login(each) for each in servers if users and each.reachable]
    found += [_signatures(each) for each in servers if each.has_users and each.reachable]
    found += [_admin_port(each) for each in servers if (tls or users) and each.settings.get("admin_listen") is not None]
    found += [_files_read(each) for each in servers if tls or users]
    return found + ([_same_users(servers)] if users else [])


def _encrypted(server: SecuredServer) -> Finding:
    if server.has_tls and server.settings.get("tls") in (None, "require"):
        return Finding("TLS required", server.where)
    if server.has_tls:
        step = "restart it without --tls allow when its lockstep_plain_connections is 0 (docs/security.md, Switch a running cluster over)"
    else:
        step = "give it a certificate (--tls-cert, --tls-key): `lockstep security init DIRECTORY` makes one"
    return Finding("TLS required", server.where, f"{_ports(server)} accepts connections without TLS from other machines", step)


def _login(server: SecuredServer) -> Finding:
    if server.has_users and server.settings.get("users") == "required":
        return Finding("login required", server.where)
    if server.has_users:
        step = "restart it without --users optional when its lockstep_anonymous_connections is 0"
    else:
        step = "start it with the file of users that the other servers have (--security)"
    return Finding("login required", server.where, f"{_ports(server)} serves other machines without a login", step)


def _signatures(server: SecuredServer) -> Finding:
    seen = sorted((each for each in server.logins if each.signed and each.exposed), key=lambda each: -each.wall_ms)
    if not seen:
        return Finding("signed requests by TLS", server.where)
    named = ", ".join(f"{each.user} (last from {each.peer}, {format_time(each.wall_ms)})" for each in seen[:NAMED_MAX])
    more = f" and {len(seen) - NAMED_MAX} more users" if len(seen) > NAMED_MAX else ""
    problem = f"who reads the network can send signed requests again: without TLS came those of {named}{more}"
    step = "let these clients of RocketMQ connect by TLS (-Dtls.enable=true; docs/security.md, Clients), and the server require it"
    return Finding("signed requests by TLS", server.where, problem, step)


def _ports(server: SecuredServer) -> str:
    return ", ".join(server.reachable)


def _admin_port(server: SecuredServer) -> Finding:
    settings = server.settings
    host, port = parse_address(settings["admin_listen"])
    if is_loopback(host) or settings.get("admin_token_file") is not None or settings.get("insecure") not in (True, "anonymous"):
        return Finding("admin port guarded", server.where)
    problem = f"other machines may read the metrics, set the log level and let it read its files at {host}:{port} without a token"
    return Finding("admin port guarded", server.where, problem, "set admin_token_file, or start it without --insecure anonymous")


def _files_read(server: SecuredServer) -> Finding:
    name = "files read"
    if server.reload_failure is not None:
        problem = f"what it read before remains in force: {server.reload_failure}"
        return Finding(name, server.where, problem, "correct the file: the server reads it again by itself")
    if server.settings.get("security_last_good"):
        problem = f"it has the users of the copy in its store, and does not read {server.settings['security']}"
        return Finding(name, server.where, problem, "correct that file, and restart the broker without --security-last-good")
    return Finding(name, server.where)


def _same_users(servers: Iterable[SecuredServer]) -> Finding:
    digests: dict[str, list[str]] = {}
    for each in servers:
        if each.users_digest is not None:
            digests.setdefault(each.users_digest, []).append(each.where)
    if len(digests) < 2:
        return Finding("one file of users", "cluster")
    problem = "servers have different files: " + "; ".join(f"{digest} at {', '.join(at)}" for digest, at in sorted(digests.items()))
    step = "copy one file to all of them, and ask again in 10 s: `lockstep user list --json` shows the digest of a file"
    return Finding("one file of users", "cluster", problem, step)


def check_certificate(where: str, certificate: Mapping[str, Any], addresses: Iterable[str], now_ms: int) -> list[Finding]:
    """Check the certificate of a server as `getpeercert` returns it. `addresses`: those at which clients connect to the server."""
    ends = certificate.get("notAfter", "")
    left_days = (ssl.cert_time_to_seconds(ends) - now_ms / 1000) / DAY_S if ends else ENDS_DAYS_MIN
    names = [(kind, name) for kind, name in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    missing = sorted({host for host, _ in map(parse_address, addresses) if not any(_is_for(kind, name, host) for kind, name in names)})
    found = [Finding("certificate valid", where), Finding("certificate names", where)]
    if left_days < ENDS_DAYS_MIN:
        step = "renew it: servers read the file again by themselves. `lockstep security init` makes one by the authority that is there"
        found[0] = Finding("certificate valid", where, f"its certificate ends in {max(0, int(left_days))} days: {ends}", step)
    if missing:
        problem = f"its certificate is not for {', '.join(missing)}, where clients connect: it has {', '.join(name for _, name in names)}"
        step = "make one with these names (`lockstep security init --name`), or correct --advertise"
        found[1] = Finding("certificate names", where, problem, step)
    return found


def _is_for(kind: str, name: str, host: str) -> bool:
    """Return whether a name of a certificate is that of a host, as TLS compares them (RFC 6125): a wildcard stands for one label."""
    if kind == "IP Address":
        try:
            return ip_address(name) == ip_address(host.strip("[]"))
        except ValueError:
            return False
    host, name = host.lower().rstrip("."), name.lower()
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:] and not host.startswith("."))


def check_users(path: str, users: Users, servers: Iterable[SecuredServer]) -> list[Finding]:
    """Check a file of users: the servers should have the same, and only super users should have all rights."""
    others = sorted({each.users_digest for each in servers if each.users_digest is not None} - {users.digest})
    found = [Finding("users in force", path)]
    if others:
        problem = f"the file has the digest {users.digest}, and servers have {', '.join(others)}"
        found = [Finding("users in force", path, problem, "copy the file to all servers, and ask again in 10 s")]
    return found + [_narrow(user) for _, user in sorted(users.users.items())]


def _narrow(user: User) -> Finding:
    step = "give it the names that it needs (docs/permissions.md)"
    if not user.rights.is_super and "*" in user.brokers:
        return Finding("rights of a user", user.name, "it may register brokers of every name", step)
    if not user.rights.is_super and all(
        any(action in rule.actions and rule.kind is kind and rule.name == "*" for rule in user.rights.allow)
        for kind in (Kind.TOPIC, Kind.GROUP)
        for action in (Action.PUB, Action.SUB, Action.UPDATE, Action.DELETE)
        if (kind, action) != (Kind.GROUP, Action.PUB)
    ):
        return Finding("rights of a user", user.name, "it may do everything with all topics and groups, and is no super user", step)
    return Finding("rights of a user", user.name)

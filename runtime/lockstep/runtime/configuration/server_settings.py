"""The settings that a broker and a nameserver have in common."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.clock import Clock
from lockstep.runtime.configuration.settings import Range
from lockstep.runtime.configuration.tls_settings import TlsSettings
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.listen_address import ADMIN, NO_USERS, is_loopback, parse_listeners
from lockstep.runtime.connections.server import CONNECTIONS_MAX
from lockstep.runtime.logs.audit_file import AuditFile
from lockstep.runtime.requests.audit import OFF, STDOUT, RequestAudit, to_file, to_log
from lockstep.runtime.security.admin_token import GUARDED, AdminToken, read_token
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.users import Users, watch_users
from lockstep.runtime.security.watched_files import WatchedFiles


@dataclass(frozen=True, kw_only=True)
class ServerSettings(TlsSettings):
    """Where a server listens, its certificate, its admin port, its limit of connections and its log level.

    Each server has its own default for `listen`.
    """

    listen: Annotated[tuple[str, ...], Range(1)]
    admin_listen: Annotated[
        str | None,
        "HOST:PORT of the admin port: /livez, /readyz, /metrics, /log-level, /reload. Off by default. Port 0: any free port.",
    ] = None
    admin_host: Annotated[
        tuple[str, ...], "A name that clients of the admin port may use (HTTP's Host), besides addresses and this machine's name."
    ] = ()
    admin_token_file: Annotated[
        str | None,
        "File whose first line is the token that /metrics, /log-level and /reload need. Without it other machines get none of them.",
    ] = None
    admin_open: Annotated[Literal["metrics"] | None, "Page of the admin port that needs no token."] = None
    connections_max: Annotated[int, Range(1), "Connections at a time; fewer if the limit of file descriptors (ulimit -n) is low."] = (
        CONNECTIONS_MAX
    )
    security: Annotated[str | None, "TOML file of the users, who have to log in. `lockstep user add` makes it."] = None
    users: Annotated[
        Literal["required", "optional"], "Whether clients have to log in if there are users; optional: for the time in which they learn to."
    ] = "required"
    audit: Annotated[
        str | None,
        "Where logins, refusals and changes are written: a FILE, `stdout` (the log), or `off`. By default the log if there are users, else "
        "off.",
    ] = None
    log_level: Annotated[Literal["debug", "info", "warning", "error"], "The lowest level that is logged."] = "info"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.users == "optional" and self.security is None:
            raise ConfigError("users = optional needs users: set security to the file that has them")
        has_users = self.security is not None and self.users == "required"
        no_users = NO_USERS if self.security is None else "requires no login (leave --users optional out)"
        self.check_exposure(self.listeners(), users=has_users, no_users=no_users)
        self.check_exposure(self.admin_listener(), users=True)

    @property
    def has_secrets(self) -> bool:
        """Return whether the process has keys or users in its memory."""
        return self.security is not None or self.admin_token_file is not None or super().has_secrets

    def open_security(self) -> ServerSecurity:
        """Read the files. Raise ConfigError if they can't be used."""
        users = None if self.security is None else self.open_users(self.security)
        token = None if self.admin_token_file is None else self._open_token(self.admin_token_file)
        found = replace(super().open_security(), admin_token=token, guarded=self._guarded())
        return found if users is None else replace(found, users=users, users_optional=self.users == "optional")

    def open_users(self, path: str) -> WatchedFiles[Users]:
        """Read the file of users, and the secrets that it names, beside that of the setting. Raise ConfigError if one can't be used."""
        return watch_users(path, beside=self.security)

    def open_audit(self, server: str, clock: Clock) -> RequestAudit:
        """Return the audit of a server with this name. Raise ConfigError if its file can't be opened."""
        target = self.audit or (OFF if self.security is None else STDOUT)
        if target in (OFF, STDOUT):
            return RequestAudit(server, to_log if target == STDOUT else None)
        file = AuditFile(target)
        return RequestAudit(server, to_file(file, clock), file.reopen)

    def _open_token(self, path: str) -> WatchedFiles[AdminToken]:
        return WatchedFiles([path], lambda: read_token(path))

    def _guarded(self) -> frozenset[str]:
        """Return the pages of the admin port that need the token."""
        reachable = any(not is_loopback(host) for host, _ in self.admin_listener().values())
        if self.admin_token_file is None and (not reachable or self.insecure in (True, "anonymous")):
            return frozenset()
        return GUARDED - {f"/{self.admin_open}"}

    def listeners(self) -> dict[str, tuple[str, int]]:
        """Return the (host, port) that each listener binds, by its name."""
        return parse_listeners(self.listen)

    def admin_listener(self) -> dict[str, tuple[str, int]]:
        """Return `admin` and its (host, port), or nothing if the admin port is disabled."""
        return {} if self.admin_listen is None else {ADMIN: parse_address(self.admin_listen)}

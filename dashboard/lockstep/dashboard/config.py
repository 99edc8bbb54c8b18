"""Settings of the dashboard."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lockstep.client.config import DEFAULT_NAMESERVER
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.tls_settings import TlsSettings
from lockstep.runtime.connections.address import parse_address
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.connections.listen_address import is_loopback

LISTENER = "dashboard"


@dataclass(frozen=True, kw_only=True)
class DashboardConfig(TlsSettings):
    """The dashboard shows a cluster in the browser. It changes nothing, unless that is allowed."""

    nameserver: Annotated[str, "HOST:PORT of the nameservers, separated by semicolons, or a URL (lockstep://HOST:PORT/?tls_ca=FILE)."] = (
        DEFAULT_NAMESERVER
    )
    listen: Annotated[str, "HOST:PORT to listen on. Port 0: any free port."] = "127.0.0.1:9880"
    host_name: Annotated[tuple[str, ...], "A name under which browsers may open it (HTTP's Host), besides addresses and localhost."] = ()
    root_path: Annotated[str, "The path under which a proxy serves it, as in /lockstep."] = ""
    require_login: Annotated[
        bool | None,
        "Let browsers log in as users of the cluster. Default: if the dashboard itself does, and if other machines reach it.",
    ] = None
    allow_changes: Annotated[bool, "Let browsers change topics, groups and dead letters, after a confirmation."] = False
    no_bodies: Annotated[bool, "Show no bodies of messages, and search none."] = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], "The lowest level that is logged."] = "info"

    def __post_init__(self) -> None:
        super().__post_init__()
        ClusterAddress.parse(self.nameserver)
        no_users = "requires no login (leave --no-require-login out)"
        self.check_exposure({LISTENER: self.address}, users=self.require_login is not False, no_users=no_users)
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"root_path is {self.root_path!r}: expected a path that begins with a slash and does not end with one")

    @property
    def has_secrets(self) -> bool:
        """Return whether the process has keys or passwords in its memory."""
        return self.login is True or ClusterAddress.parse(self.nameserver).user is not None or super().has_secrets

    @property
    def login(self) -> bool | None:
        """Return whether browsers have to log in. None: if the dashboard itself does."""
        reachable = not is_loopback(self.address[0]) and self.insecure not in (True, "anonymous")
        return True if self.require_login is None and reachable else self.require_login

    @property
    def address(self) -> tuple[str, int]:
        """Return the (host, port) to listen on."""
        return parse_address(self.listen)

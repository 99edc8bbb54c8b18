"""The settings of TLS that every server has, the dashboard too."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.configuration.config import Settings
from lockstep.runtime.connections.listen_address import NO_TLS, NO_USERS, Waiver, check_exposure, is_loopback
from lockstep.runtime.security.server_security import ServerSecurity
from lockstep.runtime.security.tls import ServerCertificate, ServerTls


@dataclass(frozen=True, kw_only=True)
class TlsSettings(Settings):
    """The certificate of a server, and whether connections without TLS are accepted."""

    tls_cert: Annotated[str | None, "PEM file of this server's certificate, with those between it and its authority."] = None
    tls_key: Annotated[str | None, "PEM file of its key."] = None
    tls_client_ca: Annotated[str | None, "PEM file of authorities: a client has to show a certificate of one of them."] = None
    tls: Annotated[
        Literal["off", "allow", "require"] | None,
        "Connections with TLS are refused (off), accepted besides plain ones (allow), or the only ones. With a certificate the default is "
        "require, and allow on 127.0.0.1; without one it is off.",
    ] = None
    insecure: Annotated[
        Waiver,
        "Let other machines connect without TLS (plaintext), without a login (anonymous), or without both, if no word is given.",
    ] = False
    core: Annotated[bool, "Leave a core file after a crash, although this process has keys or passwords in its memory."] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError(
                f"tls_cert is {self.tls_cert!r} and tls_key {self.tls_key!r}: a certificate needs its key, and a key its certificate"
            )
        if self.tls_cert is None and (self.tls_client_ca is not None or self.tls in ("allow", "require")):
            setting = "tls_client_ca" if self.tls_client_ca is not None else f"tls = {self.tls}"
            raise ConfigError(f"{setting} needs a certificate of this server: set tls_cert and tls_key")

    @property
    def requires_remote_tls(self) -> bool:
        """Return whether a listener that other machines reach requires TLS."""
        return self.tls_cert is not None and self.tls in (None, "require")

    def check_exposure(self, listeners: Mapping[str, tuple[str, int]], *, users: bool, no_users: str = NO_USERS) -> None:
        """Raise ConfigError if a listener can be reached from other machines, and lacks TLS or logins that `insecure` does not waive.

        `users`: whether it requires logins there. `no_users`: the words for one that does not.
        """
        no_tls = NO_TLS if self.tls_cert is None else f"does not require TLS (leave --tls {self.tls} out)"
        check_exposure(listeners, self.insecure, tls=self.requires_remote_tls, users=users, no_tls=no_tls, no_users=no_users)

    @property
    def has_secrets(self) -> bool:
        """Return whether the process has keys or users in its memory."""
        return self.tls_key is not None

    def open_security(self) -> ServerSecurity:
        """Read the files. Raise ConfigError if they can't be used."""
        if self.tls_cert is None or self.tls_key is None or self.tls == "off":
            return ServerSecurity()
        return ServerSecurity(ServerTls(ServerCertificate(self.tls_cert, self.tls_key, self.tls_client_ca)), self._requires_tls)

    def _requires_tls(self, host: str) -> bool:
        return self.tls == "require" or (self.tls is None and not is_loopback(host))

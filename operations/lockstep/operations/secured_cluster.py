"""Makes what a cluster needs to be secure, as files of one directory: certificates, the file of users, and their passwords.

ca.pem  ca.key          the authority
SERVER.pem  SERVER.key  the certificate of servers
users.toml              the users: `admin`, who may do everything, and one for each broker
NAME.password           the password of each user that was made here, for its owner only
"""

import base64
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.operations.administrator_files import replace_file
from lockstep.operations.certificates import MadeCertificate, make_certificate
from lockstep.operations.users_file import UsersFile
from lockstep.protocol.errors import ConfigError
from lockstep.protocol.names import check_broker_name
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.security.tls import Tls
from lockstep.runtime.security.users import check_user_name

SUPER_USER = "admin"
PASSWORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class SecuredCluster:
    """The files, and how they are used."""

    certificate: MadeCertificate
    users: Path | None
    """The file of users; None if the cluster has none."""
    passwords: dict[str, Path]
    """The users that were made now, each with the file of its password."""

    def url(self, nameserver: str, user: str = SUPER_USER) -> str:
        """Return the address of the cluster for one of its users; without a login if there are no users."""
        tls = Tls(ca=self.certificate.ca)
        if self.users is None:
            return str(ClusterAddress((nameserver,), tls))
        return str(ClusterAddress((nameserver,), tls, user, str(password_file(self.users.parent, user))))

    def server_settings(self) -> dict[str, str]:
        """Return the settings of a server that has these files and requires TLS and logins on all its ports."""
        users = {} if self.users is None else {"security": str(self.users)}
        return {"tls": "require", "tls_cert": str(self.certificate.cert), "tls_key": str(self.certificate.key), **users}

    def client_lines(self, nameserver: str) -> list[str]:
        """Return the lines by which a shell and a program find the cluster."""
        url = self.url(nameserver)
        return [f"export LOCKSTEP_NAMESERVER={shlex.quote(url)}", "lockstep cluster", f'Producer("my-service", nameserver="{url}")']


def secure_cluster(
    directory: Path,
    server: str,
    names: Sequence[str],
    days: int,
    *,
    brokers: Sequence[str],
    with_users: bool,
    now_ms: int,
    random_bytes: Callable[[int], bytes],
) -> SecuredCluster:
    """Make a certificate for servers as `make_certificate` does, and the users that are missing.

    Raises:
        ConfigError: A name is no host name and no address, or a broker's name can't be that of its user.
        LocalProtocolError: A broker's name is no name of a broker.
        OperationError: A file can't be read or written.
    """
    directory = directory.absolute()
    for name in brokers:
        check_broker_name(name)
        check_user_name(name)
        if name == SUPER_USER:
            raise ConfigError(f"--broker {name}: that is the name of the user who may do everything; a broker has a user of its own")
    certificate = make_certificate(directory, server, names, days, now_ms)
    if not with_users:
        return SecuredCluster(certificate, None, {})
    users = UsersFile(directory / "users.toml", random_bytes)
    return SecuredCluster(certificate, users.path, _add_users(users, brokers))


def _add_users(users: UsersFile, brokers: Sequence[str]) -> dict[str, Path]:
    """Add the super user to a new file, and the users of brokers that it lacks. Return the files of their passwords."""
    known = set(users.read().users) if users.path.exists() else None
    missing = [*([SUPER_USER] if known is None else []), *(name for name in dict.fromkeys(brokers) if name not in (known or ()))]
    passwords = {name: password_file(users.path.parent, name) for name in missing}
    for name, path in passwords.items():
        password = base64.urlsafe_b64encode(users.random_bytes(PASSWORD_BYTES)).decode()
        replace_file(path, f"{password}\n".encode(), 0o600)
        users.add(name, password, {"super": True} if name == SUPER_USER else {"brokers": [name]})
    return passwords


def password_file(directory: Path, user: str) -> Path:
    """Return where the password of a user is."""
    return directory / f"{user}.password"

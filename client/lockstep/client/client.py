"""The connections that producers and consumers of one process share."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from lockstep.client.config import DEFAULT_NAMESERVER, ClientConfig, GroupArguments, NameserverAddresses
from lockstep.client.instance import Instance
from lockstep.client.life import OfOneProcess
from lockstep.client.settings import takes_arguments_of
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.cluster_address import ClusterAddress, Login
from lockstep.runtime.host import Host, running_host
from lockstep.runtime.security.credentials import PasswordSource
from lockstep.runtime.security.tls import Tls


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientArguments(ClientConfig):
    """The arguments of Client."""

    nameserver: NameserverAddresses = field(default=DEFAULT_NAMESERVER, kw_only=False, repr=False)
    tls: Tls | bool | None = None
    user: str | None = None
    password: PasswordSource | None = field(default=None, repr=False)
    login_optional: bool = False
    host: Host | None = None


class Client(OfOneProcess):
    """The connections of a process to one cluster: `Producer("orders", client=client)`, `PushConsumer("billing", client=client)`.

    Producers and consumers with the same client share one session, one connection to each broker, one route cache and one heartbeat.
    Without this argument they create a client of their own. The first that starts opens the connections, and the last that stops closes
    them; then the client can be used again. A client can be used in any event loop, and has separate connections in each.

    Args:
        nameserver: "HOST:PORT", several separated by ";", a list of them, or "lockstep://HOST:PORT/?tls_ca=FILE". Default: 127.0.0.1:9876.
        tls: Connect by TLS: True, or Tls(ca=FILE), which says what the client trusts and shows. Default: plain connections.
        user: The user to log in as. Default: that of the URL, or LOCKSTEP_USER, or none.
        password: The password, the Path of a file that has it, or a function that returns it; the latter two are asked at each login.
            Default: the URL's password or password_file, LOCKSTEP_PASSWORD, or the file that LOCKSTEP_PASSWORD_FILE names.
        login_optional: Go on with servers that ask for no login.
        host: The clock, randomness and files to use; for tests. Default: those of this machine.

    The other arguments are the settings of ClientConfig.

    Raises:
        ConfigError: A setting has the wrong type or is out of range, an address is invalid, or a file of TLS can't be used.
    """

    @takes_arguments_of(ClientArguments)
    def __init__(self, arguments: ClientArguments) -> None:
        self.address = ClusterAddress.parse(arguments.nameserver, arguments.tls, may_have_password=True)
        self._security = self.address.security(Login(arguments.user, arguments.password, arguments.login_optional))
        self.config: ClientConfig = arguments
        self._host = arguments.host
        self._instances: list[Instance] = []

    def __repr__(self) -> str:
        return f"<Client {self.address}>"

    def instance(self, group: str | None = None) -> Instance:
        """Return the running loop's instance and take a reference, which `await instance.close()` releases.

        Producers, consumers and lockstep's own tools call this. It is not part of the SDK's interface, because Instance is not exported:
        programs pass the client to producers and consumers.

        A session names each consumer group once: if `group` is in the instance already, the group gets another one.
        """
        loop = asyncio.get_running_loop()
        for instance in self._instances:
            if instance.loop.is_closed():
                instance.abandon()
        self._instances = [instance for instance in self._instances if not instance.closing]
        for instance in self._instances:
            if instance.loop is loop and instance.reserve(group):
                return instance
        instance = Instance(
            self.address.nameservers, security=self._security, host=self._host or running_host() or Host.real(), config=self.config
        )
        instance.reserve(group)
        self._instances.append(instance)
        return instance


@dataclass(frozen=True, kw_only=True)
class ConnectionArguments(GroupArguments):
    """The arguments that choose the connections of a producer or consumer."""

    client: Client | None = None
    host: Host | None = None

    def open_client(self) -> Client:
        """Return the given client, or a new one.

        Raises:
            ConfigError: A client and one of its settings were given, or an address is invalid.
        """
        if self.client is None:
            nameserver = DEFAULT_NAMESERVER if self.nameserver is None else self.nameserver
            login: dict[str, Any] = {"user": self.user, "password": self.password, "login_optional": self.login_optional}
            return Client(nameserver, tls=self.tls, host=self.host, **login)
        optional = self.login_optional or None
        given = {"nameserver": self.nameserver, "tls": self.tls, "user": self.user, "password": self.password, "login_optional": optional}
        for name, value in (given | {"host": self.host}).items():
            if value is not None:  # which is not shown: it may be a password, or have one
                raise ConfigError(f"client={self.client!r} and {name}=…: give one of them; a client has its {name} already")
        return self.client

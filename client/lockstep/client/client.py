"""The connections that producers and consumers of one process share."""

import asyncio
from typing import Unpack

from lockstep.client.config import DEFAULT_NAMESERVER, ClientConfig, ClientOptions, Nameserver, nameserver_addresses, takes_settings_of
from lockstep.client.instance import Instance
from lockstep.protocol.errors import ConfigError
from lockstep.runtime.host import Host, running_host


class Client:
    """The connections of a process to one cluster: `Producer("orders", client=client)`, `PushConsumer("billing", client=client)`.

    Producers and consumers that are given the same client share one session, one connection to each broker, one route cache and one
    heartbeat. One that is given none makes a client of its own. The first that starts opens the connections, and the last that stops
    closes them; then the client may be used again. A client serves any event loop; each has connections of its own.

    Args:
        nameserver: "HOST:PORT", several separated by ";", or a list of them.

    The other arguments are the settings of ClientConfig.

    Raises:
        ConfigError: An address is invalid.
    """

    @takes_settings_of(ClientConfig)
    def __init__(self, nameserver: Nameserver = DEFAULT_NAMESERVER, *, host: Host | None = None, **options: Unpack[ClientOptions]) -> None:
        self.addresses = nameserver_addresses(nameserver)
        self.config = ClientConfig(**options)
        self._host = host
        self._instances: list[Instance] = []

    def __repr__(self) -> str:
        return f"<Client {';'.join(self.addresses)}>"

    def instance(self, group: str | None = None) -> Instance:
        """Return the running loop's instance, with one reference taken: give it back by `await instance.close()`.

        A session names each consumer group once: if `group` is in the instance already, the group gets another one.
        """
        loop = asyncio.get_running_loop()
        self._instances = [instance for instance in self._instances if not instance.closing and not instance.loop.is_closed()]
        for instance in self._instances:
            if instance.loop is loop and instance.reserve(group):
                return instance
        instance = Instance(self.addresses, host=self._host or running_host() or Host.real(), config=self.config)
        instance.reserve(group)
        self._instances.append(instance)
        return instance


def client_of(client: Client | None, nameserver: Nameserver | None, host: Host | None) -> Client:
    """Return the client that a producer or consumer was given, or one of its own.

    Raises:
        ConfigError: It was given a client and a nameserver, or an address is invalid.
    """
    if client is None:
        return Client(DEFAULT_NAMESERVER if nameserver is None else nameserver, host=host)
    if nameserver is not None or host is not None:
        raise ConfigError(f"client={client!r} and nameserver={nameserver!r}: give one of them; a client has its nameserver already")
    return client

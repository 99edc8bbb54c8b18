"""Finds the addresses at which clients and brokers reach this broker."""

import asyncio
from collections.abc import Mapping, Sequence

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.connections.address import parse_address

WILDCARDS = frozenset({"0.0.0.0", "::", ""})
LOOPBACK = "127.0.0.1"


async def advertise(bound: Mapping[str, str], configured: Mapping[str, str], nameservers: Sequence[str]) -> dict[str, str]:
    """Return listener name → advertised address.

    That is the address in the settings (port 0 means the bound one), else the bound address; if that is a wildcard, the address from which
    this machine reaches its nameservers. Raise ConfigError if none of these yields an address.
    """
    addresses = {}
    for name, address in bound.items():
        host, port = parse_address(configured.get(name, address))
        if host in WILDCARDS:
            host = await _own_address(nameservers)
        addresses[name] = _join(host, port or parse_address(address)[1])
    return addresses


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _own_address(nameservers: Sequence[str]) -> str:
    """Return the local end of a datagram socket that is connected to a nameserver. Nothing is sent."""
    loop = asyncio.get_running_loop()
    reasons = []
    for nameserver in nameservers:
        try:
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=parse_address(nameserver))
        except OSError as error:
            reasons.append(f"{nameserver}: {error.strerror or error}")
            continue
        name = transport.get_extra_info("sockname")
        transport.abort()
        return str(name[0])
    if not nameservers:
        return LOOPBACK
    raise ConfigError(f"no address to advertise for a wildcard listener ({'; '.join(reasons)}): specify --advertise [NAME=]HOST:PORT")

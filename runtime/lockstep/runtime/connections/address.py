"""Parse and format addresses, and format the operating system's errors."""

import os
import re
import ssl

from lockstep.protocol.errors import ConfigError
from lockstep.runtime.security.tls import tls_reason

_HOST = re.compile(r"[^\s\x00-\x1f\x7f]{1,255}")
_PORT = re.compile(r"[0-9]{1,5}")


def parse_address(address: str) -> tuple[str, int]:
    """Split "host:port" or "[ipv6]:port". Raise ConfigError if it is neither."""
    host, colon, port = address.strip().rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or int(port) > 65_535:
        raise ConfigError(f"{address[:80]!r} is not an address: expected HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def os_reason(error: OSError) -> str:
    """Return the system's text for an error, which is the same on every loop ("connection refused"), or what an error of TLS means."""
    if isinstance(error, ssl.SSLError):
        return tls_reason(error)
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error) or "closed by the peer"


def format_address(name: object) -> str:
    """Return a socket name as "ip:port" ("[ip]:port" for IPv6)."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return "unknown"

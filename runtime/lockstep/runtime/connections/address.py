"""Format socket addresses and the operating system's errors."""

import os


def os_reason(error: OSError) -> str:
    """Return the system's text for an error, which is the same on every loop ("connection refused")."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def format_address(name: object) -> str:
    """Return a socket name as "ip:port" ("[ip]:port" for IPv6)."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = name[0], name[1]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return "unknown"

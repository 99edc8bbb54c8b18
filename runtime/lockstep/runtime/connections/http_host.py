"""The Host of an HTTP request. A server without authentication must know its own names.

A web page can point a name of its own at the address of this machine (DNS rebinding), and a browser would then let it read what this server
answers. A request by an address can't come from such a page.
"""

from collections.abc import Iterable
from ipaddress import ip_address


def is_own_host(field: str, names: Iterable[str]) -> bool:
    """Return whether a Host field is an address, `localhost` or one of these names, in any case."""
    name = name_of_host(field)
    return is_address(name) or name in ("localhost", *(each.lower() for each in names))


def name_of_host(field: str) -> str:
    """Return the name or address of a Host field, in lower case, without the port."""
    field = field.lower()
    if field.startswith("["):
        return field[1:].partition("]")[0]
    return field if field.count(":") > 1 else field.partition(":")[0].rstrip(".")


def is_address(name: str) -> bool:
    """Return whether the name of a Host is an IP address."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True

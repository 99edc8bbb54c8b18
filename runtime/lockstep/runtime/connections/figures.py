"""The metrics of a server's connections."""

from lockstep.runtime.connections.server import Server
from lockstep.runtime.metrics import MetricFamilies


def add_connections(families: MetricFamilies, server: Server) -> None:
    """Add how many connections are open, and if the server has TLS, how handshakes go and whether its files can be used."""
    families.gauge("lockstep_connections", "Open connections.", rows=[((), len(server.endpoints))])
    security = server.security
    if security.tls is not None or security.users is not None:
        text = "1 if files of certificates or users can't be used and what was read before remains in force."
        families.gauge("lockstep_security_reload_failed", text, rows=[((), float(security.failure is not None))])
    if security.users is not None:
        text = "Open connections on which nobody has logged in or signed a request."
        anonymous = sum(each.is_anonymous for each in server.endpoints.values())
        families.gauge("lockstep_anonymous_connections", text, rows=[((), anonymous)])
    if security.tls is None:
        return
    families.gauge("lockstep_plain_connections", "Open connections without TLS.", rows=[((), server.plain_count)])
    families.gauge("lockstep_half_open_connections", "Connections whose handshake is not complete.", rows=[((), server.half_open_count)])
    text = "Connections that did not become open: their handshake failed, or they began with something else."
    families.counter("lockstep_connections_refused", text, rows=[((), server.refused_count)])

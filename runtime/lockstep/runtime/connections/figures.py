"""The metrics of a server's connections."""

from lockstep.runtime.connections.server import Server
from lockstep.runtime.metrics import MetricFamilies


def add_connections(families: MetricFamilies, server: Server) -> None:
    """Add how many connections are open, and if the server has TLS, how handshakes go and whether its files can be used."""
    families.gauge("lockstep_connections", "Open connections.", rows=[((), len(server.endpoints))])
    tls = server.security.tls
    if tls is None:
        return
    families.gauge("lockstep_plain_connections", "Open connections without TLS.", rows=[((), server.plain_count)])
    families.gauge("lockstep_half_open_connections", "Connections whose handshake is not complete.", rows=[((), server.half_open_count)])
    text = "Connections that did not become open: their handshake failed, or they began with something else."
    families.counter("lockstep_connections_refused", text, rows=[((), server.refused_count)])
    text = "1 if the files of TLS can't be used and those that were read before remain in force."
    families.gauge("lockstep_tls_reload_failed", text, rows=[((), float(tls.failure is not None))])

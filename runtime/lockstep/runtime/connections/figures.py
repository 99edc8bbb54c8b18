"""The metrics of a server's connections."""

from lockstep.runtime.connections.server import Server
from lockstep.runtime.metrics import MetricFamilies
from lockstep.runtime.requests.audit import RequestAudit


def add_access(families: MetricFamilies, audit: RequestAudit) -> None:
    """Add what was refused for missing rights and logins, and what the audit lacks."""
    rows = [((user,), count) for user, count in audit.failed_logins.items()]
    families.counter("lockstep_logins_failed", "Logins that failed; those of unknown users have no name.", ("user",), rows)
    rows = [((user,), count) for user, count in audit.denied.items()]
    families.counter("lockstep_requests_denied", "Requests refused for missing rights, or for want of a login.", ("user",), rows)
    families.counter("lockstep_audit_dropped", "Events of the audit that could not be written.", rows=[((), audit.dropped)])


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

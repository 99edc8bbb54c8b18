"""Metrics of the copies of a broker's log: those that a master exports of its replicas, and those of a replica."""

from lockstep.broker.config import BrokerConfig
from lockstep.protocol.bodies import RegisterStanding, ReplicaStanding, ReplicaStatus
from lockstep.runtime.connections.figures import add_access, add_connections
from lockstep.runtime.connections.server import Server
from lockstep.runtime.metrics import MetricFamilies
from lockstep.runtime.requests.audit import RequestAudit


def add_replicas(families: MetricFamilies, master: ReplicaStatus) -> None:
    """Add the role of a master, and what it knows of its register and its replicas: no series for a master without any."""
    _add_role(families, master.role, master.register)
    by_address: dict[str, ReplicaStanding] = {}
    for each in sorted(master.replicas, key=lambda each: (each.in_set, each.connected, each.stored)):
        by_address[each.address] = each  # a replica that began anew is another member at its address: the one that is there now counts
    text = "Replicas in the set: what is acknowledged waits for each of them."
    in_sync = sum(each.in_set for each in by_address.values())
    families.gauge("lockstep_replicas_in_sync", text, rows=[((), in_sync)] if by_address else [])
    rows = [((address,), float(each.connected)) for address, each in by_address.items()]
    families.gauge("lockstep_replica_connected", "1 if this replica is connected to its master.", ("replica",), rows)
    rows = [((address,), float(max(0, master.end - each.stored))) for address, each in by_address.items() if each.stored]
    text = "Bytes of the log that this replica lacks. Not known of one that has not followed since the master's start."
    families.gauge("lockstep_replica_behind_bytes", text, ("replica",), rows)


def _add_role(families: MetricFamilies, role: str, register: RegisterStanding | None) -> None:
    families.gauge("lockstep_role", "1: what this copy of the broker's log is.", ("role",), [((role,), 1.0)])
    reached = [] if register is None else [((), float(register.read_ms is not None and not register.unreachable))]
    families.gauge("lockstep_register_reached", "1 if the register answered when it was asked last.", rows=reached)
    terms = [] if register is None or register.read_ms is None else [((), float(register.term))]
    families.gauge("lockstep_register_term", "The term in the register as it was read last, 0 if it has no entry.", rows=terms)


def _families(config: BrokerConfig) -> MetricFamilies:
    return MetricFamilies({"cluster": config.cluster, "node_type": "broker", "node_id": config.name})


async def render_starting(config: BrokerConfig, register: RegisterStanding) -> bytes:
    """Return all metrics of a copy that is neither a master nor a replica yet, by what its register says."""
    families = _families(config)
    _add_role(families, "starting", register)
    return await families.render()


async def render_replica(config: BrokerConfig, copy: ReplicaStatus, server: Server, audit: RequestAudit) -> bytes:
    """Return all metrics of a replica as text."""
    families = _families(config)
    _add_role(families, copy.role, copy.register)
    for metric, text, value in (
        ("lockstep_term", "The term of its master.", copy.term),
        ("lockstep_replica_following", "1 if it copies its master's log now.", copy.following),
        ("lockstep_replica_missing_bytes", "Bytes that its master has confirmed and it has not.", max(0, copy.confirmed - copy.end)),
        ("lockstep_replica_unapplied_bytes", "Bytes of its log that are not in its tables yet.", max(0, copy.end - copy.applied)),
    ):
        families.gauge(metric, text, rows=[((), float(value))])
    add_connections(families, server)
    add_access(families, audit)
    return await families.render()

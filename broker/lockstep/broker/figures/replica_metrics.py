"""Metrics of the copies of a broker's log: those that a master exports of its replicas, and those of a replica."""

from lockstep.broker.config import BrokerConfig
from lockstep.protocol.bodies import ReplicaStanding, ReplicaStatus
from lockstep.runtime.connections.figures import add_access, add_connections
from lockstep.runtime.connections.server import Server
from lockstep.runtime.metrics import MetricFamilies
from lockstep.runtime.requests.audit import RequestAudit


def add_replicas(families: MetricFamilies, master: ReplicaStatus) -> None:
    """Add the role of a master, and what it knows of its replicas: no series for a master without any."""
    add_role(families, master)
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


def add_role(families: MetricFamilies, copy: ReplicaStatus) -> None:
    families.gauge("lockstep_role", "1: what this copy of the broker's log is.", ("role",), [((copy.role,), 1.0)])


async def render_replica(config: BrokerConfig, copy: ReplicaStatus, server: Server, audit: RequestAudit) -> bytes:
    """Return all metrics of a replica as text."""
    families = MetricFamilies({"cluster": config.cluster, "node_type": "broker", "node_id": config.name})
    add_role(families, copy)
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

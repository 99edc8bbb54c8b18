"""A closed copy of a log on a simulated disk."""

from lockstep.broker.config import BrokerConfig
from lockstep.broker.replication.closed_copy import ClosedCopy
from lockstep.broker.replication.copy_identity import CopyIdentity
from lockstep.protocol.headers.replication import ReplicaFollowHeader
from lockstep.runtime.security.client_security import NO_SECURITY
from lockstep.testing.simulation.disk import SimFiles
from support.store_kit import PATH, host_of

MASTER, OWN = "10.0.0.1:10911", "10.0.0.2:10911"


def closed_copy(files: SimFiles, identity: CopyIdentity) -> ClosedCopy:
    """Return the copy in PATH that follows MASTER."""
    header = ReplicaFollowHeader("broker-a", "C", "", identity.member, OWN, 0, 0, "1")
    config = BrokerConfig(store=PATH, replica_of=MASTER)
    copy = ClosedCopy(host_of(files), config, NO_SECURITY, lambda: MASTER, lambda: header)
    copy.identity = identity
    return copy

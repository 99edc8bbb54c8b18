"""The copies of brokers' logs, for the page of the cluster."""

from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.replica_query import read_copies
from lockstep.operations.brokers.replicas import MASTER, LogCopy


class KnownCopies:
    """Reads the copies, and remembers where they are: neither a lost master nor a nameserver that was started since may say it."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._seen: dict[str, str] = {}
        """Address → broker."""

    async def read(self) -> list[LogCopy]:
        """Return the copies of each broker that has replicas or a register. Raises TransportError."""
        found = await read_copies(self._admin, addresses=self._seen)
        replicated = {each.broker for each in found if each.role not in (MASTER, None) or each.has_register}
        shown = [each for each in found if each.broker in replicated]
        # One that is not reached is forgotten only when a master answers that does not name it.
        self._seen = {each.address: each.broker for each in shown if each.member or each.master is None}
        return shown

"""What an operator's promotion of a replica without a register has to be refused for: it would lose something."""

from collections.abc import Callable

from lockstep.broker.replication.asking import ask_status
from lockstep.broker.replication.copy_identity import Role
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.errors import ServiceNotAvailableError
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import ClientSecurity


async def check_promotion(
    host: Host, own: ReplicaStatus, address: str, in_set: Callable[[], bool], peers: ClientSecurity, *, force: bool
) -> None:
    """Ask the master and the other copies. Raises ServiceNotAvailableError if the promotion of a replica would lose something.

    `own`: its status. `address`: its own. `in_set` returns whether it is in the set of its master, as that has said last. With `force` only
    a master that answers is a reason.
    """
    master = await ask_status(host, own.master, peers)
    if master is not None and master.role == Role.MASTER and master.store_id == own.store_id and master.term >= own.term:
        raise ServiceNotAvailableError(f"the master at {own.master} answers: stop it first; two masters of one log lose messages")
    if own.complete or force:
        return
    if own.may_have_forgotten:
        raise ServiceNotAvailableError(
            "this replica may have lost messages that it had acknowledged (its machine crashed, or it was restored): promote another "
            "one, or lose them by --force"
        )
    if not in_set():
        raise ServiceNotAvailableError(
            "this replica was not in the set of its master when that answered last: messages may have been acknowledged without it. "
            "Promote another one, or lose them by --force"
        )
    for other_address in sorted({*own.known.values()} - {address, own.master}):
        other = await ask_status(host, other_address, peers)
        if other is not None and other.store_id == own.store_id and (other.term, other.end) > (own.term, own.end):
            raise ServiceNotAvailableError(
                f"the replica at {other_address} has more: its log ends at {other.end}, this one at {own.end}. Promote that one, or lose "
                "the rest by --force"
            )

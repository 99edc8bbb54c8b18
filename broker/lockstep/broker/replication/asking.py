"""Asks other copies of a log for their status: a start that may not open yet, and a promotion."""

from collections.abc import Mapping
from typing import ClassVar

from lockstep.broker.config import BrokerConfig
from lockstep.broker.replication.copy_identity import Role, read_copy_identity
from lockstep.broker.replication.start_rules import CopyStatus, StartVerdict, judge_start
from lockstep.broker.store.start.directory import held_directory
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.responses import checked
from lockstep.runtime.connections.dial import connect
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.security.client_security import ClientSecurity

log = get_logger("broker")

ASK_MS = 2_000


async def ask_status(host: Host, address: str, security: ClientSecurity) -> ReplicaStatus | None:
    """Return the status of the copy at an address, None if none answers within ASK_MS."""
    try:
        endpoint = await connect(host, address, security=security, timeout_ms=ASK_MS)
        try:
            return decode_body(ReplicaStatus, checked(await endpoint.request(RequestCode.REPLICA_STATUS, timeout_ms=ASK_MS)).body)
        finally:
            endpoint.close("asked")
    except (LockstepError, TimeoutError):
        return None


class RoleError(LockstepError):
    """The store is not one with which this broker may start as it was told to: start it in the other role."""

    exit_code: ClassVar[int] = 4


class RoleChangesError(LockstepError):
    """This store may not be the master's now, because of the copy that the settings name: a later start follows that one."""


async def is_replica(host: Host, config: BrokerConfig, security: ClientSecurity) -> bool:
    """Return whether a broker starts as a replica, by its settings and its store. Raises RoleError, StoreError.

    A promoted replica stays a master although its settings still name the old one, unless that has come to rule again. So does a broker
    that has a log and never had a replica, unless a master answers there: the settings name who may take its place. Any other master that
    is started with `--replica-of` is a replica from then on, whether or not its master answers.
    """
    if config.replica_of is None and not host.files.exists(f"{config.store_path()}/lockstep/replica"):
        return False
    with held_directory(host.files, config.store_path()) as directory:
        found, term = await host.threads.run(read_copy_identity, directory), directory.terms()[0]
        was_never_copied = found is None and directory.has_log and not directory.is_restored
    if config.replica_of is None:
        if found is not None and found.role is Role.REPLICA:
            then = "and promote it then by `lockstep replica promote`, if its master does not come back"
            if found.installing:
                then = "of a master that runs: it is half a copy, which nobody can promote"
            raise RoleError(f"store {config.store_path()} is a replica's: start it with --replica-of HOST:PORT, {then}")
        return False
    if not was_never_copied and (found is None or found.role is Role.REPLICA or found.instead_of != config.replica_of):
        return True
    status = await ask_status(host, config.replica_of, security)
    if status is not None and status.role == Role.MASTER and (was_never_copied or status.term > term):
        return True
    log.warning(
        "replica.is_master", replica_of=config.replica_of, term=term, why="this store is a master's, and no later master answers there"
    )
    return False


async def ask_before_start(
    host: Host,
    name: str,
    store_id: str,
    address: str,
    own: CopyStatus,
    members: Mapping[str, str],
    known: Mapping[str, str],
    security: ClientSecurity,
) -> StartVerdict:
    """Return whether a master at `address` may open, by the status of the copies that it knows."""
    answers: dict[str, CopyStatus | None] = {}
    addresses = {**known, **members}
    for member, place in addresses.items():
        status = await ask_status(host, place, security)
        if status is not None and not status.store_id and status.role == Role.REPLICA and status.master == address:
            # It has lost what it had, if it is another member, or is about to read it, or waits for this master to mend it.
            has_nothing = status.member != member or not own.may_have_forgotten
            answers[member] = CopyStatus(0, 0, may_have_forgotten=True) if has_nothing else None
        elif status is None or status.store_id != store_id:
            answers[member] = None
        else:
            # Another member id: it may have lost what this member had. Its higher term counts all the same.
            answers[member] = CopyStatus(status.term, status.end, status.member != member, status.role == Role.REPLICA)
    return judge_start(name, own, members, answers, addresses)

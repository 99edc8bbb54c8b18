"""What a process that starts with `--ha` is by the register: a copy that stands for election, or one that follows."""

import asyncio
import sys
from dataclasses import replace
from functools import partial

from lockstep.broker.config import BrokerConfig
from lockstep.broker.office.office import Office
from lockstep.broker.office.register import RegisterError
from lockstep.broker.office.rules import OfficeError, OwnCopy, Step, first_step
from lockstep.broker.office.standing import Standing, Tenure
from lockstep.broker.replication.asking import ask_before_start
from lockstep.broker.replication.copy_identity import (
    CopyIdentity,
    Role,
    begin_as_replica,
    clock_ahead_ms,
    may_lack,
    new_member,
    read_copy_identity,
    save_copy_identity,
    with_clock,
)
from lockstep.broker.replication.start_rules import CopyStatus
from lockstep.broker.store.start.directory import StoreDirectory, locked_directory, parse_identity
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.runtime.logs.log_limit import log_limited
from lockstep.runtime.security.client_security import ClientSecurity

log = get_logger("broker")

AGAIN_S = 1.0


async def begin_under_register(host: Host, config: BrokerConfig, office: Office, address: str, peers: ClientSecurity) -> Tenure | None:
    """Return the tenure of a copy that is elected at its start, None for one that follows. Waits for the register.

    A copy that the register names as the master stands at once: its restart is an election. The master of a pair without a register asks
    its replicas before it creates the entry, as each start of it does. `peers`: of the connections to them. Raises OfficeError, StoreError.
    """
    standing, is_told = Standing(host, office, config.name, lambda: address, config.silence_ms), False
    while True:
        try:
            entry = await office.look()
        except RegisterError as error:
            if not is_told:
                is_told = True
                log.warning("office.waits", error=str(error), then="the start goes on when the register answers")
            await asyncio.sleep(AGAIN_S)
            continue
        with locked_directory(host.files, config.store_path()) as directory:
            try:
                path = f"{directory.own}/identity"
                text, found = directory.read(path), read_copy_identity(directory)
                log_id = "" if text is None else parse_identity(text, path).store_id
                may_create = found is None or (found.role is Role.MASTER and not found.registered)
                member = "" if found is None else found.member
                verdict = first_step(config.name, entry, OwnCopy(member, log_id, directory.terms()[1], may_create))
                if verdict.step in (Step.FOLLOW, Step.WAIT):
                    return None
                tenure = None
                if verdict.step is Step.CREATE:
                    forgot = may_lack(directory, host.boot_id())
                    own = OwnCopy(member or new_member(host.random), log_id, directory.terms()[1], may_create)
                    others, new_id = {} if found is None else found.members, log_id or host.random.token(16).hex()
                    if found is None or await _may_create(host, config.name, found, own, address, peers, forgot=forgot):
                        wanted = CopyIdentity(own.member, Role.MASTER, others, {} if found is None else found.known, address=address)
                        await host.threads.run(_save, directory, wanted)
                        tenure = await standing.create(own, new_id, others, assumed_loss=forgot and bool(log_id))
                elif verdict.step is Step.STAND:
                    assert found is not None
                    if not found.registered:  # it has created the entry, and ended before it knew
                        await host.threads.run(_save, directory, replace(found, registered=True))
                    begun_by = host.random, host.boot_id(), config.store_config().flush, address
                    began = await host.threads.run(partial(begin_as_replica, directory, *begun_by, registered=True))
                    tenure = await standing.stand(OwnCopy(began.member, log_id, directory.terms()[1], may_create))
                if tenure is not None:
                    master = CopyIdentity(tenure.member, Role.MASTER, tenure.others, tenure.known)
                    identity = replace(master, registered=True, address=address)
                    identity = with_clock(identity, host.boot_id(), clock_ahead_ms(found, host.boot_id()))
                    await host.threads.run(_save, directory, identity)
                    return tenure
            finally:
                directory.unlock()
        await asyncio.sleep(AGAIN_S)


async def _may_create(
    host: Host, name: str, found: CopyIdentity, own: OwnCopy, address: str, peers: ClientSecurity, *, forgot: bool
) -> bool:
    """Return whether the replicas of a master without a register have nothing against its rule. Raises OfficeError if one has.

    The end of its log is not known before that is opened: one that may have lost some counts as shorter than any replica that has not.
    """
    status = CopyStatus(own.term, 0 if forgot else sys.maxsize, forgot)
    verdict = await ask_before_start(host, name, own.log, address, status, found.members, found.known, peers)
    if verdict.refused:
        raise OfficeError(f"{verdict.refused.partition(': ')[0]}: let the copy at {verdict.refused_by} be the first that starts with --ha")
    if verdict.waiting_for:
        then = "start these with --ha too"
        log_limited(log, "warning", "broker.waits_for_replicas", replicas=verdict.waiting_for, then=then)
    return not verdict.waiting_for


def _save(directory: StoreDirectory, identity: CopyIdentity) -> None:
    directory.make_own()
    save_copy_identity(directory, identity)

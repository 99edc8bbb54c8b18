"""What a process that starts with `--ha` is by the register: a copy that stands for election, or one that follows."""

import asyncio
from dataclasses import replace
from functools import partial

from lockstep.broker.config import BrokerConfig
from lockstep.broker.office.office import Office
from lockstep.broker.office.register import RegisterError
from lockstep.broker.office.rules import OwnCopy, Step, first_step
from lockstep.broker.office.standing import Standing, Tenure
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
from lockstep.broker.store.start.directory import StoreDirectory, locked_directory, parse_identity
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger

log = get_logger("broker")

AGAIN_S = 1.0


async def begin_under_register(host: Host, config: BrokerConfig, office: Office, address: str) -> Tenure | None:
    """Return the tenure of a copy that is elected at its start, None for one that follows. Waits for the register.

    A copy that the register names as the master stands at once: its restart is an election. Raises OfficeError, StoreError.
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
                may_create = not log_id or found is None or (found.role is Role.MASTER and not found.registered)
                member = "" if found is None else found.member
                verdict = first_step(config.name, entry, OwnCopy(member, log_id, directory.terms()[1], may_create))
                if verdict.step in (Step.FOLLOW, Step.WAIT):
                    return None
                tenure = None
                if verdict.step is Step.CREATE:
                    forgot = may_lack(directory, host.boot_id())
                    own = OwnCopy(member or new_member(host.random), log_id, directory.terms()[1], may_create)
                    others, new_id = {} if found is None else found.members, log_id or host.random.token(16).hex()
                    await host.threads.run(_save, directory, CopyIdentity(own.member, Role.MASTER, others, address=address))
                    tenure = await standing.create(own, new_id, others, assumed_loss=forgot and bool(log_id))
                elif verdict.step is Step.STAND:
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


def _save(directory: StoreDirectory, identity: CopyIdentity) -> None:
    directory.make_own()
    save_copy_identity(directory, identity)

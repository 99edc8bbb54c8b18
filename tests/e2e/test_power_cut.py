"""A power cut while a whole broker works (ordering.md 8.5, O6, O8). The disk is in memory, the sockets are real."""

import asyncio
from random import Random

import pytest

from lockstep.protocol.bodies import FreeQueue, LockResult, LockVerdict, QueueFreeBody
from lockstep.protocol.codec.msgpack_body import decode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.errors import LockstepError, TransportError
from support.native import Member, Native, Stream, native
from support.power_cuts import Machine
from support.processes import LIMIT_S

BODIES = [b"%d" % number for number in range(50)]


class Billing:
    """A member of the group `billing` with queue 0 of `orders`, and its state."""

    def __init__(self) -> None:
        self.member = Member(None, "orders")  # type: ignore[arg-type]
        self.grant = LockResult("billing", "orders", 0, LockVerdict.STALE)

    async def work(self, client: Native, committed: int) -> None:
        await self.member.join(client)
        self.grant = await self.member.lock()
        assert self.grant.verdict is LockVerdict.OK
        assert (await self.member.commit(self.grant.epoch, committed)).verdict is LockVerdict.OK


async def run_until_kill(machine: Machine, *, committed: int = 20) -> Billing:
    """Store 50 messages, some of them committed, all synced; then kill the broker."""
    billing = Billing()
    async with machine.serving() as broker, native(broker.address) as client:
        await client.create("orders")
        await client.done(RequestCode.SEND_RECORDS, *Stream("orders").frame(*BODIES))
        await billing.work(client, committed)
        assert broker._store is not None
        await broker._store.sync()
    return billing


async def wait_until_free(client: Native) -> None:
    """Wait until QUEUE_FREE names the queue."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            command = await client.inbound.get()
            if command.code == RequestCode.QUEUE_FREE:
                assert decode_body(QueueFreeBody, command.body).queues == (FreeQueue("billing", "orders", 0),)
                return


async def test_power_cut_under_async_flush_ends_grants_and_suspends_granting_for_the_grace() -> None:
    machine = Machine()
    billing = await run_until_kill(machine)
    await machine.crash(None, power=True)
    old = billing.grant
    async with machine.serving() as broker, native(broker.address) as client:
        assert broker.state.coordination.state.grants_suspended
        await billing.member.join(client)
        assert (await billing.member.status()).owner is None
        assert (await billing.member.commit(old.epoch, 21)).verdict is LockVerdict.STALE
        pulled = await client.pull("orders", epoch=old.epoch)
        assert pulled.code == ResponseCode.STALE_EPOCH
        assert (await billing.member.lock(epoch=old.epoch, offset=30)).verdict is LockVerdict.STALE
        assert (await billing.member.lock()).verdict is LockVerdict.WAIT
        await wait_until_free(client)
        grant = await billing.member.lock()
        assert grant.verdict is LockVerdict.OK
        assert grant.epoch > old.epoch
        assert grant.generation > old.generation
        assert grant.offset == 20
        assert await client.everything("orders") == BODIES


async def test_unfinished_suspension_restarts_with_the_next_start() -> None:
    machine = Machine()
    billing = await run_until_kill(machine)
    await machine.crash(None, power=True)
    for _ in range(3):
        async with machine.serving() as broker, native(broker.address) as client:
            await billing.member.join(client)
            assert (await billing.member.lock()).verdict is LockVerdict.WAIT
    async with machine.serving() as broker, native(broker.address) as client:
        await billing.member.join(client)
        await wait_until_free(client)
        grant = await billing.member.lock()
        assert grant.verdict is LockVerdict.OK
    async with machine.serving() as broker, native(broker.address) as client:
        assert not broker.state.coordination.state.grants_suspended
        await billing.member.join(client)
        assert (await billing.member.lock(epoch=grant.epoch)).verdict is LockVerdict.OK


@pytest.mark.parametrize(("flush", "power"), [("async", False), ("sync", False), ("sync", True)])
async def test_owner_keeps_its_epoch_if_nothing_can_be_lost(flush: str, power: bool) -> None:
    machine = Machine(flush=flush)
    billing = await run_until_kill(machine)
    await machine.crash(None, power=power)
    async with machine.serving() as broker, native(broker.address) as client:
        assert not broker.state.coordination.state.grants_suspended
        await billing.member.join(client)
        grant = await billing.member.lock(epoch=billing.grant.epoch, offset=25)
        assert (grant.verdict, grant.epoch, grant.generation) == (LockVerdict.OK, billing.grant.epoch, billing.grant.generation)
        assert (await billing.member.status()).committed_offset == 25
        assert await client.everything("orders") == BODIES


@pytest.mark.parametrize("power", [True, False])
async def test_second_crash_during_the_start_does_not_forget_the_first(power: bool) -> None:
    """The boot id is stored last: until then every further start assumes that a suffix may be lost."""
    survived = 0
    for countdown in range(0, 200, 2):
        machine = Machine(countdown)
        billing = await run_until_kill(machine)
        await machine.crash(None, power=True)
        machine.files.countdown = countdown
        try:
            broker = await machine.start()
        except LockstepError:
            await machine.crash(None, power=power)
        else:
            survived += 1
            await machine.crash(broker, power=power)
        async with machine.serving() as broker, native(broker.address) as client:
            await billing.member.join(client)
            assert broker.state.coordination.state.grants_suspended, f"died at operation {countdown}"
            assert (await billing.member.commit(billing.grant.epoch, 21)).verdict is LockVerdict.STALE
            assert (await billing.member.status()).generation > billing.grant.generation
        if survived == 3:
            return
    pytest.fail("no start lived long enough: raise the range")


@pytest.mark.parametrize(("flush", "seed"), [*(("sync", seed) for seed in range(10)), ("async", 20), ("async", 21)])
async def test_records_acknowledged_under_sync_flush_survive_and_no_others_appear(flush: str, seed: int) -> None:
    """Send and commit until the power cut at a random operation; three times on one disk."""
    machine, random, stream = Machine(seed, flush=flush), Random(seed), Stream("orders")
    billing, sent, acknowledged, committed = Billing(), list[bytes](), 0, 0
    for life in range(4):
        broker = await machine.start()
        async with native(broker.address) as client:
            await client.create("orders")
            found = await client.everything("orders")
            assert found == sent[: len(found)]
            assert len(found) >= (acknowledged if flush == "sync" else 0)
            sent, acknowledged = found, len(found)
            stream = Stream("orders", producer_id=f"{life:032x}")
            await billing.member.join(client)
            if broker.state.coordination.state.grants_suspended:
                await wait_until_free(client)
            grant = await billing.member.lock()
            assert grant.epoch > billing.grant.epoch
            assert grant.offset <= len(found)
            assert grant.offset >= (committed if flush == "sync" else 0)
            billing.grant, committed = grant, grant.offset
            machine.files.countdown = random.randrange(1, 60)
            try:
                while life < 3:
                    bodies = [random.randbytes(random.choice((1, 400, 3_000))) for _ in range(random.randint(1, 4))]
                    sent += bodies
                    response = await client.send_request(RequestCode.SEND_RECORDS, *stream.frame(*bodies))
                    assert response.code == ResponseCode.SUCCESS
                    acknowledged = len(sent)
                    offset = random.randint(committed, acknowledged)
                    assert (await billing.member.commit(grant.epoch, offset)).verdict is LockVerdict.OK
                    committed = offset
            except TransportError:
                assert machine.files.dead
        machine.files.countdown = None
        await machine.crash(broker, power=True)

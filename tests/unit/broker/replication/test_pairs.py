"""Two machines whose settings name each other by `--replica-of`, and never change: one begins, and each may take the other's place."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from lockstep.broker.journal import Change
from lockstep.broker.state import BrokerState
from lockstep.client import Message, MessageQueue, Producer
from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes.replica_promote import ReplicaPromote
from lockstep.protocol.bodies import ReplicaStatus
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.host import Host
from lockstep.testing import TestClock
from lockstep.testing.simulated import SimServer, SimStage
from lockstep.testing.simulation import SimLoop
from lockstep.testing.stage import StageSettings

SETTINGS = StageSettings("async", 3_000, 20_000, auto_create_topics=False)


class SymmetricPair:
    """A nameserver, and two machines of broker-a. `settings` of a machine: whether it names the other one."""

    def __init__(self, stage: SimStage) -> None:
        self.stage = stage
        self.nameserver = stage.nameserver("nameserver")
        self.names_other = {"first": True, "second": True}
        self.machines: dict[str, SimServer] = {
            name: self._machine(name, other) for name, other in (["first", "second"], ["second", "first"])
        }

    def _machine(self, name: str, other: str) -> SimServer:
        def replica_of() -> str | None:
            return self.machines[other].address if self.names_other[name] else None

        return self.stage.broker(name, "broker-a", self.nameserver.address, SETTINGS, replica_of)

    @property
    def admin(self) -> AdminClient:
        return AdminClient(Host.current(), self.nameserver.address)

    async def start(self, *names: str) -> None:
        await asyncio.gather(*(self.machines[name].start() for name in names))

    async def status(self, name: str) -> ReplicaStatus | None:
        try:
            return await self.admin.copy_status(self.machines[name].address)
        except LockstepError:
            return None

    async def until(self, what: str, condition: Callable[[ReplicaStatus | None, ReplicaStatus | None], object]) -> None:
        """Wait until the condition holds for the status of the first and the second machine."""
        found = None
        for _ in range(600):
            found = await self.status("first"), await self.status("second")
            if condition(*found):
                return
            await asyncio.sleep(0.1)
        pytest.fail(f"{what}: {found}")

    async def until_replicated(self, master: str) -> None:
        place = 0 if master == "first" else 1

        def replicated(*found: ReplicaStatus | None) -> bool:
            one, other = found[place], found[1 - place]
            return one is not None and one.role == "master" and other is not None and [each.in_set for each in one.replicas] == [True]

        await self.until(f"{master} is a master with a replica", replicated)

    async def promote(self, name: str) -> None:
        plan = await ReplicaPromote(address=self.machines[name].address, yes=True).plan(self.admin)
        assert (await plan.carry_out()).failed is None

    async def send(self) -> int:
        """Send a message. Return its offset, which is the number of those before."""
        async with Producer("shop", nameserver=self.nameserver.address) as producer:
            return (await producer.send(Message("orders", b"x"), queue=MessageQueue("orders", "broker-a", 0))).queue_offset

    async def create_topic(self) -> None:
        instance = Client(self.nameserver.address).instance()
        await instance.start()
        await create_topic(instance, "orders", 1)
        await instance.close()


@pytest.fixture
async def pair(lockstep_clock: TestClock) -> AsyncIterator[SymmetricPair]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    stage = SimStage(loop)
    pair = SymmetricPair(stage)
    await pair.nameserver.start()
    yield pair
    assert stage.errors() == []
    await stage.close()


@pytest.mark.lockstep(seeds=3)
async def test_each_machine_of_a_pair_takes_the_others_place_with_the_settings_of_before(pair: SymmetricPair) -> None:
    await pair.start("second")
    await asyncio.sleep(5)
    await pair.until("alone none begins", lambda first, second: second is not None and second.blank)
    await pair.start("first")
    await pair.until_replicated("first")
    await pair.create_topic()
    assert await pair.send() == 0

    await pair.machines["first"].kill()
    await pair.start("first")
    await pair.until_replicated("first")
    assert await pair.send() == 1, "a restart changes nothing"

    await pair.machines["first"].kill()
    await pair.promote("second")
    assert await pair.send() == 2
    await pair.start("first")
    await pair.until_replicated("second")

    await pair.machines["second"].lose()
    await pair.start("second")
    await asyncio.sleep(10)
    await pair.until(
        "the empty one begins nothing", lambda first, second: second is not None and (second.role, second.store_id) == ("replica", "")
    )
    await pair.promote("first")
    await pair.until_replicated("first")
    assert await pair.send() == 3

    for name in pair.machines:
        await pair.machines[name].kill()
    await pair.start("second", "first")
    await pair.until_replicated("first")
    assert await pair.send() == 4

    await pair.machines["first"].kill()
    await pair.machines["second"].lose()
    await pair.start("second", "first")
    await pair.until_replicated("first")
    assert await pair.send() == 5, "the empty one has told that it has nothing"


async def test_old_master_that_starts_before_the_promoted_one_ends_and_its_next_start_is_a_replica(pair: SymmetricPair) -> None:
    first, second = pair.machines["first"], pair.machines["second"]
    await pair.start("first", "second")
    await pair.until_replicated("first")
    await pair.create_topic()
    await first.kill()
    await pair.promote("second")
    assert await pair.send() == 0
    await second.kill()
    starting = asyncio.create_task(pair.start("first"))
    await asyncio.sleep(5)
    assert first.state == "running"
    assert not starting.done(), "it waits for the other copy"
    await pair.start("second")
    await starting
    assert (first.state, first.exit_code) == ("failed", 1), "a supervisor starts it again"
    assert len(pair.stage.errors()) == 1
    await pair.start("first")
    await pair.until_replicated("second")
    assert await pair.send() == 1


async def test_broker_that_has_a_log_and_gets_a_pair_remains_the_master(pair: SymmetricPair) -> None:
    """Of the two addresses its own sorts last, so that it would not begin."""
    pair.names_other["second"] = False
    await pair.start("second")
    await pair.create_topic()
    assert await pair.send() == 0
    await pair.machines["second"].stop()
    pair.names_other["second"] = True
    await pair.start("first", "second")
    await pair.until_replicated("second")
    assert await pair.send() == 1
    await pair.machines["second"].kill()
    await pair.start("second")
    await pair.until_replicated("second")
    assert await pair.send() == 2


async def test_term_of_a_promoted_copy_begins_where_its_log_ended(pair: SymmetricPair, monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[int] = []
    add = BrokerState._add_term

    def noted(self: BrokerState, change: Change) -> None:
        begins.append(change[2])
        add(self, change)

    monkeypatch.setattr(BrokerState, "_add_term", noted)
    await pair.start("second", "first")
    await pair.until_replicated("first")
    await pair.create_topic()
    await pair.send()
    await pair.machines["first"].kill()
    await pair.until("the copy follows nobody", lambda _, second: second is not None and not second.following)
    copy = await pair.status("second")
    await pair.promote("second")
    await pair.until("the copy is the master", lambda _, second: second is not None and second.role == "master")
    assert copy is not None
    assert begins[-1] == copy.end, "before its first record"

"""Masters under a register are suspended, lose their links, or all copies their power: no two rule, and nothing acknowledged is lost."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count, product

import pytest

from lockstep.cli.demo.proof import SentSteps
from lockstep.client import Message, Outcome, Producer, QueueUnavailableError
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.headers.clients import GroupStatusHeader
from lockstep.runtime.host import Host
from support.cluster import LOOK_S, WAIT_S, Cluster, Report, now_us
from support.copies import Copies
from support.effort import SLOW, usually
from support.group_loads import MEMBERS, QUEUES, Ordered, longest_wait, quantiles
from support.links import Direction, Link, link_to
from support.native import Native, native
from support.ports import free_ports
from support.registers import RegisterServer

pytestmark = pytest.mark.e2e

STRANGE = 1000
"""The key of sends that the tests make themselves, and that need not be stored."""
STRANGE_STEPS = SentSteps(0, 1_000_000)
TROUBLE_S = 60 if SLOW else 5
"""How long a link is cut."""
ELECTS_S = 3
"""A master that is suspended for longer is replaced."""


async def send_on(client: Native, acknowledged: list[int]) -> None:
    """Send one event after the other, without waiting for answers, until the connection ends. Note the acknowledged steps."""

    def answered(step: int, answer: "asyncio.Future[Command]") -> None:
        if not answer.cancelled() and answer.exception() is None and answer.result().code == ResponseCode.SUCCESS:
            acknowledged.append(step)

    for step in count(1):
        try:
            answer = client.send("orders", b'{"order": 1000, "step": %d}' % step)
        except LockstepError:
            return
        answer.add_done_callback(partial(answered, step))
        await asyncio.sleep(LOOK_S)


def event(step: int, order: int = STRANGE) -> Message:
    """Return an event that a test sends itself."""
    return Message("orders", b'{"order": %d, "step": %d}' % (order, step), sharding_key=str(order))


async def until_routed(cluster: Cluster, address: str) -> None:
    """Wait until the nameserver routes the broker at this address."""
    admin = AdminClient(Host.real(), cluster.nameservers)
    async with asyncio.timeout(WAIT_S):
        while [each.address for each in await admin.brokers()] != [address]:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


@pytest.mark.parametrize("seconds", usually([5], [2, 5, 30]))
async def test_master_that_was_suspended_answers_nothing_of_its_old_term(
    copies: Copies, cluster: Cluster, report: Report, seconds: int
) -> None:
    load = Ordered(cluster)
    await load.begin()
    await load.produce()
    cluster.reported[STRANGE] = STRANGE_STEPS
    master = await copies.until_in_sync()
    term = (await copies.statuses())[master].term
    async with native(copies.addresses[master]) as old:
        cluster.signal(signal.SIGSTOP, master)
        begun_us = now_us()
        sent = asyncio.ensure_future(old.send("orders", b'{"order": 1000, "step": 0}'))
        asked = asyncio.ensure_future(old.send_request(RequestCode.GROUP_STATUS, GroupStatusHeader("billing")))
        await asyncio.sleep(seconds)
        if seconds > ELECTS_S:
            await copies.until_elected(term)
        cluster.signal(signal.SIGCONT, master)
        answers = await asyncio.gather(sent, asked, return_exceptions=True)
    await copies.until_in_sync()
    is_replaced = (await copies.statuses())[await copies.master()].term > term
    assert is_replaced or seconds <= ELECTS_S
    if is_replaced:
        codes = [answer.code for answer in answers if not isinstance(answer, BaseException)]
        assert ResponseCode.SUCCESS not in codes, "nothing is answered from a term that has ended"
        assert all(isinstance(each, LockstepError) for each in answers if isinstance(each, BaseException)), answers
    await load.went_on(now_us())
    waited_s = longest_wait(cluster, begun_us)[1]
    report(f"a master suspended for {seconds} s: {await load.end()}; no send was acknowledged for {waited_s:.2f} s")


@asynccontextmanager
async def link_between(copies: Copies, ends: str) -> AsyncIterator[Link]:
    """Put a link between two of the copies and their register. All others reach each other without it."""
    master, replica = copies.addresses
    if ends == "master and replica":
        # The replica names itself when it follows: clients of the master pass.
        async with link_to(copies.addresses[master], copies.addresses[replica].encode()) as link:
            copies.advertised[master] = link.address
            yield link
    else:
        async with link_to(copies.register.address) as link:
            copies.registers[master if ends == "master and register" else replica] = link.address
            yield link


async def lose_the_replica(copies: Copies, load: Ordered) -> None:
    """The master can't tell the register that its set is smaller, or can't hear that it has done so."""
    master, replica = copies.addresses
    await copies.cluster.kill(replica)
    await copies.cluster.until_heard(master, "register.unknown")
    await copies.cluster.until_heard(master, "office.suspended")
    await copies.start(replica)
    await load.went_on(now_us())


async def lose_the_master(copies: Copies, load: Ordered) -> None:
    """The replica can't be elected."""
    master, _ = copies.addresses
    await copies.cluster.kill(master)
    await copies.start(master)
    await load.went_on(now_us())


TROUBLES: dict[str, Callable[[Copies, Ordered], Awaitable[None]] | None] = {
    "master and replica": None,
    "master and register": lose_the_replica,
    "replica and register": lose_the_master,
}
"""Whose link is cut, and what is lost besides."""
USUAL_CUTS = [("master and replica", Direction.THERE), ("master and register", Direction.BACK), ("replica and register", Direction.THERE)]


@pytest.mark.parametrize(("ends", "direction"), usually(USUAL_CUTS, product(TROUBLES, Direction)))
async def test_link_that_is_cut_one_way_splits_nothing(
    register_server: RegisterServer, cluster: Cluster, report: Report, ends: str, direction: Direction
) -> None:
    trouble = TROUBLES[ends]
    copies = await Copies.begun(cluster, register_server)
    first, second = copies.addresses
    async with link_between(copies, ends) as link:
        await copies.start(first)
        await cluster.command("topic", "create", "orders", "--queues", "4")
        await copies.start(second)
        await copies.until_in_sync()
        load = Ordered(cluster)
        await load.begin()
        await load.produce()
        begun_us = now_us()
        before = await copies.entry()
        assert before is not None
        link.cut(direction)
        await cluster.until("sends go on", lambda: max(map(max, cluster.acknowledged_times().values())) > begun_us + TROUBLE_S * 1_000_000)
        await load.went_on(now_us())
        waited_s = longest_wait(cluster, begun_us)[1]
        if trouble is not None:
            assert await copies.entry() == before, "all goes on as it was"
            await trouble(copies, load)
            assert await copies.master() == first
        entry = await copies.entry()
        assert entry is not None
        masters = [place for place, status in (await copies.statuses()).items() if status.role == "master" and status.term == entry.term]
        assert len(masters) == 1
        who = "the master stayed" if masters == [first] else "the replica was elected"
        link.mend()
        await copies.until_in_sync()
        mended_us = now_us()
        await load.went_on(mended_us)
        assert cluster.reported_events("producer", "send.failed") == []
        seen = f"{who}, set {entry.why}, {waited_s:.2f} s without an acknowledged send"
        report(f"{ends}, cut {direction}: {seen}; {await load.end()}")


@pytest.mark.parametrize("direction", Direction)
async def test_clients_whose_link_to_the_master_is_cut_one_way_end_as_documented_and_go_on_later(
    register_server: RegisterServer, cluster: Cluster, report: Report, direction: Direction
) -> None:
    """They reach the nameserver, and the master by a listener of its own; the others of their group are beside the copies."""
    copies = await Copies.begun(cluster, register_server)
    first, second = copies.addresses
    far = await cluster.nameserver("far-nameserver", "far=127.0.0.1:0")
    copies.nameservers[first] = f"{cluster.nameservers};{far}"
    behind = f"127.0.0.1:{free_ports(1)[0]}"
    async with link_to(behind) as link, Producer("far", nameserver=far) as producer:
        copies.listeners[first] = ("--listen", f"far={behind}", "--advertise", f"far={link.address}")
        await copies.start(first)
        await cluster.command("topic", "create", "orders", "--queues", "4")
        await copies.start(second)
        await copies.until_in_sync()
        load = Ordered(cluster)
        far_one, near_one = MEMBERS
        await cluster.consumer(far_one, "--nameserver", far)
        await cluster.consumer(near_one)
        await cluster.until_held(QUEUES, *MEMBERS)
        await load.produce()
        await cluster.producer("far", "--nameserver", far, "--first", "100", "--pause-ms", "20", "--timeout-ms", "120000")
        await cluster.until("sends of both", lambda: len(cluster.acks("far")) > 100)
        await producer.send(event(0))
        before, cut_us = await copies.entry(), now_us()
        link.cut(direction)
        with pytest.raises(QueueUnavailableError) as failed:
            await producer.send(event(1), timeout_ms=1_000)
        assert failed.value.outcome == Outcome.UNKNOWN
        cluster.reported[STRANGE] = SentSteps(1, 2)
        await cluster.until("the other member has all queues", lambda: len(cluster.held(near_one)) == QUEUES)
        moved_us = now_us()
        await load.went_on(moved_us)
        assert max(map(max, cluster.acknowledged_times("far").values())) < moved_us
        assert {each.consumer for each in cluster.accepted(after_us=moved_us)} == {near_one}
        waited_s = longest_wait(cluster, cut_us)[1]
        link.mend()
        mended_us = now_us()
        await cluster.until_held(QUEUES, *MEMBERS)
        await load.went_on(now_us())
        far_queues = {*cluster.held(far_one)}

        def worked_on() -> set[str]:
            return {each.queue for each in cluster.accepted(after_us=mended_us) if each.consumer == far_one}

        await cluster.until("it works on its queues again", lambda: worked_on() == far_queues)
        await cluster.until("its sends go on", lambda: min(times[-1] for times in cluster.acknowledged_times("far").values()) > mended_us)
        await producer.send(event(0, STRANGE + 1))
        cluster.reported[STRANGE + 1] = SentSteps(1, 1)
        assert await copies.entry() == before
        finished = await cluster.finish_producer("far")
        assert finished["possible_duplicates"] == 0
        assert [cluster.reported_events(name, "send.failed") for name in ("producer", "far")] == [[], []]
        moved_s = (moved_us - cut_us) / 1e6
        seen = f"queues moved after {moved_s:.2f} s, {waited_s:.2f} s without an acknowledged send of the others"
        report(f"cut {direction}: {seen}; {await load.end()}")


@asynccontextmanager
async def machines(copies: Copies) -> AsyncIterator[dict[str, list[Link]]]:
    """Put links between each copy and all others. Yield place → its links."""
    async with AsyncExitStack() as links:
        found: dict[str, list[Link]] = {}
        for place, address in copies.addresses.items():
            targets = (address, copies.cluster.nameservers, copies.register.address)
            found[place] = [await links.enter_async_context(link_to(target)) for target in targets]
            copies.advertised[place], copies.nameservers[place], copies.registers[place] = (link.address for link in found[place])
        yield found


async def test_times_from_a_vanished_machine_to_the_next_acknowledged_send(
    register_server: RegisterServer, cluster: Cluster, report: Report
) -> None:
    """The master is killed when nothing that it sends is heard any more: no connection to it is closed, and none is refused."""
    copies = await Copies.begun(cluster, register_server)
    async with machines(copies) as links:
        for place in copies.addresses:
            await copies.start(place)
        await copies.until_in_sync()
        await cluster.command("topic", "create", "orders", "--queues", "4")
        load = Ordered(cluster)
        await load.begin()
        await load.produce()
        seconds: list[float] = []
        for _ in range(5 if SLOW else 1):
            master = await copies.until_in_sync()
            for link in links[master]:
                link.cut()
            gone_us = now_us()
            await cluster.kill(master)
            await load.went_on(gone_us)
            seconds.append(longest_wait(cluster, gone_us)[0])
            for link in links[master]:
                link.mend()
            await copies.start(master)
        await copies.until_in_sync()
        machine = " ".join(f"{each:.1f}" for each in os.getloadavg())
        report(f"{len(seconds)} x machine lost → next acknowledged send, load {machine}: {quantiles(seconds)}; {await load.end()}")


async def test_deposed_master_that_reaches_clients_and_nameservers_alone_acknowledges_nothing_and_leaves_the_routes(
    register_server: RegisterServer, cluster: Cluster, report: Report
) -> None:
    copies = await Copies.begun(cluster, register_server)
    first, second = copies.addresses
    async with (
        link_to(copies.addresses[first], copies.addresses[second].encode()) as link,
        link_to(register_server.address) as to_register,
    ):
        copies.advertised[first], copies.registers[first] = link.address, to_register.address
        await copies.start(first)
        await cluster.command("topic", "create", "orders", "--queues", "4")
        await copies.start(second)
        await copies.until_in_sync()
        load = Ordered(cluster)
        await load.begin()
        await load.produce()
        cluster.reported[STRANGE] = STRANGE_STEPS
        term = (await copies.statuses())[first].term
        async with native(copies.addresses[first]) as client:
            assert (await client.send("orders", b'{"order": 1000, "step": 0}', 0)).code == ResponseCode.SUCCESS
            link.cut()
            to_register.cut()
            cut_us = now_us()
            acknowledged: list[int] = []
            sending = asyncio.ensure_future(send_on(client, acknowledged))
            await copies.until_elected(term)
            elected_us = now_us()
            await until_routed(cluster, copies.addresses[second])
            routed_s = (now_us() - elected_us) / 1e6
            await load.went_on(elected_us)
            sending.cancel()
            await asyncio.wait([sending])
        assert acknowledged == []
        waited_s = longest_wait(cluster, cut_us)[1]
        to_register.mend()
        link.mend()
        await copies.until_in_sync()
        elected_s = (elected_us - cut_us) / 1e6
        report(
            f"elected {elected_s:.2f} s after the cut, routed {routed_s:.2f} s after that, {waited_s:.2f} s without an acknowledged send; "
            f"{await load.end()}"
        )

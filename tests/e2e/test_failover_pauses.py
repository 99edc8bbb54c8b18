"""Masters under a register are suspended, lose their links, or all copies their power: no two rule, and nothing acknowledged is lost."""

import asyncio
import signal
from functools import partial
from itertools import count

import pytest

from lockstep.cli.demo.proof import SentSteps
from lockstep.operations.admin_client import AdminClient
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.headers.clients import GroupStatusHeader
from lockstep.runtime.host import Host
from support.cluster import LOOK_S, WAIT_S, Cluster, Report, now_us
from support.copies import Copies
from support.effort import SLOW, usually
from support.group_loads import Ordered, longest_wait
from support.links import Direction, link_to
from support.native import Native, native
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


async def until_routed(cluster: Cluster, address: str) -> None:
    """Wait until the nameserver routes the broker at this address."""
    admin = AdminClient(Host.real(), cluster.nameservers)
    async with asyncio.timeout(WAIT_S):
        while [each.address for each in await admin.brokers()] != [address]:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)


@pytest.mark.parametrize("seconds", usually([2, 5], [2, 5, 30]))
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


@pytest.mark.parametrize("direction", Direction)
async def test_link_that_is_cut_one_way_splits_nothing(
    register_server: RegisterServer, cluster: Cluster, report: Report, direction: Direction
) -> None:
    copies = await Copies.begun(cluster, register_server)
    first, second = copies.addresses
    # The replica names itself when it follows: clients of the master pass.
    async with link_to(copies.addresses[first], copies.addresses[second].encode()) as link:
        copies.advertised[first] = link.address
        await copies.start(first)
        await cluster.command("topic", "create", "orders", "--queues", "4")
        await copies.start(second)
        await copies.until_in_sync()
        load = Ordered(cluster)
        await load.begin()
        await load.produce()
        begun_us = now_us()
        terms = {(await copies.statuses())[first].term}
        link.cut(direction)
        await asyncio.sleep(TROUBLE_S)
        await load.went_on(now_us())
        waited_s = longest_wait(cluster, begun_us)[1]
        entry = await copies.entry()
        assert entry is not None
        masters = [place for place, status in (await copies.statuses()).items() if status.role == "master" and status.term == entry.term]
        assert len(masters) == 1
        who = "the master stayed" if entry.term in terms else "the replica was elected"
        link.mend()
        await copies.until_in_sync()
        mended_us = now_us()
        await load.went_on(mended_us)
        report(f"cut {direction}: {who}, set {entry.why}, {waited_s:.2f} s without an acknowledged send; {await load.end()}")


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

"""on_exhausted="park" while requests fail, connections end, and the broker or the member does: no message is lost, nor accepted twice."""

import asyncio
from typing import Any

import pytest

from lockstep.client import QueueRevoked
from lockstep.client.broker_link import BrokerLink
from lockstep.protocol.bodies import ParkState
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.command import Command
from lockstep.protocol.errors import TransportError
from lockstep.testing import TestCluster
from support.effort import seed_count
from support.park_kit import GROUP, PARK, TOPIC, Poison, Send, Worker, around_requests, both_orders, dead_letters, drop, poisoned, send

pytestmark = pytest.mark.lockstep(brokers=1)


@both_orders
async def test_key_is_not_called_again_after_the_response_to_its_park_was_lost(
    lockstep_cluster: TestCluster, order_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause of the failure goes away meanwhile: a repeated call would succeed, and the broker has parked the key."""
    cluster, poison = lockstep_cluster, Poison({"k3"})
    requests: list[int] = []

    async def lose_the_first_response(link: BrokerLink, header: Any, request: Send) -> Command:
        requests.append(header.offset)
        response = await request()
        if len(requests) == 1:
            poison.keys.clear()
            link.reconnect("the test")
            raise TransportError("the response is lost")
        return response

    around_requests(monkeypatch, RequestCode.PARK, lose_the_first_response)
    await cluster.create_topic(TOPIC, queues=1)
    worker = Worker(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await send(cluster, 100, 10)
    await cluster.until(lambda: len(worker.got) == 90 and worker.parked, "every other key")
    await send(cluster, 20, 10, start=100)
    await cluster.settled(GROUP)
    assert (requests, worker.of_key("k3")) == ([3, 3], [])
    await cluster.replay(GROUP)
    await cluster.until(lambda: worker.resumed, "the end of the replay")
    assert worker.of_key("k3") == list(range(3, 120, 10))


@both_orders
async def test_lost_response_to_the_end_of_a_replay_leaves_nothing_out(
    lockstep_cluster: TestCluster, order_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has ended the replay, and pulls bring the key again, while the member does not know that yet."""
    cluster, poison = lockstep_cluster, Poison({"k3"})
    ended, go_on = asyncio.Event(), asyncio.Event()

    async def lose_the_first_response(link: BrokerLink, header: Any, request: Send) -> Command:
        response = await request()
        if header.pulled is not None and not ended.is_set():
            ended.set()
            await go_on.wait()
            link.reconnect("the test")
            raise TransportError("the response is lost")
        return response

    around_requests(monkeypatch, RequestCode.PARK_END, lose_the_first_response)
    worker = await poisoned(cluster, order_by, poison=poison)
    poison.keys.clear()
    await cluster.replay(GROUP)
    await cluster.until(ended.is_set, "the end at the broker")
    await send(cluster, 20, 10, start=100)
    await cluster.advance(seconds=2)
    assert 103 not in worker.of_key("k3"), "it is not known to which flow it belongs"
    go_on.set()
    await cluster.until(lambda: len(worker.got) == 120, "the messages from then on")
    assert worker.of_key("k3") == list(range(3, 120, 10))


@both_orders
async def test_stopped_member_commits_its_replay_before_it_releases_the_queue(lockstep_cluster: TestCluster, order_by: str) -> None:
    """Commits of the replay wait for one another over a slow link; the next owner repeats nothing all the same."""
    cluster, poison = lockstep_cluster, Poison({"k3"})
    worker = await poisoned(cluster, order_by, poison=poison, count=200, work_s=0.1)
    poison.keys.clear()
    cluster.slow_link("a", "broker-a", seconds=0.5)
    await cluster.replay(GROUP)
    await cluster.until(lambda: len(worker.of_key("k3")) == 6, "a part of the replay")
    await cluster.stop("a")
    assert [each.fenced for each in worker.events if isinstance(each, QueueRevoked)] == [False]
    other = Worker(cluster, poison, order_by)
    await cluster.start("b", other.run)
    await cluster.until(lambda: other.resumed, "the end of the replay")
    assert worker.of_key("k3") + other.of_key("k3") == list(range(3, 200, 10))


@both_orders
async def test_key_that_is_dropped_without_an_owner_continues_at_the_member_that_comes_back(
    lockstep_cluster: TestCluster, order_by: str
) -> None:
    cluster, poison = lockstep_cluster, Poison({"k3"})
    worker = await poisoned(cluster, order_by, poison=poison)
    poison.keys.clear()
    cluster.partition("a", "broker-a")
    await cluster.advance(seconds=30)
    await drop(cluster)
    assert await dead_letters(cluster, 10) == list(range(3, 100, 10))
    assert not await cluster.parked(GROUP)
    cluster.heal()
    await send(cluster, 20, 10, start=100)
    await cluster.until(lambda: len(worker.got) == 90 + 20, "new messages")
    assert worker.of_key("k3") == [103, 113]


async def test_drop_ends_although_the_owner_does_not_park_any_more(lockstep_cluster: TestCluster) -> None:
    """The group was given another retry policy while keys were parked."""
    cluster, poison = lockstep_cluster, Poison({"k3"})
    await poisoned(cluster, "queue", poison=poison)
    await cluster.stop("a")
    poison.keys.clear()
    other = Worker(cluster, poison, "queue", settings={"retry": type(PARK)(max_attempts=3)})
    await cluster.start("b", other.run)
    await cluster.until(lambda: other.events, "the queue at the other member")
    (row,) = await drop(cluster)
    assert row.state is ParkState.DROPPING
    await cluster.advance(seconds=5)
    assert not await cluster.parked(GROUP)
    assert await dead_letters(cluster, 10) == list(range(3, 100, 10))
    await send(cluster, 20, 10, start=100)
    await cluster.until(lambda: len(other.got) == 20, "new messages")
    assert other.of_key("k3") == [103, 113]


@both_orders
@pytest.mark.parametrize("action", ["replay", "drop"])
async def test_key_whose_park_has_no_response_yet_is_not_replayed_nor_dropped_by_its_owner(
    lockstep_cluster: TestCluster, order_by: str, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner learns by LOCK what an operator wants before it learns that the key is parked."""
    cluster, poison = lockstep_cluster, Poison({"k3"})
    requests: list[int] = []

    async def lose_the_first_response(link: BrokerLink, header: Any, request: Send) -> Command:
        requests.append(header.offset)
        response = await request()
        if len(requests) == 1:
            cluster.partition("a", "broker-a")
            raise TransportError("the response is lost")
        return response

    around_requests(monkeypatch, RequestCode.PARK, lose_the_first_response)
    await cluster.create_topic(TOPIC, queues=1)
    worker = Worker(cluster, poison, order_by)
    await cluster.start("a", worker.run)
    await send(cluster, 100, 10)
    await cluster.until(lambda: requests, "the request")
    poison.keys.clear()
    if action == "replay":
        await cluster.replay(GROUP)
    else:
        await drop(cluster)
    await cluster.advance(seconds=5)
    cluster.heal()
    await cluster.until(lambda: worker.parked, "the response to a repeated request")
    if action == "replay":
        await cluster.replay(GROUP)
    await cluster.until(lambda: worker.resumed, "the end")
    await send(cluster, 20, 10, start=100)
    await cluster.until(lambda: len(worker.of_key("k4")) == 12, "the other keys")
    await cluster.settled(GROUP, timeout=10)
    left = range(3, 100, 10) if action == "replay" else []
    assert worker.of_key("k3") == [*left, 103, 113]


@pytest.mark.lockstep(brokers=1, flush="sync", seeds=seed_count(2, 6))
async def test_no_done_range_passes_over_a_key_whose_park_the_broker_has_lost_with_its_power(
    lockstep_cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has answered a pull without the key before the row was synced. The member commits what it has finished around that, and is
    killed before it has repeated the request."""
    cluster, poison = lockstep_cluster, Poison({"k3"})
    requests: list[asyncio.Future[Command]] = []

    async def never_answer(link: BrokerLink, header: Any, request: Send) -> Command:
        if not requests:
            cluster.slow_disk("broker-a", seconds=20)
            requests.append(asyncio.ensure_future(request()))
            requests[0].add_done_callback(asyncio.Future.exception)
            raise TransportError("no response")
        raise TransportError("not sent")

    around_requests(monkeypatch, RequestCode.PARK, never_answer)
    await cluster.create_topic(TOPIC, queues=1)
    await send(cluster, 400, 10)
    worker = Worker(cluster, poison, "sharding_key", work_s=0.05, settings={"queue_count_max": 40, "pull_count": 10})
    await cluster.start("a", worker.run)
    await cluster.until(lambda: requests, "the request")
    handled = len(worker.got)
    await cluster.until(lambda: len(worker.got) > handled + 90, "pulls that leave the key out")
    poison.keys.clear()
    await cluster.cut_power("broker-a")
    cluster.slow_disk("broker-a", seconds=0)
    await cluster.restart("broker-a")
    await cluster.advance(seconds=3)
    await cluster.kill("a")
    other = Worker(cluster, poison, "sharding_key")
    await cluster.start("b", other.run)
    await cluster.settled(GROUP)
    if await cluster.parked(GROUP):  # by some seeds the row was on the disk after all
        await cluster.replay(GROUP)
    await cluster.until(lambda: len(other.of_key("k3")) == 40, "each message of the key")
    assert other.of_key("k3") == list(range(3, 400, 10))

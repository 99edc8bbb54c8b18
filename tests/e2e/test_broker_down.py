"""One broker is down while keyed sends continue; and concurrent creators of one topic."""

import asyncio
import json
import signal

import pytest

from lockstep.client import Message, Outcome, Producer, SendResult, SendTimeoutError
from lockstep.client.errors import SendError
from support.cluster import QUICK, Cluster, Report, now_us

pytestmark = pytest.mark.e2e

AT_ONCE = 5


async def test_keyed_sends_to_a_dead_broker_fail_or_wait_and_no_key_moves(cluster: Cluster, report: Report) -> None:
    """The producer's timeout is shorter than the outage, so that keys do fail; each is sent again until its broker is up."""
    await cluster.servers(queues=4)
    await cluster.consumer("consumer")
    await cluster.until_held(8, "consumer")
    await cluster.producer("producer", "--keys", "60", "--pause-ms", "50", "--timeout-ms", "1000", "--again")
    await cluster.until_handled(300)
    home = {key: queue for key, _, queue, _ in cluster.acks()}
    orphans = {key for key, queue in home.items() if "broker-b" in queue}
    assert orphans
    assert len(cluster.acknowledged_queues()) == 8, "every queue has a key"

    await cluster.kill("broker-b")
    count = len(cluster.acks())
    await cluster.until(
        "keys fail", lambda: len({event["key"] for event in cluster.reported_events("producer", "send.failed")}) > len(orphans) // 2
    )
    meanwhile = {key for key, _, _, _ in cluster.acks()[count:]}
    assert meanwhile >= home.keys() - orphans, "the keys of the living broker flow"
    failures = cluster.reported_events("producer", "send.failed")
    assert {event["error"] for event in failures} == {"QueueUnavailableError"}
    assert {event["key"] for event in failures} <= orphans
    assert all(home[event["key"]] in event["text"] for event in failures), "it names the queue and its broker"
    ended = {event["key"] for event in failures if event["outcome"] == "unknown"}
    report(f"{len(failures)} sends of {len(orphans)} keys failed by name, {len(ended)} with an unknown outcome")

    await cluster.restart("broker-b")
    back_us = now_us()
    await cluster.until(
        "the orphaned keys flow again",
        lambda: orphans - ended <= {each.order for each in cluster.handled_events() if each.begun_us > back_us},
    )
    await cluster.finish_producer()
    assert {(key, queue) for key, _, queue, _ in cluster.acks()} == set(home.items()), "no key moved"
    await cluster.prove("consumer")


async def test_keyed_sends_wait_for_a_dead_broker_within_their_timeout(cluster: Cluster) -> None:
    await cluster.servers(queues=4)
    await cluster.consumer("consumer")
    await cluster.producer("producer", "--keys", "60", "--pause-ms", "50")
    await cluster.until_handled(300)
    queues = cluster.acknowledged_queues()
    await cluster.kill("broker-b")
    await cluster.until_handled_more(500)
    await cluster.restart("broker-b")
    await cluster.until_accepted(queues, after_us=now_us())
    finished = await cluster.finish_producer()
    assert cluster.reported_events("producer", "send.failed") == []
    assert all(acknowledged == tried for acknowledged, tried in finished["reported"].values())
    assert (await cluster.prove("consumer")).repeats == 0


async def test_sends_without_any_broker_fail_as_not_stored_and_later_ones_are_stored(cluster: Cluster, report: Report) -> None:
    """There are more sends than the in-flight limit allows at once."""
    await cluster.servers(brokers=["broker-a"])
    loop, limits = asyncio.get_running_loop(), {"in_flight_count_max": 500, "send_timeout_ms": 1_500}
    async with Producer("flood", nameserver=cluster.nameservers, **limits) as producer:  # type: ignore[arg-type]

        async def one(sharding_key: str | None = None) -> tuple[float, object]:
            begun = loop.time()
            try:
                return loop.time() - begun, await producer.send(Message("orders", b"x", sharding_key=sharding_key))
            except SendError as error:
                return loop.time() - begun, error

        assert isinstance((await one())[1], SendResult)
        await cluster.kill("broker-a")
        await cluster.until(
            "the producer has noticed", lambda: producer._topics is not None and not producer._topics.open_topics["orders"].any_live
        )
        sending = []
        for _ in range(60):
            sending += [asyncio.ensure_future(one()) for _ in range(100)]
            await asyncio.sleep(0.05)
        ended = await asyncio.gather(*sending)
        assert {type(error) for _, error in ended} == {SendTimeoutError}
        assert {error.outcome for _, error in ended if isinstance(error, SendTimeoutError)} == {Outcome.NOT_STORED}
        assert producer.in_flight_count == 0
        took_s = [took for took, _ in ended]
        report(f"{len(ended)} sends with a deadline of 1.5 s ended after {min(took_s):.2f} to {max(took_s):.2f} s")
        await cluster.restart("broker-a")
        results = await asyncio.gather(*(one(sharding_key=str(key)) for key in range(100)))
        assert all(isinstance(result, SendResult) for _, result in results)
    shown = json.loads(await cluster.command("topic", "show", "orders", "--json"))
    assert sum(queue["max_offset"] for queue in shown["queues"]) == 101


async def test_concurrent_creators_of_a_topic_agree_on_one_layout(cluster: Cluster) -> None:
    """Two nameservers, which share no state; producers create the topic by their first send, commands by name."""
    for name in ("nameserver-1", "nameserver-2"):
        await cluster.nameserver(name)
    await asyncio.gather(*(cluster.broker(name, *QUICK, "--auto-create-topics") for name in ("broker-a", "broker-b", "broker-c")))
    producers = [f"producer-{number}" for number in range(AT_ONCE)]
    await asyncio.gather(*(cluster.producer(name, "--hold", "--topic", "new", "--steps", "3", "--pause-ms", "0") for name in producers))
    cluster.signal(signal.SIGUSR1, *producers)
    await asyncio.gather(*(cluster.command("topic", "create", "new", "--queues", "4") for _ in range(2)))
    for name in producers:
        await cluster.until_heard(name, "worker.finished")
    homes = {(key, queue) for name in producers for key, _, queue, _ in cluster.acks(name)}
    assert len(homes) == 20, "each key has one queue, whoever sends it"
    nameservers = cluster.nameservers.split(";")
    shown = [json.loads(await cluster.command("topic", "show", "new", "--json", "--nameserver", each)) for each in nameservers]
    assert shown[0] == shown[1]
    assert len(shown[0]["queues"]) == 12
    assert sum(queue["max_offset"] for queue in shown[0]["queues"]) == AT_ONCE * 20 * 3

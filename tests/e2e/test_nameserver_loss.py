"""Lost or empty nameservers change nothing for running clients; a broker that returns at another address is found."""

import pytest

from support.cluster import Cluster, Report, now_us

pytestmark = pytest.mark.e2e

CONSUMERS = ("consumer-1", "consumer-2")


async def start_cluster(cluster: Cluster, nameservers: int = 1) -> None:
    for number in range(1, nameservers):
        await cluster.nameserver(f"nameserver-{number}")
    await cluster.servers(queues=4)
    for name in CONSUMERS:
        await cluster.consumer(name)
    await cluster.until_held(8, *CONSUMERS)
    await cluster.producer("producer", "--keys", "60", "--pause-ms", "50")
    await cluster.until_handled(300)
    assert len(cluster.acknowledged_queues()) == 8, "every queue has a key"


def revocations(cluster: Cluster) -> list[dict[str, object]]:
    """Return the revocations since the consumers share the queues: those of the initial rebalance are over."""
    return [event for name in CONSUMERS for event in cluster.reported_events(name, "consumer.QueueRevoked")]


async def test_clients_continue_without_nameservers_and_with_an_empty_one(cluster: Cluster) -> None:
    """No release and no epoch change, by the consumers' events, the brokers' status and the epochs of all records."""
    await start_cluster(cluster, nameservers=2)
    queues, epochs, revoked = cluster.acknowledged_queues(), await cluster.epochs(), revocations(cluster)
    await cluster.kill("nameserver", "nameserver-1")
    gone_us = now_us()
    await cluster.until_accepted(queues, after_us=gone_us)
    await cluster.until_handled_more(1_000)

    # While a broker is gone the clients request routes each second: they see an empty nameserver, then one that lacks that broker.
    await cluster.kill("broker-b")
    await cluster.restart("nameserver", "nameserver-1")
    for name in ("nameserver", "nameserver-1"):
        await cluster.until_heard(name, "broker.registered", name="broker-a")
    await cluster.until_handled_more(1_500)
    await cluster.restart("broker-b")
    await cluster.until_accepted(queues, after_us=now_us())

    assert await cluster.epochs() == epochs
    assert revocations(cluster) == revoked
    assert {str(each.epoch) for each in cluster.handled_events() if each.begun_us > gone_us} == set(epochs.values())
    await cluster.finish_producer()
    assert (await cluster.prove(*CONSUMERS)).repeats == 0


async def test_new_consumer_starts_with_the_remaining_nameserver(cluster: Cluster) -> None:
    await start_cluster(cluster, nameservers=2)
    await cluster.kill("nameserver")
    await cluster.consumer("consumer-3")
    await cluster.until_held(8, *CONSUMERS, "consumer-3")
    await cluster.finish_producer()
    assert (await cluster.prove(*CONSUMERS, "consumer-3")).repeats == 0


async def test_broker_restarted_on_another_port_is_found(cluster: Cluster, report: Report) -> None:
    await start_cluster(cluster)
    queues = [queue for queue in cluster.acknowledged_queues() if "broker-b" in queue]
    held, old = {name: cluster.held(name) for name in CONSUMERS}, cluster.addresses["broker-b"]
    await cluster.kill("broker-b")
    assert await cluster.broker("broker-b") != old
    seconds = await cluster.until_accepted(queues, after_us=now_us())
    report(f"slowest queue's first accepted result {max(seconds.values()):.2f} s after broker.started (goal 3 s)")
    assert {name: cluster.held(name) for name in CONSUMERS} == held, "its sessions came back within the grace"
    await cluster.finish_producer()
    assert (await cluster.prove(*CONSUMERS)).repeats == 0

"""A consumer that is suspended (SIGSTOP) in a listener call for longer than the session timeout, and resumed."""

import signal

import pytest

from support.cluster import DEFAULTS, QUICK, Cluster, Report

pytestmark = pytest.mark.e2e

QUEUES = 8


@pytest.mark.parametrize("options", [pytest.param(QUICK, id="2 s"), pytest.param(DEFAULTS, id="20 s", marks=pytest.mark.slow)])
async def test_queues_of_a_suspended_consumer_move_and_its_result_is_rejected(
    cluster: Cluster, report: Report, options: tuple[str, ...]
) -> None:
    await cluster.servers(*options, queues=4)
    await cluster.consumer("sleeper", "--trouble", "wait:0.5")
    await cluster.consumer("heir")
    await cluster.until_held(QUEUES, "sleeper", "heir")
    await cluster.producer("producer", "--keys", "40")
    await cluster.until_handled(200)
    cluster.signal(signal.SIGUSR1, "sleeper")
    begun = await cluster.until_heard("sleeper", "trouble.begun")
    stopped_us = cluster.signal(signal.SIGSTOP, "sleeper")
    lost = cluster.held("sleeper")

    await cluster.until("the heir holds everything", lambda: len(cluster.held("heir")) == QUEUES)
    assigned = [event for event in cluster.processes["heir"].events if event["event"] == "consumer.QueueAssigned"]
    moved = [event for event in assigned if event["queue"] in lost and event["at_us"] > stopped_us]
    assert {event["queue"] for event in moved} == set(lost)
    took_s = (max(event["at_us"] for event in moved) - stopped_us) / 1e6
    report(f"queues of a stopped consumer moved {took_s:.2f} s after the stop (session timeout {int(options[-1]) // 1000} s)")
    await cluster.until_accepted(lost, after_us=moved[-1]["at_us"])

    resumed_us = cluster.signal(signal.SIGCONT, "sleeper")
    fenced = await cluster.until_heard("sleeper", "consumer.QueueRevoked", queue=begun["queue"], epoch=begun["epoch"])
    assert fenced["fenced"] is True
    for queue, epoch in lost.items():
        revoked = await cluster.until_heard("sleeper", "consumer.QueueRevoked", queue=queue, epoch=epoch)
        assert revoked["fenced"] is True
        assert all(event["epoch"] > epoch for event in moved if event["queue"] == queue)
    await cluster.until_held(QUEUES, "sleeper", "heir")
    await cluster.until_accepted(cluster.held("sleeper"), after_us=resumed_us)

    await cluster.finish_producer()
    verdict = await cluster.prove("sleeper", "heir")
    assert not cluster.accepted_call(begun), "the result of the old epoch was accepted"
    by_two = {each.consumer for each in cluster.handled_events() if (each.queue, each.offset) == (begun["queue"], begun["offset"])}
    assert by_two == {"heir", "sleeper"}, "its own call ended, and the heir's counted"
    report(f"{verdict.repeats} of {verdict.events} events repeated")

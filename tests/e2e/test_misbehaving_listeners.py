"""Listeners that raise, return invalid results, block their thread, block the event loop, or can't be cancelled."""

import signal

import pytest

from support.cluster import DEFAULTS, QUICK, Cluster, Report

pytestmark = pytest.mark.e2e

BLOCKS = pytest.mark.parametrize(
    ("seconds", "options"),
    [pytest.param(4, QUICK, id="4 s"), pytest.param(60, DEFAULTS, id="60 s", marks=pytest.mark.slow)],
)
"""Longer than the session timeout of brokers with these options."""


async def start(cluster: Cluster, *consumers: tuple[str, ...], options: tuple[str, ...] = QUICK) -> None:
    """Start one broker with eight queues, these consumers and a load."""
    await cluster.servers(*options, queues=8, brokers=["broker-a"])
    for name, *more in consumers:
        await cluster.consumer(name, *more)
    await cluster.until_held(8, *(name for name, *_ in consumers))
    await cluster.producer("producer", "--keys", "40", "--pause-ms", "50")
    await cluster.until_handled(200)


async def test_failed_call_suspends_the_queue_and_is_repeated_with_one_more_attempt(cluster: Cluster) -> None:
    kinds = ("raise", "wrong")
    await start(cluster, *((kind, "--trouble", f"{kind}:2") for kind in kinds))
    cluster.signal(signal.SIGUSR1, *kinds)
    for kind in kinds:
        await cluster.until_heard(kind, "trouble.begun", attempt=1)
        place = {(event["queue"], event["offset"], event["epoch"]) for event in cluster.reported_events(kind, "trouble.begun")}
        assert len(place) == 1, "the same batch, under the same epoch"
        queue, offset, _ = place.pop()
        await cluster.until(f"{kind} is over it", lambda: any(d.queue == queue and d.offset == offset for d in cluster.handled_events()))  # noqa: B023
        assert [event["attempt"] for event in cluster.reported_events(kind, "trouble.begun")] == [0, 1]
        assert cluster.reported_events(kind, "call.failed", queue=queue, offset=offset, attempts=2)
    await cluster.finish_producer()
    assert (await cluster.prove(*kinds)).repeats == 0


async def test_attempts_are_kept_when_the_queue_moves(cluster: Cluster) -> None:
    await start(cluster, ("failing", "--trouble", "raise:1000000"), ("heir",))
    cluster.signal(signal.SIGUSR1, "failing")
    begun = await cluster.until_heard("failing", "trouble.begun", attempt=2)
    (line,) = [line for line in (await cluster.group())["queues"] if begun["queue"].endswith(f":{line['queue_id']}")]
    assert line["attempts"] >= 2
    assert line["committed_offset"] == begun["offset"]
    assert line["error"] == "RuntimeError: as configured"
    shown = await cluster.command("group", "show", "billing")
    assert f"queue {line['queue_id']}: offset {begun['offset']} has been failing for " in shown
    assert " times: RuntimeError: as configured\n" in shown
    await cluster.stop("failing")
    taken = await cluster.until_heard("heir", "queue.assigned", queue=begun["queue"])
    assert taken["offset"] == begun["offset"]
    assert taken["attempts"] == len(cluster.reported_events("failing", "trouble.begun"))
    await cluster.finish_producer()
    assert (await cluster.prove("heir")).repeats == 0


@BLOCKS
async def test_plain_listener_may_block_its_thread_beyond_the_session_timeout(
    cluster: Cluster, seconds: int, options: tuple[str, ...]
) -> None:
    """The loop continues meanwhile, so no lock is lost and the result counts."""
    await start(cluster, ("blocking", "--plain", "--trouble", f"loop:{seconds}"), ("other",), options=options)
    held = cluster.held("blocking")
    cluster.signal(signal.SIGUSR1, "blocking")
    ended = await cluster.until_heard("blocking", "trouble.ended")
    await cluster.until(
        "its result is accepted",
        lambda: any(each.queue == ended["queue"] and each.first <= ended["offset"] < each.end for each in cluster.accepted()),
    )
    assert cluster.held("blocking") == held
    await cluster.finish_producer()
    assert (await cluster.prove("blocking", "other")).repeats == 0


@BLOCKS
async def test_blocking_the_event_loop_loses_the_queues_and_the_result(
    cluster: Cluster, report: Report, seconds: int, options: tuple[str, ...]
) -> None:
    await start(cluster, ("blocking", "--trouble", f"loop:{seconds}"), ("heir",), options=options)
    lost = cluster.held("blocking")
    cluster.signal(signal.SIGUSR1, "blocking")
    begun = await cluster.until_heard("blocking", "trouble.begun")
    await cluster.until("the heir holds everything", lambda: len(cluster.held("heir")) == 8)
    assert not cluster.reported_events("blocking", "trouble.ended"), "the queues moved while the listener ran"
    moved = cluster.reported_events("heir", "consumer.QueueAssigned", queue=begun["queue"])[-1]
    report(
        f"moved {(moved['at_us'] - begun['at_us']) / 1e6:.2f} s after the loop was blocked (session timeout {int(options[-1]) // 1000} s)"
    )

    ended = await cluster.until_heard("blocking", "trouble.ended")
    assert ended["cancelled"] is True, "the listener can see that its right is over, although the loop stood still"
    for queue, epoch in lost.items():
        revoked = await cluster.until_heard("blocking", "consumer.QueueRevoked", queue=queue, epoch=epoch)
        assert revoked["fenced"] is True
    assert await cluster.until_heard("blocking", "loop.was_blocked")
    await cluster.until_held(8, "blocking", "heir")
    await cluster.finish_producer()
    await cluster.prove("blocking", "heir")
    assert not cluster.accepted_call(begun), "the result of the old epoch was accepted"


async def test_listener_that_ignores_cancellation_is_abandoned_and_its_result_is_stale(cluster: Cluster) -> None:
    """Every queue of the first consumer has such a listener when a second one joins: queues that move are fenced, others are not."""
    await start(cluster, ("deaf", "--trouble", "deaf:15", "--everywhere", "--drain-ms", "1000"))
    cluster.signal(signal.SIGUSR1, "deaf")
    await cluster.until("each queue has one", lambda: len(cluster.reported_events("deaf", "trouble.begun")) == 8)
    await cluster.consumer("heir")
    await cluster.until("half have moved", lambda: len(cluster.held("heir")) == 4)
    assert not cluster.reported_events("deaf", "trouble.ended"), "they moved while the listeners ran"
    troubles = {event["queue"]: event for event in cluster.reported_events("deaf", "trouble.begun")}
    moved = set(cluster.held("heir"))
    for queue in moved:
        assert cluster.reported_events("deaf", "call.given_up", queue=queue)
        assert (await cluster.until_heard("heir", "consumer.QueueAssigned", queue=queue))["offset"] == troubles[queue]["offset"]

    await cluster.until("they have ended", lambda: len(cluster.reported_events("deaf", "trouble.ended")) == 8)
    for queue, begun in troubles.items():
        if queue in moved:
            assert cluster.reported_events("deaf", "trouble.ended", queue=queue)[0]["cancelled"] is True
            await cluster.until_heard("deaf", "result.was_stale", queue=queue, offset=begun["offset"])
    await cluster.finish_producer()
    verdict = await cluster.prove("deaf", "heir")
    assert verdict.repeats == len(moved), "each of the fenced results, and nothing else, was repeated"

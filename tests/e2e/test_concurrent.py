"""Concurrent consumption and delays with real processes: a process that is killed, restarted or missing loses nothing. Delays are short."""

import time
from collections import Counter
from collections.abc import Sequence

import pytest

from lockstep.client import Message, Producer
from lockstep.protocol.codes import ResponseCode
from support.cluster import QUICK, Cluster, Report
from support.concurrent_lines import consumer
from support.delayed import at_level
from support.native import native

pytestmark = pytest.mark.e2e

SHORT = (*QUICK, "--message-delay-level", "100ms 500ms " + " ".join(["300ms"] * 16))
"""Level 1 is 100 ms, level 2 is 500 ms; every retry comes after 300 ms."""
DELAYS = (*QUICK, "--message-delay-level", "1s 3s 8s")


async def send(cluster: Cluster, bodies: Sequence[str], topic: str = "orders") -> None:
    async with Producer("test", nameserver=cluster.nameservers) as producer:
        for first in range(0, len(bodies), 1_000):
            await producer.send_batch([Message(topic, body.encode()) for body in bodies[first : first + 1_000]])


async def test_messages_sent_back_during_broker_restarts_are_all_handled(cluster: Cluster, report: Report) -> None:
    """Every message fails once, and the broker is killed three times while they are sent back."""
    await cluster.servers(*SHORT, brokers=("broker-a",))
    bodies = [f"m{number}" for number in range(600)]
    lines = await consumer(cluster, "worker", "--fail", "m", "--fail-times", "1", "--work-ms", "20", "--concurrency", "4")
    await send(cluster, bodies)
    for number in range(3):
        await cluster.until(f"{100 * number + 20} calls", lambda number=number: len(lines.all()) >= 100 * number + 20)  # type: ignore[misc]
        await cluster.kill("broker-a")
        await cluster.restart("broker-a")
    await cluster.until("all are handled", lambda: set(lines.done()) == set(bodies))
    assert all(times >= 1 for body, times, result, _ in lines.all() if result == "done"), "the first call of each fails"
    report(f"{sum(lines.done().values()) - len(bodies)} of {len(bodies)} handled a second time, three kills of the broker")
    await cluster.stop("worker")
    await cluster.until_lag(0, "mailing")


async def test_missing_dead_letter_topic_is_created_and_has_every_message(cluster: Cluster) -> None:
    await cluster.servers(*SHORT, queues=2, brokers=("broker-a",))
    bodies = [f"m{number}" for number in range(60)]
    assert "%DLQ%mailing" not in await cluster.command("topic", "list")
    lines = await consumer(cluster, "worker", "--fail", "m", "--fail-times", "99", "--max-reconsume-times", "1")
    await send(cluster, bodies)
    await cluster.until("each was tried twice", lambda: Counter(body for body, *_ in lines.all()) == dict.fromkeys(bodies, 2))
    await cluster.stop("worker")
    dead = await consumer(cluster, "morgue", "--group", "morgue", "--topic", "%DLQ%mailing")
    await cluster.until("every dead letter is read", lambda: set(dead.done()) == set(bodies))
    assert sum(dead.done().values()) == len(bodies)
    assert {times for _, times, _, _ in dead.all()} == {2}


async def test_failing_message_of_a_batch_redelivers_it_and_the_later_ones_only(cluster: Cluster) -> None:
    await cluster.servers(*SHORT, queues=1, brokers=("broker-a",))
    bodies = ["a0", "a1", "bad", "a3", "a4"]
    await send(cluster, bodies)
    lines = await consumer(cluster, "worker", "--batch-count", "5", "--concurrency", "1", "--fail", "bad", "--fail-times", "2")
    await cluster.until("all are handled", lambda: set(lines.done()) == set(bodies))
    calls = Counter(body for body, *_ in lines.all())
    assert calls["a0"] == calls["a1"] == 1
    assert calls["bad"] == 3
    assert set(lines.done().values()) == {1}
    await cluster.stop("worker")


async def test_consumer_killed_between_send_back_and_commit_loses_nothing(cluster: Cluster) -> None:
    await cluster.servers(*SHORT, queues=1, brokers=("broker-a",))
    bodies = ["bad", *(f"m{number}" for number in range(30))]
    await send(cluster, bodies)
    command = ["--fail", "bad", "--fail-times", "1"]
    lines = await consumer(cluster, "victim", *command, "--concurrency", "1", "--die-after-send-back")
    await cluster.processes["victim"].wait()
    assert "bad" not in lines.done()
    again = await consumer(cluster, "heir", *command)
    await cluster.until("all are handled", lambda: set(again.done()) | set(lines.done()) == set(bodies))
    await cluster.until("the copies of the victim's send-back and of the repetition are handled", lambda: again.done()["bad"] == 2)
    await cluster.until_lag(0, "mailing")
    await cluster.stop("heir")
    assert again.done()["bad"] == 2


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
async def test_many_messages_that_fail_at_once_are_all_redelivered(cluster: Cluster, report: Report, count: int) -> None:
    await cluster.servers(*SHORT, queues=4, brokers=("broker-a",))
    bodies = [f"m{number}" for number in range(count)]
    await send(cluster, bodies)
    began = time.monotonic()
    lines = await consumer(cluster, "worker", "--fail", "m", "--fail-times", "1", "--concurrency", "64")
    await cluster.until("all are handled", lambda: lines.path.exists() and lines.path.read_bytes().count(b" done ") >= count, timeout_s=300)
    seconds = time.monotonic() - began
    report(f"{count:,} messages failed once and were handled in {seconds:.1f} s, {2 * count / seconds:,.0f} calls a second")
    await cluster.until_lag(0, "mailing")
    assert set(lines.done()) == set(bodies)
    assert sum(lines.done().values()) == count, "nothing was cut or killed: nothing comes twice"
    await cluster.stop("worker")


def boot_ms() -> int:
    """Delays are counted by the boot clock (D1), which all processes of a machine share."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


async def send_at_levels(cluster: Cluster, sends: Sequence[tuple[str, int]]) -> list[int]:
    """Send messages (body, delay level): each second one as RocketMQ's clients do, so that it waits in the queue of its level, the others
    as timers.

    Return when each was sent, by the boot clock: the broker's timestamp is not earlier.
    """
    sent_ms: list[int] = []
    async with Producer("test", nameserver=cluster.nameservers) as producer, native(cluster.addresses["broker-a"]) as other:
        for number, (body, level) in enumerate(sends):
            sent_ms.append(boot_ms())
            if number % 2:
                response = await other.send("orders", body.encode(), properties=at_level(level))
                assert response.code == ResponseCode.SUCCESS, response.remark
            else:
                await producer.send(Message("orders", body.encode()), delay_level=level)
    return sent_ms


async def test_delayed_messages_over_three_restarts_are_neither_lost_nor_early(cluster: Cluster, report: Report) -> None:
    await cluster.servers(*DELAYS, queues=2, brokers=("broker-a",))
    lines = await consumer(cluster, "worker")
    waits_ms = (1_000, 3_000, 8_000)
    sends = [(f"m{number}", 1 + number % 3) for number in range(300)]
    sent_ms = await send_at_levels(cluster, sends)
    sent = {body: (at_ms, waits_ms[level - 1]) for (body, level), at_ms in zip(sends, sent_ms, strict=True)}
    for goal, end in ((1, "kill"), (120, "stop"), (220, "kill")):
        await cluster.until(f"{goal} have arrived", lambda goal=goal: len(lines.done()) >= goal)  # type: ignore[misc]
        await (cluster.kill if end == "kill" else cluster.stop)("broker-a")
        await cluster.restart("broker-a")
    await cluster.until("all have arrived", lambda: set(lines.done()) == set(sent))
    first: dict[str, int] = {}
    for body, _, _, at_ms in lines.all():
        first.setdefault(body, at_ms)
    early = [body for body, (at_ms, wait_ms) in sent.items() if first[body] < at_ms + wait_ms]
    assert early == []
    report(f"{sum(lines.done().values()) - len(sent)} of {len(sent)} came twice")
    await cluster.stop("worker")


async def test_delay_of_a_stored_message_is_unaffected_by_a_new_delay_table(cluster: Cluster) -> None:
    """The next start has a shorter table without their times, the one after it other times for the same levels."""
    await cluster.servers(*DELAYS, queues=2, brokers=("broker-a",))
    lines = await consumer(cluster, "worker")
    due_ms: dict[str, int] = {}
    for start, waits_ms in enumerate(((1_000, 3_000, 8_000), (2_000,), (500, 500, 500))):
        if start:
            await cluster.kill("broker-a")
            table = " ".join(f"{wait_ms}ms" for wait_ms in waits_ms)
            await cluster.broker("broker-a", *QUICK, "--message-delay-level", table, listen=cluster.addresses["broker-a"])
        sends = [(f"m{start}-{number}", 1 + number % len(waits_ms)) for number in range(30)]
        for (body, level), at_ms in zip(sends, await send_at_levels(cluster, sends), strict=True):
            due_ms[body] = at_ms + waits_ms[level - 1]
    await cluster.until("all have arrived", lambda: set(lines.done()) == set(due_ms))
    early = [body for body, _, _, at_ms in lines.all() if at_ms < due_ms[body]]
    assert early == []
    await cluster.stop("worker")

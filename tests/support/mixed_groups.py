"""Ordered groups with members of RocketMQ's clients and of lockstep's SDK: start the programs, and check the order from what they wrote."""

from collections.abc import Collection, Iterable
from itertools import pairwise

from lockstep.cli.demo.proof import HandledEvent
from lockstep.protocol.order import skips
from support.cluster import Cluster, now_us

BROKERS, QUEUES_EACH = ("broker-a", "broker-b"), 4
TAKEN_OVER_S = 180
"""A lease of 60 s, and the 20 s after which Java clients ask again, on a busy machine."""
QUICK_JAVA = ("-Drocketmq.client.rebalance.waitInterval=2000", "-Drocketmq.client.rebalance.lockInterval=5000")


def queues(topic: str) -> set[str]:
    return {f"{topic}@{broker}:{queue_id}" for broker in BROKERS for queue_id in range(QUEUES_EACH)}


async def java(cluster: Cluster, programs: list[str], program: str, name: str, *arguments: str) -> None:
    """Start a program of tests/interop/java on the topic `orders`. `programs`: the options with which java finds it."""
    options = [*QUICK_JAVA, f"-Duser.home={cluster.folder}", "-Xmx96m", *programs]
    command = [*options, program, cluster.nameservers, "orders", *arguments]
    await cluster.start(name, command, "worker.ready", program="java")


async def java_member(cluster: Cluster, programs: list[str], name: str, *concurrent: str) -> None:
    """Start a member of `billing`. `concurrent`: a topic and a group whose member it is too."""
    await java(cluster, programs, "OrderedMember", name, "billing", name, str(cluster.folder / f"{name}.handled"), *concurrent)


async def until_every_queue_is_handled(cluster: Cluster, *names: str, topic: str = "orders") -> float:
    """Wait until each queue has an event that a call of one of these members has handled from now on. Return the seconds."""
    begun_us = now_us()

    def handled() -> set[str]:
        return {each.queue for each in cluster.handled_events(topic) if each.begun_us > begun_us and each.consumer in names}

    await cluster.until(f"{names} handle every queue of {topic}", lambda: handled() == queues(topic), timeout_s=TAKEN_OVER_S)
    return (now_us() - begun_us) / 1e6


async def until_taken_over(cluster: Cluster, count: int, after_us: int) -> float:
    """Wait until so many queues are worked on after a time. Return when the last one was first, in s after it."""

    def handled() -> list[int]:
        """Return when each queue was worked on first."""
        events = [each for each in cluster.handled_events() if each.begun_us > after_us]
        return [min(each.begun_us for each in events if each.queue == queue) for queue in {each.queue for each in events}]

    await cluster.until("each queue is worked on", lambda: len(handled()) == count, timeout_s=TAKEN_OVER_S)
    return (max(handled()) - after_us) / 1e6


def faults(events: Iterable[HandledEvent]) -> list[str]:
    """Return what is out of order: of each queue, in the order of time, no offset may be left out, and no two members may work at once.

    Members may go back to an offset and repeat from there. The steps of each key may only repeat too.
    """
    found = []
    of_queue: dict[str, list[HandledEvent]] = {}
    for each in sorted(events, key=lambda each: each.begun_us):
        of_queue.setdefault(each.queue, []).append(each)
    for queue, work in of_queue.items():
        found += [f"{queue}: {skip.after} after {skip.before}" for skip in skips(work, lambda each: each.offset, first=0)]
        found += [f"{queue}: {after} began while {before} ran" for before, after in pairwise(work) if after.begun_us < before.ended_us]
        of_key: dict[int, list[HandledEvent]] = {}
        for each in work:
            of_key.setdefault(each.order, []).append(each)
        for key, steps in of_key.items():
            expected, places = 0, dict[int, int]()
            for each in steps:
                # A send that RocketMQ's client repeats may be stored twice, one directly behind the other.
                known = places.setdefault(each.offset, each.step)
                if each.step > expected or known != each.step:
                    found.append(f"{queue}: key {key}: {each} while step {expected} was expected")
                expected = max(expected, each.step + 1)
    of_order: dict[int, set[str]] = {}
    for each in (each for work in of_queue.values() for each in work):
        of_order.setdefault(each.order, set()).add(each.queue)
    return found + [f"key {key} is in {sorted(where)}" for key, where in of_order.items() if len(where) > 1]


def repeats(events: Collection[HandledEvent]) -> int:
    return len(events) - len({(each.queue, each.offset) for each in events})

"""A topic is deleted and altered while it is used."""

import json
import re
import signal

import pytest

from support.cluster import Cluster, now_us

pytestmark = pytest.mark.e2e

CONSUMERS = ("consumer-1", "consumer-2")
READERS = {
    "mailing": ["-m", "support.worker_concurrent"],
    "prices": ["-m", "support.worker_member", "loop"],
    "watchers": ["-m", "support.worker_member", "broadcast", "--group", "watchers"],
}
"""One member each of a concurrent, a pull and a broadcast group, which have these names."""


async def readers(cluster: Cluster) -> None:
    for name, command in READERS.items():
        options = ["--nameserver", cluster.nameservers, "--file", str(cluster.folder / f"{name}.read")]
        options += ["--offset-dir", str(cluster.folder / "offsets")] if name == "watchers" else []
        await cluster.start(name, [*command, *options], "worker.ready")


def read(cluster: Cluster, name: str) -> list[tuple[int, int]]:
    """Return (key, step) in the order in which a reader has handled them."""
    text = (cluster.folder / f"{name}.read").read_text()
    return [(int(key), int(step)) for key, step in re.findall(r'"order": (\d+), "step": (\d+)}', text)]


async def layout(cluster: Cluster) -> int:
    return int(json.loads(await cluster.command("topic", "show", "orders", "--json"))["version"]["counter"])


async def generations(cluster: Cluster, group: str) -> dict[str, int]:
    """Return the topic's queues as the brokers report them."""
    lines = [line for line in (await cluster.group(group))["queues"] if line["topic"] == "orders"]
    return {f"{line['broker']}:{line['queue_id']}": int(line["generation"]) for line in lines}


async def start_load(cluster: Cluster) -> None:
    await cluster.servers(queues=2)
    for name in CONSUMERS:
        await cluster.consumer(name)
    await cluster.until_held(4, *CONSUMERS)
    await cluster.producer("producer", "--keys", "20", "--pause-ms", "20")
    await cluster.until_handled(200)


async def test_topic_deleted_under_load_is_gone_for_all_clients_and_empty_when_recreated(cluster: Cluster) -> None:
    """Producers get TOPIC_NOT_EXIST, consumers release its queues and continue; when it is created again, it starts with new epochs."""
    await start_load(cluster)
    await readers(cluster)
    await cluster.until("every reader is at work", lambda: all(len(read(cluster, name)) >= 100 for name in READERS))
    before, version = await cluster.epochs(), await layout(cluster)
    generated = {name: await generations(cluster, name) for name in ("mailing", "prices")}
    assert all(len(each) == 4 and min(each.values()) > 0 for each in generated.values()), generated
    ends = {queue: max(offset for _, _, at, offset in cluster.acks() if at == queue) + 1 for queue in cluster.acknowledged_queues()}
    assert "is deleted: its 4 queues" in await cluster.command("topic", "delete", "orders")
    failures = await cluster.until_heard("producer", "send.failed")
    assert failures["error"] == "TopicNotExistError", failures
    await cluster.until(
        "every key has failed", lambda: len({each["key"] for each in cluster.reported_events("producer", "send.failed")}) == 20
    )
    assert {each["error"] for each in cluster.reported_events("producer", "send.failed")} <= {"TopicNotExistError", "PrecedingSendError"}
    await cluster.until("no consumer holds a queue", lambda: not any(cluster.held(name) for name in CONSUMERS))
    assert "orders" not in await cluster.command("topic", "list")
    assert "topic orders does not exist" in await cluster.command("topic", "delete", "orders", code=1)
    for name in generated:
        assert await generations(cluster, name) == {}, "no progress is left in it"
    cluster.processes["producer"].signal(signal.SIGTERM)
    await cluster.processes["producer"].wait()

    again_us = now_us()
    await cluster.command("topic", "create", "orders", "--queues", "2")
    assert await layout(cluster) >= version + 2, "the deletion is a layout of its own"
    await cluster.until_held(4, *CONSUMERS)
    await cluster.producer("producer-2", "--first", "1000", "--keys", "20", "--steps", "5")
    await cluster.until("the new events", lambda: len({(d.order, d.step) for d in cluster.handled_events() if d.order >= 1000}) == 100)
    events = {(key, step) for key in range(1000, 1020) for step in range(5)}
    await cluster.until("every reader has the new events", lambda: all(events <= set(read(cluster, name)) for name in READERS))
    for name in READERS:
        handled = read(cluster, name)
        first = next(place for place, (key, _) in enumerate(handled) if key >= 1000)
        assert not [event for event in handled[first:] if event not in events], "what was deleted stays away from them too"
        assert cluster.processes[name].exit_code is None, "it has lived on"
    for name, was in generated.items():
        now = await generations(cluster, name)
        assert now.keys() == was.keys()
        assert all(now[queue] > was[queue] for queue in was), (was, now)
    assert all(offset >= ends.get(queue, 0) for _, _, queue, offset in cluster.acks("producer-2")), "no offset names two messages"
    assert not [each for each in cluster.handled_events() if each.order < 1000 and each.begun_us > again_us], "what was deleted stays away"
    epochs = await cluster.epochs()
    assert all(int(epochs[queue]) > int(before[queue]) for queue in epochs)
    await cluster.stop(*CONSUMERS, *READERS)


async def test_queues_added_under_load_are_filled_and_read_and_nothing_is_lost(cluster: Cluster) -> None:
    await cluster.servers(queues=2, brokers=("broker-a",))
    for name in CONSUMERS:
        await cluster.consumer(name)
    await cluster.until_held(2, *CONSUMERS)
    await cluster.producer("producer", "--keys", "30", "--pause-ms", "20")
    await cluster.until_handled(100)
    changed = json.loads(await cluster.command("topic", "alter", "orders", "--queues", "4", "--force", "--json"))
    assert (changed["changed"], changed["keys_move"], changed["version"]["counter"]) == (True, True, 2)
    await cluster.until_held(4, *CONSUMERS)
    await cluster.until("the new queues are filled", lambda: len(cluster.acknowledged_queues()) == 4)
    assert not cluster.reported_events("producer", "send.failed")
    await cluster.finish_producer()
    await cluster.until_done()
    await cluster.stop(*CONSUMERS)
    per_key: dict[str, list[int]] = {}
    for each in cluster.handled_events():
        per_key.setdefault(f"{each.order} {each.queue}", []).append(each.step)
    assert all(steps == sorted(steps) for steps in per_key.values()), "within one layout a key stays in order"


async def test_alter_topic_requires_force_while_an_ordered_group_has_lag(cluster: Cluster) -> None:
    await cluster.servers(queues=2, brokers=("broker-a",))
    await cluster.consumer("consumer-1")
    await cluster.producer("producer", "--keys", "4", "--steps", "5")
    await cluster.until_handled(20)
    await cluster.stop("consumer-1")
    await cluster.producer("producer-2", "--first", "100", "--keys", "4", "--steps", "5")
    await cluster.until("more is stored", lambda: len(cluster.acks("producer-2")) == 20)
    error = await cluster.command("topic", "alter", "orders", "--queues", "3", code=1)
    assert "nothing was changed: some groups have not consumed all of orders (lag of billing: 20, and it has no member" in error
    assert "--force" in error
    kept = json.loads(await cluster.command("topic", "alter", "orders", "--write-queues", "2", "--read-queues", "3", "--json"))
    assert kept["keys_move"] is False, "queues that are only read break no order"
    assert "layout version 3" in await cluster.command("topic", "alter", "orders", "--queues", "3", "--force")
    assert "has that many queues already" in await cluster.command("topic", "alter", "orders", "--queues", "3")


async def test_deletion_applied_at_every_broker_prints_no_warning(cluster: Cluster) -> None:
    """The nameserver may notify a broker of the deletion before the command does."""
    await cluster.servers(queues=1)
    for number in range(5):
        topic = f"short-{number}"
        await cluster.command("topic", "create", topic, "--queues", "1")
        assert await cluster.command_stderr("topic", "delete", topic) == ""

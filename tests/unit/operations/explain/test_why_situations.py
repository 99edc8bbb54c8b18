"""lockstep why: each situation is produced in a cluster, and its cause is named first."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from lockstep.client import (
    Backoff,
    ConsumeOrderlyStatus,
    MessageExt,
    OrderedRetry,
    OrderlyContext,
    PullConsumer,
    sql,
)
from lockstep.client.consumer.calls.listener import ConcurrentlyContext
from lockstep.client.consumer.stacks import Stack, stack_of_thread
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.errors import OperationError
from lockstep.operations.explain.why import QueueState
from lockstep.protocol.bodies import GroupSettings, MessageModel
from lockstep.protocol.errors import SubscriptionConflictError
from lockstep.runtime.host import Host
from lockstep.testing import TestCluster
from support.why_kit import GROUP, TOPIC, Listener, Member, accept, cause, explanations, hang, send

pytestmark = pytest.mark.lockstep(brokers=1)

FAST = Backoff(first_ms=100, max_ms=100)


async def ready(cluster: TestCluster, *, queues: int = 1) -> None:
    await cluster.create_topic(TOPIC, queues=queues)


async def start(cluster: TestCluster, name: str, member: Member) -> Member:
    """Start a member, and return it when it holds its queues."""
    await cluster.start(name, member.run)
    await cluster.settled(GROUP)
    return member


async def broken(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
    raise ValueError("no such account")


async def test_queue_without_waiting_messages_has_nothing_to_do(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    (found,) = await explanations(lockstep_cluster)
    assert (found.state, found.because, found.also) == (QueueState.IDLE, None, ())
    assert found.summary == f"{TOPIC}@broker-a:0 of group {GROUP} has nothing to do: all messages below offset 10 are consumed"


async def test_queue_that_moves_says_how_long_it_will_take(lockstep_cluster: TestCluster) -> None:
    async def slow(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        await asyncio.sleep(0.1)

    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, slow))
    await send(lockstep_cluster, 1_000)
    await lockstep_cluster.advance(seconds=2)
    (found,) = await explanations(lockstep_cluster)
    assert (found.state, found.because) == (QueueState.PROGRESSING, None)
    assert "10 messages/s during the examination" in found.summary
    assert "which are consumed in" in found.summary


async def test_unknown_group(lockstep_cluster: TestCluster) -> None:
    with pytest.raises(OperationError, match=f"no broker knows group {GROUP}"):
        await explanations(lockstep_cluster)


async def test_running_call_is_shown_with_its_stack(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=100)
    (found,) = await explanations(lockstep_cluster)
    assert found.state is QueueState.STALLED
    assert found.summary.startswith(f"{TOPIC}@broker-a:0 of group {GROUP} is stalled at offset 0: 10 messages wait")
    because = found.because
    assert because is not None
    assert because.name == "listener_runs"
    assert because.text.startswith("the listener support.why_kit.hang has been running for 101 s on offset 0 (key k0) in ")
    assert any(place.endswith(" in hang") and place.startswith("support/why_kit.py:") for place in because.stack), because.stack
    own = because.stack[-2]
    assert own.endswith(" in hang")
    assert because.stack[-1].startswith("asyncio/locks.py:")
    assert because.text.endswith(f", at {own} (now in {because.stack[-1]})")
    assert because.step == f"look at {own}"


async def test_call_in_a_thread_is_shown_with_its_stack(lockstep_cluster: TestCluster) -> None:
    """The simulator has no threads that run beside the loop: the listener asks about itself while it runs."""
    seen: list[Stack] = []

    def plain(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        seen.append(stack_of_thread(threading.get_ident()))

    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, plain))
    await send(lockstep_cluster, 1)
    await lockstep_cluster.until(lambda: seen, "a call")
    own = seen[0].own
    assert own is not None
    assert own.endswith(" in test_call_in_a_thread_is_shown_with_its_stack.<locals>.plain")


async def test_call_that_has_run_longest_is_the_one_that_is_named(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang, {"order_by": "sharding_key", "concurrency": 5}))
    await send(lockstep_cluster, 1, keys=1)
    await lockstep_cluster.advance(seconds=5)
    await send(lockstep_cluster, 2, keys=2)
    await lockstep_cluster.advance(seconds=5)
    because = await cause(lockstep_cluster)
    assert because.name == "listener_runs"
    assert "on offset 0 (key k0)" in because.text


async def test_call_of_another_queue_that_takes_all_concurrency_is_named(lockstep_cluster: TestCluster) -> None:
    async def concurrent(messages: Sequence[MessageExt], context: ConcurrentlyContext) -> None:
        await asyncio.Event().wait()

    await ready(lockstep_cluster, queues=2)
    member = Member(lockstep_cluster, concurrent, {"concurrency": 1}, concurrent=True)  # type: ignore[arg-type]
    await lockstep_cluster.start("a", member.run)
    await lockstep_cluster.advance(seconds=3)
    await send(lockstep_cluster, 20, keys=10)
    await lockstep_cluster.advance(seconds=5)
    found = await explanations(lockstep_cluster)
    names = sorted(each.because.name for each in found if each.because is not None)
    assert names == ["all_calls_busy", "listener_runs"]
    busy = next(each.because for each in found if each.because is not None and each.because.name == "all_calls_busy")
    assert busy.text.startswith("all 1 calls that ")


async def test_silent_member_is_the_finding(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=1)
    await lockstep_cluster.pause("a")
    because = await cause(lockstep_cluster)
    assert because.name == "member_silent"
    assert "did not respond within 3 s; the broker last received something from it" in because.text
    await lockstep_cluster.resume("a")


async def test_group_without_members(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster))
    await lockstep_cluster.stop("a")
    await send(lockstep_cluster, 10)
    assert (await cause(lockstep_cluster)).name == "no_member"


async def test_owner_that_died_is_in_its_grace_and_then_gone(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=1)
    await lockstep_cluster.kill("a")
    because = await cause(lockstep_cluster)
    assert because.name == "owner_in_grace"
    assert "has lost its connection; it keeps the queue for another" in because.text
    await lockstep_cluster.advance(seconds=4)
    assert (await cause(lockstep_cluster)).name == "no_member"


async def test_consumption_that_is_switched_off(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster))
    admin = AdminClient(Host.current(), lockstep_cluster.nameserver)
    (broker,) = await admin.brokers()
    await admin.configure(broker, GroupSettings(GROUP, consume_enable=False))
    await send(lockstep_cluster, 10)
    because = await cause(lockstep_cluster)
    assert because.name == "consumption_disabled"
    assert because.step == f"allow it with `lockstep group update {GROUP} --consume`"


async def test_member_that_was_refused_is_shown_beside_the_others_and_alone(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster))
    refused = Member(lockstep_cluster, settings={"retry": OrderedRetry(max_attempts=3)})

    async def is_refused() -> None:
        with pytest.raises(SubscriptionConflictError):
            await refused.run()

    await lockstep_cluster.start("b", is_refused)
    await lockstep_cluster.until(lambda: lockstep_cluster.state("b") == "stopped", "the refusal")
    (found,) = await explanations(lockstep_cluster)
    assert [each.name for each in found.also] == ["member_refused"]
    assert "retry" in found.also[0].text
    await lockstep_cluster.stop("a")
    await send(lockstep_cluster, 10)
    assert (await cause(lockstep_cluster)).name == "member_refused"


async def test_backoff_after_a_failure(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, broken, {"retry": OrderedRetry(backoff=Backoff(first_ms=30_000))}))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    because = await cause(lockstep_cluster)
    assert because.name == "backoff"
    assert because.text.startswith("offset 0 has failed 1 times for ")
    assert "ValueError: no such account. It is called again in 2" in because.text


async def test_exhausted_attempts_block_the_queue(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, broken, {"retry": OrderedRetry(max_attempts=2, backoff=FAST)}))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=5)
    because = await cause(lockstep_cluster)
    assert because.name == "blocked"
    assert "is not called any more: offset 0 has failed 2 times" in because.text


async def test_paused_consumer(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    member = await start(lockstep_cluster, "a", Member(lockstep_cluster))
    member.started.pause()
    await send(lockstep_cluster, 10)
    assert (await cause(lockstep_cluster)).name == "paused"


async def test_messages_without_a_manual_commit(lockstep_cluster: TestCluster) -> None:
    async def never_commits(messages: Sequence[MessageExt], context: OrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        return ConsumeOrderlyStatus.SUCCESS

    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, never_commits))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    because = await cause(lockstep_cluster)
    assert because.name == "uncommitted"
    assert because.text.startswith("10 messages were passed to the listener ")


async def test_polled_messages_that_were_not_committed(lockstep_cluster: TestCluster) -> None:
    async def polls_once() -> None:
        async with PullConsumer(GROUP, nameserver=lockstep_cluster.nameserver, auto_commit=False).subscribe(TOPIC) as consumer:
            await consumer.poll(timeout_ms=60_000)
            await asyncio.Event().wait()

    await ready(lockstep_cluster)
    await lockstep_cluster.start("a", polls_once)
    await lockstep_cluster.advance(seconds=2)
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=5)
    because = await cause(lockstep_cluster)
    assert because.name == "polled"
    assert "has neither committed them nor polled again" in because.text


async def test_one_key_holds_the_span(lockstep_cluster: TestCluster) -> None:
    async def hangs_on_k0(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k0":
            await asyncio.Event().wait()

    await ready(lockstep_cluster)
    settings = {"order_by": "sharding_key", "concurrency": 5, "queue_span_max": 20}
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hangs_on_k0, settings))
    await send(lockstep_cluster, 200, keys=10)
    await lockstep_cluster.advance(seconds=5)
    (found,) = await explanations(lockstep_cluster)
    assert found.because is not None
    assert found.because.name == "listener_runs"
    assert "(key k0)" in found.because.text
    assert [each.name for each in found.also] == ["span_full", "held"]
    assert "key k0 at offset 0 is unfinished" in found.also[0].text


async def test_queue_that_is_consumed_in_its_order_tells_that_no_more_is_fetched(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang, {"queue_count_max": 20}))
    await send(lockstep_cluster, 200)
    await lockstep_cluster.advance(seconds=5)
    (found,) = await explanations(lockstep_cluster)
    assert found.because is not None
    assert [found.because.name, *(each.name for each in found.also)] == ["listener_runs", "span_full", "held"]
    assert found.also[0].text.startswith("no more messages are fetched: 20 fetched messages are unfinished and fill a limit of the queue")


async def test_loop_that_is_blocked_again_and_again(lockstep_cluster: TestCluster) -> None:
    """Never for so long that the member would not respond."""
    waiting: list[asyncio.Event] = []

    async def waits(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        waiting.append(asyncio.Event())
        await waiting[-1].wait()

    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, waits))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.until(lambda: waiting, "a call")
    await lockstep_cluster.pause("a", seconds=2.5)
    await lockstep_cluster.advance(seconds=3)
    waiting[-1].set()
    await lockstep_cluster.until(lambda: len(waiting) == 2, "the next call")
    (found,) = await explanations(lockstep_cluster)
    assert found.because is not None
    assert [found.because.name, found.also[0].name] == ["loop_blocked", "listener_runs"], "calls come to an end"
    assert " blocked the event loop of " in found.because.text
    assert " for 2." in found.because.text
    await lockstep_cluster.advance(seconds=60)
    (found,) = await explanations(lockstep_cluster)
    assert found.because is not None
    assert [found.because.name, *(each.name for each in found.also)] == ["listener_runs", "held"], "that was a minute ago"


async def test_blocked_key_is_named(lockstep_cluster: TestCluster) -> None:
    async def fails_on_k0(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k0":
            raise ValueError("no such account")

    await ready(lockstep_cluster)
    settings = {"order_by": "sharding_key", "concurrency": 5, "retry": OrderedRetry(max_attempts=2, backoff=FAST)}
    await start(lockstep_cluster, "a", Member(lockstep_cluster, fails_on_k0, settings))
    await send(lockstep_cluster, 20, keys=10)
    await lockstep_cluster.advance(seconds=5)
    because = await cause(lockstep_cluster)
    assert because.name == "key_blocked"
    assert "is not called any more for: k0" in because.text


async def test_parked_keys_are_a_remark(lockstep_cluster: TestCluster) -> None:
    async def fails_on_k0(messages: Sequence[MessageExt], context: OrderlyContext) -> None:
        if messages[0].sharding_key == "k0":
            raise ValueError("no such account")

    await ready(lockstep_cluster)
    settings = {"retry": OrderedRetry(max_attempts=2, on_exhausted="park", backoff=FAST)}
    await start(lockstep_cluster, "a", Member(lockstep_cluster, fails_on_k0, settings))
    await send(lockstep_cluster, 20, keys=10)
    await lockstep_cluster.advance(seconds=5)
    (found,) = await explanations(lockstep_cluster)
    assert [each.name for each in found.also] == ["parked"]
    assert "whose messages wait: k0" in found.also[0].text


async def test_filter_that_passes_nothing_is_no_standstill(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang, expression=sql("amount > 100")))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    (found,) = await explanations(lockstep_cluster)
    assert found.state is QueueState.IDLE
    assert "except 10 that its subscription does not match" in found.summary
    assert [each.text for each in found.also] == [f"the subscription SQL92 amount > 100 to {TOPIC} matches none of the last 10 messages"]


async def test_misspelt_tag_is_named_with_the_tags_that_are_sent(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster, queues=2)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang, expression="craeted || chipped"))
    await send(lockstep_cluster, 2_000, keys=20, tags="created")
    await send(lockstep_cluster, 20, keys=20, tags="shipped")
    await send(lockstep_cluster, 6, keys=20)
    await lockstep_cluster.advance(seconds=20)
    for found in await explanations(lockstep_cluster):
        assert found.state is QueueState.IDLE
        (also,) = found.also
        assert also.name == "filter_matches_nothing"
        words, _, tags = also.text.partition("; tags seen last: ")
        assert words == f"the subscription chipped || craeted to {TOPIC} matches none of the last 1,000 messages"
        assert sorted(tags.split(", ")) == ["created", "no tag", "shipped"]
    await send(lockstep_cluster, 1, tags="chipped")
    await lockstep_cluster.advance(seconds=2)
    assert "filter_matches_nothing" not in [also.name for found in await explanations(lockstep_cluster) for also in found.also]


async def test_tag_of_the_same_hash_is_no_match(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, expression="Aa"))
    await send(lockstep_cluster, 3, tags="BB")
    await lockstep_cluster.advance(seconds=2)
    (found,) = await explanations(lockstep_cluster)
    assert [each.text for each in found.also] == [f"the subscription Aa to {TOPIC} matches none of the last 3 messages; tags seen last: BB"]


async def test_subscription_to_an_empty_topic_is_not_compared(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, expression="craeted"))
    (found,) = await explanations(lockstep_cluster)
    assert found.also == ()


async def test_queue_that_is_drained_for_another_member(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster, queues=2)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang, {"drain_timeout_ms": 600_000}))
    await send(lockstep_cluster, 40, keys=20)
    await lockstep_cluster.advance(seconds=1)
    await lockstep_cluster.start("b", Member(lockstep_cluster, accept, {"drain_timeout_ms": 600_000}).run)
    await lockstep_cluster.advance(seconds=10)
    found = {each.because.name for each in await explanations(lockstep_cluster) if each.because is not None}
    assert found == {"listener_runs", "draining"}


async def test_power_cut_suspends_grants(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=1)
    await lockstep_cluster.cut_power("broker-a")
    await lockstep_cluster.restart("broker-a")
    seen = set()
    for _ in range(5):
        try:
            (found,) = await explanations(lockstep_cluster)
        except OperationError:
            continue
        seen.add(None if found.because is None else found.because.name)
    assert "grants_suspended" in seen


async def test_broker_that_is_away(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang))
    await send(lockstep_cluster, 10)
    await lockstep_cluster.kill("broker-a")
    with pytest.raises(OperationError, match="the result is incomplete: broker broker-a"):
        await explanations(lockstep_cluster)


async def test_topic_to_which_no_member_subscribes_any_more(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await start(lockstep_cluster, "a", Member(lockstep_cluster))
    await send(lockstep_cluster, 5)
    await lockstep_cluster.advance(seconds=2)
    await lockstep_cluster.stop("a")
    await lockstep_cluster.create_topic("bills", queues=1)
    await lockstep_cluster.start("b", Member(lockstep_cluster, topic="bills").run)
    await send(lockstep_cluster, 5)
    await lockstep_cluster.advance(seconds=5)
    found = (await explanations(lockstep_cluster))[-1]
    assert found.because is not None
    assert (found.topic, found.state, found.because.name) == (TOPIC, QueueState.LEFT, "topic_left")


async def test_broadcasting_group_is_not_explained_by_a_broker(lockstep_cluster: TestCluster) -> None:
    await ready(lockstep_cluster)
    await lockstep_cluster.start("a", Member(lockstep_cluster, settings={"message_model": MessageModel.BROADCASTING}).run)
    await lockstep_cluster.advance(seconds=5)
    (found,) = await explanations(lockstep_cluster)
    assert found.because is not None
    assert (found.state, found.because.name, found.also) == (QueueState.UNKNOWN, "broadcasting", ())


async def test_members_of_a_broadcasting_group_that_hang_or_are_silent_are_named(lockstep_cluster: TestCluster) -> None:
    """No broker knows what they have consumed: each is asked what it does."""
    settings = {"message_model": MessageModel.BROADCASTING}
    listener: dict[str, Listener] = {"a": hang, "b": accept, "c": accept, "d": accept}
    members = {name: Member(lockstep_cluster, each, settings, concurrent=True) for name, each in listener.items()}
    await ready(lockstep_cluster)
    for name, member in members.items():
        await lockstep_cluster.start(name, member.run)
    await lockstep_cluster.advance(seconds=5)
    members["d"].started.pause()
    await send(lockstep_cluster, 10)
    await lockstep_cluster.advance(seconds=2)
    ids = {name: member.started.health().client_id for name, member in members.items()}
    await lockstep_cluster.pause("c")
    (found,) = await explanations(lockstep_cluster)
    told = {each.name: each for each in found.also}
    assert sorted(told) == ["member_silent", "paused"], "a call of less than 5 s may be any call"
    assert str(ids["c"]) in told["member_silent"].text
    assert str(ids["d"]) in told["paused"].text
    (found,) = await explanations(lockstep_cluster)
    runs = next(each for each in found.also if each.name == "listener_runs")
    assert f" on offset 0 of {TOPIC}@broker-a:0 in {ids['a']}, at " in runs.text
    assert runs.stack[-2].endswith(" in hang")
    await lockstep_cluster.resume("c")


async def test_asking_takes_no_longer_than_the_looks_and_the_limit(lockstep_cluster: TestCluster) -> None:
    """A member that is silent is asked once, however many of its queues are stalled."""
    await ready(lockstep_cluster, queues=8)
    await start(lockstep_cluster, "a", Member(lockstep_cluster, hang))
    await send(lockstep_cluster, 80, keys=40)
    await lockstep_cluster.advance(seconds=1)
    await lockstep_cluster.pause("a")
    began = lockstep_cluster.now
    found = await explanations(lockstep_cluster)
    assert lockstep_cluster.now - began < 5
    assert {each.because.name for each in found if each.because is not None} == {"member_silent"}
    await lockstep_cluster.resume("a")

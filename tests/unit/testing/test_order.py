"""The order checker finds violations of each law, and none in a lawful run."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client import ConsumeOrderlyStatus, Message, MessageQueue, Producer, PushConsumer, SendError
from lockstep.testing import OrderChecker, OrderViolationError, TestCluster
from lockstep.testing.order_laws import FAULTS_MAX, Fate, Handling, ReportedSend, judge
from support.effort import examples

S = ConsumeOrderlyStatus


def sent(name: str, at: int, *, key: str | None = "k", fate: Fate = Fate.ACKED, took: int = 5, expected: bool = True) -> ReportedSend:
    """Message `name`, sent at 10·at, acknowledged `took` later."""
    acked = fate is Fate.ACKED
    group = None if key is None else f'key "{key}"'
    ended = 10 * at + took
    return ReportedSend("t", name.encode(), group, 10 * at, 10.0 * at, ended, float(ended), fate, name if acked else "", expected)


def sends(count: int) -> list[ReportedSend]:
    """Return messages 1 … count, each sent after the previous one was acknowledged."""
    return [sent(str(number), number) for number in range(1, count + 1)]


def work(handled: str, *, key: str | None = "k") -> list[Handling]:
    """ "1 2@7" : message 1 at offset 1 with no fence known, then message 2 with fence 7."""
    made = []
    for number, word in enumerate(handled.split()):
        name, _, epoch = word.partition("@")
        by, fence = f"owner-{epoch}", int(epoch) if epoch else None
        made.append(Handling(1000 + number, 1000.0 + number, by, fence, name, "t", key, "b:0", int(name), name.encode()))
    return made


def laws(sends: list[ReportedSend], handlings: list[Handling], max_repeats: int = 10) -> list[str]:
    return sorted({broken.law for broken in judge(sends, handlings, max_repeats=max_repeats)})


@pytest.mark.parametrize(
    "handled", ["1 2 3", "1 2 1 2 3", "1 2 3 2 3", "1 2 3 1 2 1 2 3", "1 1 1 2 3", "1@1 2@1 2@2 3@2", "1@1 2@1 3@1 3@1"]
)
def test_repetitions_by_handovers_and_retries_are_in_order(handled: str) -> None:
    assert laws(sends(3), work(handled)) == []


@pytest.mark.parametrize(
    ("handled", "broken"),
    [
        ("2 1 2 3", ["acked", "order"]),
        ("1 3 2 3", ["acked", "order"]),
        ("1 2 3 1 3", ["order"]),
        ("1 2 3 2", ["order"]),
        ("1 3", ["lost"]),
        ("1 2", ["lost"]),
        ("1@1 2@2 1@1 3@2", ["stale"]),
        ("1@1 2@2 3@2 3@1", ["stale"]),
        ("1 2 3 4", ["stranger"]),
    ],
)
def test_each_violation_is_attributed_to_its_law(handled: str, broken: list[str]) -> None:
    assert laws(sends(3), work(handled)) == broken


def test_repeats_are_counted_per_message() -> None:
    assert laws(sends(2), work("1 2 1 2 1 2"), max_repeats=2) == []
    assert laws(sends(2), work("1 2 1 2 1 2"), max_repeats=1) == ["repeats"]
    assert laws(sends(2), work("1 2"), max_repeats=0) == []
    assert laws(sends(2), work("1 1 2"), max_repeats=0) == ["repeats"]


def test_overlapping_sends_are_not_ordered() -> None:
    both = [sent("2", 1, took=50), sent("1", 2, took=5)]
    assert laws(both, work("1 2")) == []
    one_after_the_other = [sent("2", 1, took=5), sent("1", 2, took=5)]
    assert laws(one_after_the_other, work("1 2")) == ["acked"], "the broker stored them the wrong way round"


def test_messages_of_different_keys_or_without_key_are_not_ordered() -> None:
    assert laws([sent("1", 1, key="a"), sent("2", 2, key="b")], work("2 1")) == []
    assert laws([sent("1", 1, key=None), sent("2", 2, key=None)], work("2 1", key=None)) == []


def test_only_acknowledged_and_selected_messages_can_be_lost() -> None:
    reported = [sent("1", 1), sent("2", 2, fate=Fate.UNKNOWN), sent("3", 3, fate=Fate.NOT_STORED), sent("4", 4, expected=False)]
    assert laws(reported, work("1")) == []
    assert laws(reported, work("1 2")) == [], "what was written may be there"
    assert laws(reported, work("1 3")) == ["stranger"], "what is not stored may not"
    assert laws([*reported, sent("5", 5)], work("1")) == ["lost"]


def test_send_of_unknown_outcome_accounts_for_one_message() -> None:
    one = [sent("1", 1), sent("2", 2, fate=Fate.UNKNOWN)]
    twice = [*work("1 2"), Handling(2000, 2000.0, "", None, "another id", "t", "k", "b:0", 3, b"2")]
    assert laws(one, twice) == ["stranger"]


def test_fencing_tokens_are_compared_within_one_queue() -> None:
    elsewhere = Handling(2000, 2000.0, "", 1, "3", "t", "k", "c:0", 3, b"3")
    assert laws(sends(3), [*work("1@7 2@7"), elsewhere]) == []


def test_each_law_reports_a_limited_number_of_violations() -> None:
    found = judge(sends(100), [], max_repeats=0)
    assert [broken.law for broken in found] == ["lost"] * FAULTS_MAX


@examples(100)
@given(count=st.integers(1, 8), data=st.data())
def test_any_sequence_of_owners_is_lawful_and_a_missing_message_is_not(count: int, data: st.DataObject) -> None:
    order: list[int] = []
    done = 0
    while done < count:
        first = data.draw(st.integers(1, done + 1))
        last = data.draw(st.integers(first, count))
        order += range(first, last + 1)
        order += range(last + 1, done + 1)
        done = max(done, last)
    handled = " ".join(map(str, order))
    assert laws(sends(count), work(handled), max_repeats=len(order)) == []
    hole = str(data.draw(st.integers(1, count)))
    assert "lost" in laws(sends(count), work(" ".join(name for name in handled.split() if name != hole)), max_repeats=len(order))


# ------------------------------------------------------------------------------------------------------------ with a cluster


def program(cluster: TestCluster, listener: Callable[..., object]) -> Callable[[], object]:
    async def main() -> None:
        consumer = PushConsumer("billing", nameserver=cluster.nameserver)
        consumer.subscribe("orders")
        consumer.orderly(listener)  # type: ignore[type-var]
        async with consumer:
            await consumer.wait_closed()

    return main


async def test_correct_handler_passes_across_worker_and_broker_crashes(lockstep_cluster: TestCluster) -> None:
    cluster, checker = lockstep_cluster, OrderChecker(lockstep_cluster)
    await cluster.create_topic("orders")

    @checker.watch
    async def listen(messages: object, context: object) -> S:
        return S.SUCCESS

    await cluster.start("worker-1", program(cluster, listen))  # type: ignore[arg-type]
    async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        for step in range(20):
            if step == 5:
                await cluster.kill("worker-1")
            if step == 10:
                await cluster.kill("broker-a")
                await cluster.restart("broker-a")
                await cluster.restart("worker-1")
            await producer.send(Message("orders", b"a%d" % step, sharding_key="a"))
            await producer.send_batch([Message("orders", b"%b%d" % (key.encode(), step), sharding_key=key) for key in "bc"])
            await producer.send(Message("orders", b"q%d" % step), queue=MessageQueue("orders", "broker-b", 1))
            await producer.send(Message("orders", b"any%d" % step))
    await cluster.settled("billing")
    checker.verify()
    assert checker.handled_count >= 100


async def test_synchronous_listener_is_watched_and_failed_calls_handle_no_message(lockstep_cluster: TestCluster) -> None:
    cluster, checker = lockstep_cluster, OrderChecker(lockstep_cluster)
    await cluster.create_topic("orders")
    calls = []

    @checker.watch
    def listen(messages: object, context: object) -> S | None:
        calls.append(checker.handled_count)
        return None if len(calls) > 2 else S.SUSPEND_CURRENT_QUEUE_A_MOMENT

    await cluster.start("worker-1", program(cluster, listen))  # type: ignore[arg-type]
    async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        await producer.send(Message("orders", b"1", sharding_key="a"))
    await cluster.settled("billing")
    checker.verify(max_repeats=0)
    assert calls == [0, 0, 0]
    assert (checker.handled_count, checker.repeat_count) == (1, 0)


async def test_failed_send_need_not_be_handled(lockstep_cluster: TestCluster) -> None:
    cluster, checker = lockstep_cluster, OrderChecker(lockstep_cluster, topic="orders", expression="paid")
    await cluster.create_topic("orders", queues=1)
    async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        for broker in cluster.brokers:
            await cluster.kill(broker)
        with pytest.raises(SendError):
            await producer.send(Message("orders", b"never", tags="paid", sharding_key="a"), timeout_ms=2_000)
        for broker in cluster.brokers:
            await cluster.restart(broker)
        await producer.send(Message("orders", b"other tag", tags="created", sharding_key="a"))
        with pytest.raises(AttributeError, match="send_oneway"):
            await producer.send_oneway(Message("orders", b"who knows"))
    checker.verify()


async def test_order_violation_text_has_keys_handovers_and_the_seed(lockstep_cluster: TestCluster) -> None:
    cluster, checker = lockstep_cluster, OrderChecker(lockstep_cluster)
    await cluster.create_topic("orders")
    with pytest.raises(OrderViolationError, match="no send was acknowledged"):
        checker.verify()

    @checker.watch
    async def listen(messages: list[Message], context: object) -> S:
        return S.SUCCESS

    async def forgetful(messages: list[Message], context: object) -> S:
        return S.SUCCESS

    await cluster.start("good", program(cluster, listen))  # type: ignore[arg-type]
    async with checker.producer(Producer("shop", nameserver=cluster.nameserver)) as producer:
        await producer.send(Message("orders", b"first", sharding_key="a"))
        await cluster.settled("billing")
        await cluster.stop("good")
        await cluster.start("forgetful", program(cluster, forgetful))  # type: ignore[arg-type]
        await producer.send(Message("orders", b"second", sharding_key="a"))
        await cluster.settled("billing")
    with pytest.raises(OrderViolationError) as caught:
        checker.verify()
    text = str(caught.value)
    for part in (
        "lost: 'second' (orders, key \"a\")",
        "'first' handled by good",
        "--- stop good",
        "--- start forgetful",
        "--lockstep-seed 0",
    ):
        assert part in text, text

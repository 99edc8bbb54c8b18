"""RocketMQ's latency fault table: unkeyed sends avoid a slow broker, keyed sends never move."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client import ConfigError, LatencyFaults, Message, Producer
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.latency_fault import BrokerLatencies
from lockstep.client.producer.machines.routing import queue_of_key
from support.fake_broker import FakeBroker, Sent, fake_cluster, ignore
from support.loops import until

ROWS = [(0, 0), (49, 0), (50, 0), (100, 0), (549, 0), (550, 30), (551, 30), (999, 30), (1_000, 60), (1_999, 60), (2_000, 120)]
ROWS += [(2_999, 120), (3_000, 180), (14_999, 180), (15_000, 600), (30_000, 600), (10**9, 600)]


@pytest.mark.parametrize(("latency_ms", "left_out_s"), ROWS)
def test_default_latency_table_equals_rocketmqs(latency_ms: int, left_out_s: int) -> None:
    assert LatencyFaults().left_out_for_ms(latency_ms) == left_out_s * 1_000


@pytest.mark.parametrize(
    "how",
    [
        {"latencies_ms": ()},
        {"latencies_ms": (1, 2)},
        {"latencies_ms": (1,), "left_out_ms": (-1,)},
        {"latencies_ms": (2, 1), "left_out_ms": (0, 0)},
        {"latencies_ms": (1, 2), "left_out_ms": (5, 0)},
        {"failed_ms": 1.5},
    ],
)
def test_invalid_latency_table_is_rejected(how: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="_ms"):
        LatencyFaults(**how)  # type: ignore[arg-type]


def test_latency_faults_are_off_by_default() -> None:
    assert ProducerConfig().latency_faults is None
    with pytest.raises(ConfigError, match="latency_faults is True"):
        ProducerConfig(latency_faults=True)  # type: ignore[arg-type]


def test_slow_broker_is_excluded_for_its_penalty_or_until_a_fast_response() -> None:
    brokers = BrokerLatencies(LatencyFaults())
    brokers.responded("a", 549, 0)
    assert (brokers.usable("ab", 0), brokers.version, brokers.next_change_ms(0)) == ({"a", "b"}, 0, None)
    brokers.responded("a", 550, 1_000)
    assert brokers.version == 1
    assert brokers.usable("ab", 30_999) == {"b"}
    assert brokers.next_change_ms(30_999) == 31_000
    assert brokers.usable("ab", 31_000) == {"a", "b"}
    assert brokers.next_change_ms(31_000) is None
    brokers.failed("a", 40_000)
    assert brokers.usable("ab", 639_999) == {"b"}
    brokers.responded("a", 10, 50_000)
    assert brokers.usable("ab", 50_000) == {"a", "b"}
    assert brokers.version == 3


@pytest.mark.parametrize(
    ("latencies", "used"),
    [
        ({"a": 600}, "a"),
        ({"a": 600, "b": 700}, "a"),
        ({"a": 700, "b": 600, "c": 800}, "b"),
        ({"a": 9_000, "b": 600, "c": 800, "d": 700}, "bd"),
    ],
)
def test_faster_half_of_the_brokers_is_used_if_all_are_excluded(latencies: dict[str, int], used: str) -> None:
    brokers = BrokerLatencies(LatencyFaults())
    for name, latency_ms in latencies.items():
        brokers.responded(name, latency_ms, 0)
    assert brokers.usable(latencies, 1) == set(used)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40_000), st.integers(0, 100_000))),
    st.lists(st.sampled_from("abcd"), min_size=1),
    st.integers(0, 10**6),
)
def test_some_broker_is_always_usable_and_fast_brokers_are_never_excluded(
    seen: list[tuple[str, int, int]], names: list[str], later_ms: int
) -> None:
    brokers, now_ms, last = BrokerLatencies(LatencyFaults()), 0, {}
    for name, latency_ms, pause_ms in seen:
        now_ms += pause_ms
        brokers.responded(name, latency_ms, now_ms)
        last[name] = latency_ms
    usable = brokers.usable(names, now_ms + later_ms)
    assert usable
    assert usable <= set(names)
    free = {name for name in names if last.get(name, 0) < 550}
    assert free <= usable
    assert (brokers.next_change_ms(now_ms + 600_000)) is None


# ------------------------------------------------------------------------------------------------------------------- the producer

TABLE = LatencyFaults(latencies_ms=(100,), left_out_ms=(5_000,), failed_ms=200)


def respond_slowly(broker: FakeBroker, seen: Sent) -> None:
    """Store and respond after 150 ms."""
    asyncio.get_running_loop().call_later(0.150, broker.take, seen)


async def brokers_used(producer: Producer, count: int) -> Counter[str]:
    """Send `count` unkeyed messages one after the other. Return the number per broker."""
    return Counter([(await producer.send(Message("t", b"x"))).queue.broker_name for _ in range(count)])


async def warm_up(producer: Producer, brokers: dict[str, FakeBroker]) -> None:
    await producer.send(Message("t", b"first"))
    await until(lambda: all(broker.heartbeats for broker in brokers.values()))
    await brokers_used(producer, 4)


@pytest.mark.simulated
@pytest.mark.parametrize("on", [True, False])
async def test_unkeyed_sends_avoid_a_slow_broker_if_latency_faults_are_enabled(on: bool) -> None:
    faults = TABLE if on else None
    async with (
        fake_cluster("a", "b", topics={"t": 2}) as cluster,
        Producer("g", nameserver=cluster.nameserver, latency_faults=faults) as producer,
    ):
        await warm_up(producer, cluster.brokers)
        cluster.brokers["a"].script.append(respond_slowly)
        assert (await brokers_used(producer, 4))["a"] >= 1
        assert await brokers_used(producer, 8) == ({"b": 8} if on else {"a": 4, "b": 4})
        await asyncio.sleep(5.1)
        assert await brokers_used(producer, 8) == {"a": 4, "b": 4}


@pytest.mark.simulated
async def test_unkeyed_sends_avoid_a_failed_broker_and_keyed_sends_stay() -> None:
    async with (
        fake_cluster("a", "b", topics={"t": 2}) as cluster,
        Producer("g", nameserver=cluster.nameserver, latency_faults=TABLE, send_timeout_ms=400, attempt_timeout_ms=40) as producer,
    ):
        await warm_up(producer, cluster.brokers)
        key = next(str(n) for n in range(99) if queue_of_key(cluster.layouts["t"], str(n)).broker_name == "a")
        cluster.brokers["a"].script.extend([ignore] * 8)
        assert await brokers_used(producer, 4) == {"b": 4}
        cluster.brokers["a"].script.clear()
        assert await brokers_used(producer, 8) == {"b": 8}
        for _ in range(3):
            assert (await producer.send(Message("t", b"x", sharding_key=key))).queue.broker_name == "a"
        await asyncio.sleep(1.1)  # the queue itself is not trusted for a second
        assert (await brokers_used(producer, 8))["a"] == 4, "it has responded quickly"


@pytest.mark.simulated
async def test_sends_continue_if_all_brokers_are_slow() -> None:
    async with (
        fake_cluster("a", "b", topics={"t": 2}) as cluster,
        Producer("g", nameserver=cluster.nameserver, latency_faults=TABLE) as producer,
    ):
        await warm_up(producer, cluster.brokers)
        for broker in cluster.brokers.values():
            broker.script.append(respond_slowly)
        await asyncio.gather(*(producer.send(Message("t", b"x")) for _ in range(4)))
        assert sum((await brokers_used(producer, 8)).values()) == 8

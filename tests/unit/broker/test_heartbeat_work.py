"""The work of a HEART_BEAT, counted by calls and lines: it is parsed once, and has no more names than one turn may process."""

from typing import Any, cast

import pytest

from lockstep.broker.groups import contract, heartbeats
from lockstep.broker.groups.contract import TAGS_PER_CLIENT_MAX, TOPICS_PER_CLIENT_MAX
from lockstep.broker.groups.heartbeats import GROUPS_PER_CLIENT_MAX, HeartbeatCache
from lockstep.broker.processors import client
from lockstep.protocol.bodies import ConsumerGroup, HeartbeatBody, ProducerGroup, Subscription
from lockstep.protocol.codec.msgpack_body import encode_body
from lockstep.protocol.codes import RequestCode, ResponseCode
from lockstep.protocol.command import Command
from lockstep.protocol.names import TOPIC_BYTES_MAX
from lockstep.runtime.limits import HEARTBEAT_BYTES_MAX
from lockstep.runtime.requests.dispatch import Dispatcher
from lockstep.runtime.requests.lanes import LaneLimits
from support.broker_fakes import FakeEndpoint, client_processor
from support.coordination_kit import Bench
from support.counting import Steps

SESSION = "ab" * 16


class HeartbeatBench:
    def __init__(self) -> None:
        self.dispatcher = Dispatcher([client_processor(Bench())], None, {client.QUERY_LANE: LaneLimits(1, 1)})
        self.endpoint = FakeEndpoint()
        self.endpoint.on_close = []  # type: ignore[attr-defined]

    def beat(self, body: HeartbeatBody) -> Command:
        self.dispatcher(Command(RequestCode.HEART_BEAT, 1, body=encode_body(body)), cast(Any, self.endpoint))
        (response,) = self.endpoint.take()
        return response


def body(topics: int, tags: int = 1, groups: int = 1, session: str | None = None, first: int = 0) -> HeartbeatBody:
    """Return a heartbeat with `topics` topics in each group and `tags` tags in each topic."""
    expression = "||".join(f"tag{number}" for number in range(tags))
    named = tuple(Subscription(f"t{first + number}", expression) for number in range(topics))
    return HeartbeatBody("client-1", tuple(ConsumerGroup(f"g{number}", named) for number in range(groups)), session=session, connection=1)


@pytest.mark.parametrize("session", [None, SESSION])
def test_unchanged_heartbeat_is_decoded_and_parsed_once(session: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, calls = HeartbeatBench(), list[str]()

    def counted(owner: Any, name: str) -> None:
        own = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given, **named: calls.append(name) or own(*given, **named))  # type: ignore[func-returns-value]

    counted(heartbeats, "heartbeat_body")
    counted(contract, "parse_tags")
    counted(contract, "check_topic")
    for _ in range(5):
        assert desk.beat(body(100, 3, session=session)).code == ResponseCode.SUCCESS
    assert {name: calls.count(name) for name in calls} == {"heartbeat_body": 1, "parse_tags": 100, "check_topic": 100}
    calls.clear()
    assert desk.beat(body(100, 3, session=session, first=1)).code == ResponseCode.SUCCESS
    assert {name: calls.count(name) for name in calls} == {"heartbeat_body": 1, "parse_tags": 100, "check_topic": 100}


def test_cached_heartbeats_are_limited_and_the_least_recently_used_is_evicted() -> None:
    cache = HeartbeatCache(bytes_max=20_000)
    raws = [encode_body(body(10, first=number)) for number in range(10)]
    first = cache.read(raws[0])
    for raw in raws[1:]:
        cache.read(raw)
        assert cache.read(raws[0]) is first
        assert cache.bytes <= 20_000
    assert len(cache._known) == 20_000 // (cache.bytes // len(cache._known))
    again = cache.read(raws[1])
    assert again.body == body(10, first=1)


@pytest.mark.parametrize(
    "large",
    [
        HeartbeatBody("c", producers=(ProducerGroup("p" * 100_000),)),
        HeartbeatBody("c", tuple(ConsumerGroup(f"g{number}", (), retry="r" * 255) for number in range(250))),
    ],
)
def test_cached_heartbeat_counts_all_of_its_text(large: HeartbeatBody) -> None:
    cache = HeartbeatCache()
    cache.read(raw := encode_body(large))
    assert cache.bytes > len(raw)


@pytest.mark.parametrize("session", [None, SESSION])
def test_work_of_a_heartbeat_is_linear_in_its_topics(session: str | None) -> None:
    def lines(topics: int) -> int:
        desk = HeartbeatBench()
        desk.beat(body(topics, session=session))
        with Steps("broker/") as steps:
            desk.beat(body(topics, session=session, first=1))
        return steps.count

    assert lines(400) <= 2.2 * lines(200)


@pytest.mark.parametrize(
    ("fits", "too_much", "what"),
    [
        (
            body(TOPICS_PER_CLIENT_MAX // 2, groups=2),
            body(TOPICS_PER_CLIENT_MAX // 2 + 1, groups=2),
            "1026 topics in its subscriptions, 1024",
        ),
        (body(1, groups=GROUPS_PER_CLIENT_MAX), body(1, groups=GROUPS_PER_CLIENT_MAX + 1), "257 groups, 256"),
        (body(8, TAGS_PER_CLIENT_MAX // 8), body(8, TAGS_PER_CLIENT_MAX // 8 + 1), "4104 tags in its subscriptions, 4096"),
        (
            HeartbeatBody("client-1", (), (ProducerGroup("p"),) * 256),
            HeartbeatBody("client-1", (), (ProducerGroup("p"),) * 257),
            "257 groups of producers, 256",
        ),
    ],
    ids=["topics", "groups", "tags", "producers"],
)
def test_heartbeat_above_a_limit_is_rejected_by_name(fits: HeartbeatBody, too_much: HeartbeatBody, what: str) -> None:
    desk = HeartbeatBench()
    assert desk.beat(fits).code == ResponseCode.SUCCESS
    response = desk.beat(too_much)
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, f"client client-1 names {what} allowed")


def test_topics_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "from_plain", lambda *_: pytest.fail("decoded"))
    assert HeartbeatBench().beat(body(TOPICS_PER_CLIENT_MAX + 1)).code == ResponseCode.SYSTEM_ERROR


def test_longest_names_of_one_client_fit_a_heartbeat() -> None:
    tags = "||".join(f"{number:0200}" for number in range(TAGS_PER_CLIENT_MAX // TOPICS_PER_CLIENT_MAX))
    named = tuple(Subscription(f"{number:0{TOPIC_BYTES_MAX}}", tags) for number in range(TOPICS_PER_CLIENT_MAX))
    assert len(encode_body(HeartbeatBody("client-1", (ConsumerGroup("g", named),)))) < HEARTBEAT_BYTES_MAX

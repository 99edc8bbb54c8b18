from collections.abc import Callable

import pytest

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.names import (
    STATE_TOPIC,
    SYSTEM_TOPICS,
    check_broker_name,
    check_client_id,
    check_cluster_name,
    check_group,
    check_topic,
    how_to_create,
    is_sendable_topic,
    is_system_topic,
)

Check = Callable[[str], None]
CASES = [
    (check_topic, "topic", 127),
    (check_group, "group", 255),
    (check_client_id, "client id", 255),
    (check_broker_name, "broker name", 127),
    (check_cluster_name, "cluster name", 127),
]


@pytest.mark.parametrize(("check", "what", "longest"), CASES)
def test_name_has_a_maximum_length_and_must_not_be_blank(check: Check, what: str, longest: int) -> None:
    check("a")
    check("a" * longest)
    with pytest.raises(LocalProtocolError, match=f"longer than {what} max length {longest}"):
        check("a" * (longest + 1))
    for blank in ("", " ", "\t\n"):
        with pytest.raises(LocalProtocolError, match=f"{what} is blank"):
            check(blank)


@pytest.mark.parametrize(("check", "what", "longest"), CASES)
@pytest.mark.parametrize("wrong", [None, 1, b"orders"])
def test_name_must_be_a_str(check: Check, what: str, longest: int, wrong: object) -> None:
    with pytest.raises(LocalProtocolError, match="expected str"):
        check(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("check", [check_topic, check_group])
def test_topic_and_group_names_have_rocketmqs_characters(check: Check) -> None:
    for name in ("orders", "%RETRY%billing", "a|b", "A-b_C9"):
        check(name)
    for name in ("a b", "a.b", "a/b", "ä", "orders\n", "a\x00", "../x", "日本"):
        with pytest.raises(LocalProtocolError, match="illegal characters"):
            check(name)


def test_client_ids_are_ascii_without_spaces() -> None:
    check_client_id("10.0.0.1@4711#0123456789abcdef")
    for name in ("a b", "é", "a\n", "a\x7f"):
        with pytest.raises(LocalProtocolError, match="illegal characters"):
            check_client_id(name)


@pytest.mark.parametrize("check", [check_broker_name, check_cluster_name])
def test_broker_and_cluster_names_may_be_host_names(check: Check) -> None:
    check("broker-a.eu_1")
    for name in ("a b", "a@b@c", "@a", "a@", "a:1", "a/b", "%a"):
        with pytest.raises(LocalProtocolError, match="illegal characters"):
            check(name)


def test_broker_name_may_contain_a_machine_room_and_a_cluster_name_may_not() -> None:
    check_broker_name("hz@broker-a")
    with pytest.raises(LocalProtocolError, match="illegal characters"):
        check_cluster_name("hz@cluster")


@pytest.mark.parametrize("topic", [*sorted(SYSTEM_TOPICS), "rmq_sys_x", "LOCKSTEP_SYS_OTHER"])
def test_system_topics_are_recognized(topic: str) -> None:
    assert is_system_topic(topic)
    check_topic(topic)


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g", "LOCKSTEP", "rmq_sysx"])
def test_other_topics_are_not_system_topics(topic: str) -> None:
    assert not is_system_topic(topic)
    assert is_sendable_topic(topic)


def test_internal_topics_are_not_sendable() -> None:
    assert not is_sendable_topic(STATE_TOPIC)
    assert not is_sendable_topic("SCHEDULE_TOPIC_XXXX")
    assert is_sendable_topic("BenchmarkTest")


@pytest.mark.parametrize(
    ("topic", "advice"),
    [
        ("orders", "create it with `lockstep topic create orders`"),
        ("a|b", "create it with `lockstep topic create 'a|b'`"),
        ("RMQ_SYS_TRACE_TOPIC", "a broker that is started with --trace-topic creates it"),
        ("%RETRY%billing", "a broker creates it for group billing with its first member"),
        ("%DLQ%billing", "a broker creates it for group billing with its first message on which it gives up"),
        ("SCHEDULE_TOPIC_XXXX", "it is one of RocketMQ's or of the brokers' own, and nobody creates it here"),
        ("a.b", "topic 'a.b' contains illegal characters: allowing only % | a-z A-Z 0-9 _ -"),
    ],
)
def test_advice_about_a_missing_topic_can_be_followed(topic: str, advice: str) -> None:
    assert how_to_create(topic) == advice

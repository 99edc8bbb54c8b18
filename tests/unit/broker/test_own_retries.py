"""Messages that RocketMQ's clients send to the retries of their group: which sends count, the limit, what is stored."""

from typing import Any

import pytest

from lockstep.broker.classic.retry import as_stored, check_retry_topic, failed_calls, is_retry, retries_used_up
from lockstep.protocol.errors import LocalProtocolError, MessageIllegalError
from lockstep.protocol.headers.send import SendMessageHeader
from lockstep.protocol.messages.properties import split_properties

JAVA_3_4_8, JAVA_3_4_9 = 120, 121


def header(properties: str = "", topic: str = "%RETRY%cg", **changes: Any) -> SendMessageHeader:
    return SendMessageHeader("pg", topic, 0, properties=properties, **changes)


@pytest.mark.parametrize(
    ("send", "counts"),
    [
        (header(), False),
        (header("KEYS\x01RETRY_TOPIC"), False),
        (header("MY_RETRY_TOPIC\x01x"), False),
        (header(reconsume_times=1), True),
        (header(reconsume_times=-1), True),
        (header("RETRY_TOPIC\x01orders"), True),
        (header("ORIGIN_MESSAGE_ID\x01x"), True),
        (header("A\x01b\x02RECONSUME_TIME\x011"), True),
    ],
)
def test_retry_is_recognised_by_its_count_or_a_property_of_its_own(send: SendMessageHeader, counts: bool) -> None:
    assert is_retry(send) is counts


def test_retry_is_for_the_topic_of_retries_of_a_valid_group() -> None:
    assert check_retry_topic(header()) == "cg"
    for topic in ("orders", "%DLQ%cg"):
        with pytest.raises(MessageIllegalError, match="are for topics %RETRY%GROUP"):
            check_retry_topic(header(topic=topic))
    with pytest.raises(LocalProtocolError, match="group"):
        check_retry_topic(header(topic="%RETRY%"))


@pytest.mark.parametrize(
    ("properties", "times", "named", "version", "used_up"),
    [
        ("", 15, None, JAVA_3_4_9, False),
        ("", 16, None, JAVA_3_4_9, True),
        ("", 3, 3, JAVA_3_4_9, True),
        ("", 2, 3, JAVA_3_4_9, False),
        ("", 3, 3, JAVA_3_4_8, False),
        ("", 16, 20, JAVA_3_4_8, True),
        ("MAX_RECONSUME_TIMES\x012", 2, 2, JAVA_3_4_9, True),
        ("MAX_RECONSUME_TIMES\x012147483647", 40, 2**31 - 1, JAVA_3_4_9, False),
        ("MAX_RECONSUME_TIMES\x0116\x02RECONSUME_TIME\x013", 0, 0, 317, False),  # Go: its header has 0 and 0
        ("MAX_RECONSUME_TIMES\x013\x02RECONSUME_TIME\x013", 0, 0, 317, True),
    ],
)
def test_limit_is_the_clients_or_16(properties: str, times: int, named: int | None, version: int, used_up: bool) -> None:
    assert retries_used_up(header(properties, reconsume_times=times, max_reconsume_times=named), version) is used_up


def test_stored_message_has_the_count_and_nothing_that_brokers_and_consumers_had_added() -> None:
    added = "RECONSUME_TIME\x012\x02MAX_RECONSUME_TIMES\x0116\x02REAL_TOPIC\x01x\x02REAL_QID\x010\x02PGROUP\x01p\x02DELAY\x015\x02"
    added += "MIN_OFFSET\x010\x02MAX_OFFSET\x019\x02CONSUME_START_TIME\x017\x02__LS_SEQ\x01x\x02__LS_QUEUE\x013\x02WAIT\x01true\x02"
    stored = as_stored(header(added + "RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01id\x02TAGS\x01a\x02k\x01v"))
    assert stored.reconsume_times == 2
    assert split_properties(stored.properties) == {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": "id", "TAGS": "a", "k": "v"}


@pytest.mark.parametrize(
    ("properties", "changes", "words"),
    [
        ("RECONSUME_TIME\x01two", {}, "RECONSUME_TIME is 'two'"),
        ("MAX_RECONSUME_TIMES\x01-1", {}, "MAX_RECONSUME_TIMES is '-1'"),
        ("RETRY_TOPIC\x01no topic", {}, "property RETRY_TOPIC"),
        ("", {"reconsume_times": -1}, "reconsume times -1"),
    ],
)
def test_values_that_are_no_counts_or_names_are_refused(properties: str, changes: dict[str, Any], words: str) -> None:
    send = header(properties, **changes)
    with pytest.raises(MessageIllegalError, match=words):
        retries_used_up(send, JAVA_3_4_9) or as_stored(send)


def test_larger_count_of_header_and_property_counts() -> None:
    assert failed_calls(header("RECONSUME_TIME\x013", reconsume_times=5)) == 5
    assert failed_calls(header("RECONSUME_TIME\x016", reconsume_times=5)) == 6

"""What makes a message a request, and a reply to one. RocketMQ: RIP-16, MessageUtil."""

import pickle

import pytest

from lockstep.client import LocalProtocolError, Message, MessageExt
from lockstep.protocol.messages.message import decode_messages, encode_message, with_reserved
from lockstep.protocol.messages.properties import SENT_PROPERTIES_BYTES_MAX
from lockstep.protocol.messages.request_reply import TTL_MS_MAX, reply_properties, request_properties, ttl_ms, user_properties
from lockstep.protocol.names import reply_topic

OWN = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.1@7#a", "TTL": "2000", "CLUSTER": "DefaultCluster"}


def received(message: Message, born_ms: int = 1_000) -> MessageExt:
    (found,) = decode_messages(encode_message(message, 0, "AB" * 16, born_ms), "broker-a")
    return found


def test_request_is_the_message_with_the_properties_that_rocketmqs_replier_reads() -> None:
    assert request_properties("c-1", "10.0.0.1@7#a", 2_000, "DefaultCluster") == OWN
    assert "CLUSTER" not in request_properties("c-1", "10.0.0.1@7#a", 2_000, None)
    message = Message("quotes", b"AAPL", tags="us", keys=["k"], properties={"tenant": "x"}, sharding_key="s", flag=3)
    sent = received(with_reserved(message, OWN))
    assert sent.all_properties == {**OWN, "tenant": "x", "TAGS": "us", "KEYS": "k", "__SHARDINGKEY": "s", "UNIQ_KEY": "AB" * 16}
    assert (sent.body, sent.flag, sent.sharding_key) == (b"AAPL", 3, "s")


def test_message_that_is_requested_is_not_changed() -> None:
    message = Message("quotes", b"AAPL")
    request = with_reserved(message, OWN)
    assert message.stored_properties == b""
    assert request.properties == {}
    assert received(request).all_properties == {**OWN, "UNIQ_KEY": "AB" * 16}
    assert pickle.loads(pickle.dumps(request)) == message


@pytest.mark.parametrize(("more", "fits"), [(0, True), (1, False)])
def test_properties_of_the_request_count_for_the_limit(more: int, fits: bool) -> None:
    own = len("CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x0110.0.0.1@7#a\x02TTL\x012000\x02")
    message = Message("quotes", b"x", properties={"p": "v" * (SENT_PROPERTIES_BYTES_MAX - own - 2 + more)})
    if fits:
        assert len(received(with_reserved(message, OWN)).all_properties) == 6
    else:
        with pytest.raises(LocalProtocolError, match=r"those of a request, have 30721 bytes: at most 30720"):
            with_reserved(message, OWN)


def test_reply_names_its_request_and_has_an_id() -> None:
    kept = {name: OWN[name] for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL")}
    assert reply_properties({**OWN, "tenant": "x"}, "CD" * 16) == {**kept, "MSG_TYPE": "reply", "UNIQ_KEY": "CD" * 16}
    assert "TTL" not in reply_properties({name: value for name, value in OWN.items() if name != "TTL"}, "CD")
    assert reply_topic("DefaultCluster") == "DefaultCluster_REPLY_TOPIC"


@pytest.mark.parametrize("missing", ["CORRELATION_ID", "REPLY_TO_CLIENT", "CLUSTER"])
def test_message_without_a_property_of_a_request_is_none(missing: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"is no request: it has no property {missing}"):
        reply_properties({name: value for name, value in OWN.items() if name != missing}, "CD")


@pytest.mark.parametrize(
    ("ttl", "waits_ms"),
    [
        ("2000", 2_000),
        ("0", 0),
        ("9" * 19, TTL_MS_MAX),
        ("9" * 20, None),
        ("-1", None),
        ("2 s", None),
        ("²", None),
        ("٣", None),
        (None, None),
    ],
)
def test_time_to_live_that_is_no_number_is_none(ttl: str | None, waits_ms: int | None) -> None:
    properties = {"CORRELATION_ID": "c-1"} | ({} if ttl is None else {"TTL": ttl})
    assert ttl_ms(properties) == waits_ms
    assert ttl_ms({"TTL": "2000"}) is None, "no request"


def test_request_expires_its_time_to_live_after_its_birth() -> None:
    message = Message("quotes", b"x")
    assert received(with_reserved(message, OWN), born_ms=5_000).expires_ms == 7_000
    assert received(message).expires_ms is None


def test_properties_of_a_user_are_those_that_are_not_reserved_and_tags_and_keys() -> None:
    given = {**OWN, "MSG_TYPE": "reply", "UNIQ_KEY": "A", "WAIT": "true", "__LS_X": "1", "TAGS": "us", "KEYS": "k", "currency": "USD"}
    assert user_properties(given) == {"TAGS": "us", "KEYS": "k", "currency": "USD"}

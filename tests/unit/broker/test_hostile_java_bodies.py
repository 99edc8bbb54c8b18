"""Whatever a client of RocketMQ sends as fields or as a body is read or refused with words; no other error leaves the decoders."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.groups.heartbeats import heartbeat_body
from lockstep.protocol.codec import CODECS
from lockstep.protocol.codec.java import read_json
from lockstep.protocol.command import JSON
from lockstep.protocol.errors import LockstepError, RemoteProtocolError
from lockstep.protocol.fields import camel
from support.hostile_java import HOSTILE, classic_handlers, heartbeat

SPECS = [spec for server in ("broker", "nameserver") for spec in classic_handlers(server).values()]
HEADERS = sorted({spec.header for spec in SPECS if spec.header is not None}, key=lambda kind: kind.__name__)
BODIES = sorted({spec.body for spec in SPECS if spec.body not in (None, bytes)}, key=lambda kind: kind.__name__)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30) | st.sampled_from(HOSTILE)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)


def fields(kind: type, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return maps with some of the fields of a dataclass, and others."""
    known = [field.metadata.get("wire") or camel(field.name) for field in kind.__dataclass_fields__.values()]  # type: ignore[attr-defined]
    return st.dictionaries(st.sampled_from(known) | st.text(max_size=8), values, max_size=len(known))


@pytest.mark.parametrize("kind", HEADERS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_any_fields_of_a_header_are_read_or_refused(kind: type, data: st.DataObject) -> None:
    with suppress(RemoteProtocolError):
        CODECS[JSON].read_fields(kind, data.draw(fields(kind, SCALARS)))


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_any_json_is_a_body_or_is_refused(kind: type, data: st.DataObject) -> None:
    raw = json.dumps(data.draw(fields(kind, VALUES) | VALUES), default=repr).encode()
    with suppress(RemoteProtocolError):
        CODECS[JSON].read_body(kind, raw)


def places(plain: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to each value of a JSON value."""
    items = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    return [path, *(below for name, item in items for below in places(item, (*path, name)))]


@given(st.sampled_from(places(heartbeat())[1:]), VALUES)
def test_heartbeat_with_any_value_at_any_place_is_read_or_refused(path: tuple[Any, ...], value: Any) -> None:
    plain = place = heartbeat()
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with suppress(LockstepError):
        heartbeat_body(json.dumps(plain, default=repr).encode(), native=False)


@pytest.mark.parametrize("name", ["subscriptionDataSet", "subscriptionData"])
def test_topics_of_a_heartbeat_are_counted_under_either_name(name: str) -> None:
    plain = heartbeat()
    (consumer,) = plain["consumerDataSet"]
    (subscription, _) = consumer.pop("subscriptionDataSet")
    consumer[name] = [subscription] * 1_025
    with pytest.raises(LockstepError, match="client fuzz@1 names 1025 topics in its subscriptions, 1024 allowed"):
        heartbeat_body(json.dumps(plain).encode(), native=False)


@pytest.mark.parametrize("version", [2**63, -(2**63) - 1, 10**400, "9" * 20, 1.5, True, []])
def test_version_of_a_subscription_has_64_bits(version: object) -> None:
    plain = heartbeat()
    plain["consumerDataSet"][0]["subscriptionDataSet"][0]["subVersion"] = version
    with pytest.raises(RemoteProtocolError, match="subVersion of topic fuzz: expected a number of 64 bits"):
        heartbeat_body(json.dumps(plain).encode(), native=False)


def test_refusal_does_not_repeat_a_value_that_is_no_text() -> None:
    plain = heartbeat()
    plain["consumerDataSet"][0]["messageModel"] = read_json(b"[" * 200 + b"]" * 200, what="value")
    with pytest.raises(RemoteProtocolError, match=r"messageModel: expected one of BROADCASTING, CLUSTERING, got list$"):
        heartbeat_body(json.dumps(plain).encode(), native=False)

"""The one namespace of key-value settings, and its limits."""

import pytest

from lockstep.nameserver import kv_config
from lockstep.nameserver.kv_config import NAMESPACE, VALUE_CHARACTERS_MAX, KvConfig
from lockstep.protocol.errors import LocalProtocolError, NoPermissionError, QueryNotFoundError


def test_values_are_kept_replaced_and_deleted() -> None:
    values = KvConfig()
    for value in ("broker-a:4", "broker-a:4;broker-b:8"):
        values.put(NAMESPACE, "orders", value)
    values.put(NAMESPACE, "bills", "broker-a:1")
    assert values.get(NAMESPACE, "orders") == "broker-a:4;broker-b:8"
    assert list(values.table(NAMESPACE).items()) == [("bills", "broker-a:1"), ("orders", "broker-a:4;broker-b:8")]
    values.delete(NAMESPACE, "bills")
    values.delete(NAMESPACE, "bills")
    assert values.table(NAMESPACE) == {"orders": "broker-a:4;broker-b:8"}


@pytest.mark.parametrize("namespace", ["", "OTHER", "order_topic_config"])
def test_other_namespaces_have_nothing_and_take_nothing(namespace: str) -> None:
    values = KvConfig()
    values.put(NAMESPACE, "orders", "broker-a:4")
    with pytest.raises(NoPermissionError, match=f"only {NAMESPACE} is supported"):
        values.put(namespace, "orders", "x")
    with pytest.raises(NoPermissionError, match=f"only {NAMESPACE} is supported"):
        values.delete(namespace, "orders")
    with pytest.raises(QueryNotFoundError):
        values.get(namespace, "orders")
    with pytest.raises(QueryNotFoundError):
        values.table(namespace)


def test_what_is_missing_is_not_found() -> None:
    values = KvConfig()
    with pytest.raises(QueryNotFoundError, match="orders"):
        values.get(NAMESPACE, "orders")
    with pytest.raises(QueryNotFoundError):
        values.table(NAMESPACE)


def test_keys_are_names_of_topics_and_values_are_short() -> None:
    values = KvConfig()
    with pytest.raises(LocalProtocolError, match="illegal characters"):
        values.put(NAMESPACE, "no/topic", "x")
    with pytest.raises(LocalProtocolError, match=f"at most {VALUE_CHARACTERS_MAX}"):
        values.put(NAMESPACE, "orders", "x" * (VALUE_CHARACTERS_MAX + 1))


def test_room_is_limited_and_deleted_entries_free_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "CHARACTERS_MAX", 20)
    values = KvConfig()
    values.put(NAMESPACE, "orders", "x" * 14)
    values.put(NAMESPACE, "orders", "y" * 14)
    with pytest.raises(NoPermissionError, match="20 are allowed"):
        values.put(NAMESPACE, "a", "")
    values.delete(NAMESPACE, "orders")
    values.put(NAMESPACE, "bills", "x" * 15)
    with pytest.raises(NoPermissionError):
        values.put(NAMESPACE, "bills", "x" * 16)

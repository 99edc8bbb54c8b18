"""Invalid settings are rejected with an error that names them."""

import inspect
import re
from dataclasses import Field, fields
from typing import Any, Literal

import pytest

from lockstep.client import (
    Backoff,
    Client,
    ClientConfig,
    ConsumerConfig,
    LatencyFaults,
    OrderedRetry,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
)
from lockstep.client.producer.config import check_terms
from lockstep.client.sync import Producer as BlockingProducer
from lockstep.protocol.bodies import ConsumerGroup
from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.runtime.configuration.settings import Range


def test_nameservers_are_accepted_as_a_string_or_a_list() -> None:
    assert Client("h:1").address.nameservers == ("h:1",)
    assert Client(" h:1 ; g:65535;h:1;").address.nameservers == ("h:1", "g:65535")
    assert Client(["h:1", "[::1]:2"]).address.nameservers == ("h:1", "[::1]:2")


@pytest.mark.parametrize("address", ["", ";", "host", "host:", ":1", "h:0", "h:65536", "h:" + "9" * 5_000, "h:x", "h:１"])
def test_invalid_nameserver_address_is_rejected(address: str) -> None:
    with pytest.raises(ConfigError, match="nameserver"):
        Client(address)


def test_producer_limits_must_be_positive_and_fit_a_frame() -> None:
    with pytest.raises(ConfigError, match=r"^send_timeout_ms is 0: expected an integer of at least 1"):
        ProducerConfig(send_timeout_ms=0)
    with pytest.raises(ConfigError, match=r"send_timeout_ms is 0\.5"):
        ProducerConfig(send_timeout_ms=0.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="half a frame"):
        ProducerConfig(batch_bytes_max=8 * 1024 * 1024 + 1)
    with pytest.raises(ConfigError, match="batch_count_max"):
        ProducerConfig(batch_count_max=0x1000000)
    assert ProducerConfig().keyed_send_timeout_ms == 30_000
    assert ProducerConfig().send_timeout_ms == 3_000


@pytest.mark.parametrize("timeout_ms", [0, -1, 0.5, True, "3"])
def test_send_timeout_below_one_millisecond_is_rejected(timeout_ms: object) -> None:
    with pytest.raises(LocalProtocolError, match=r"timeout_ms is .*at least 1"):
        check_terms(timeout_ms, "stored")  # type: ignore[arg-type]


def test_unknown_durability_is_rejected() -> None:
    with pytest.raises(LocalProtocolError, match=r"require is 'durably'"):
        check_terms(None, "durably")
    check_terms(1, "durable")
    check_terms(None, "stored")
    check_terms(None, "written")


CLIENTS = [
    (PushConsumer, ConsumerConfig),
    (PullConsumer, PullConsumerConfig),
    (Producer, ProducerConfig),
    (BlockingProducer, ProducerConfig),
]


@pytest.mark.parametrize(("user", "config"), [*CLIENTS, (Client, ClientConfig)])
def test_signature_lists_every_setting_with_its_default(user: type, config: type) -> None:
    shown = inspect.signature(user).parameters
    if user is not Client:
        assert list(shown)[:2] == ["group", "nameserver"]
    for setting in fields(config):
        assert shown[setting.name].default == getattr(config(), setting.name)


@pytest.mark.parametrize(("user", "config"), CLIENTS)
def test_error_for_an_unknown_setting_names_the_class_and_suggests_a_setting(user: type, config: type) -> None:
    name = fields(config)[0].name
    with pytest.raises(TypeError, match=rf"^{user.__name__}\(\) has no setting '{name}x': did you mean '{name}'\?$"):
        user("group", **{f"{name}x": 1})
    with pytest.raises(TypeError, match=f"has no setting 'qqq': known are nameserver.* {name}"):
        user("group", qqq=1)

    class Own(user):  # type: ignore[misc]
        pass

    with pytest.raises(TypeError, match=r"^Own\(\) has no setting"):
        Own("group", qqq=1)


@pytest.mark.parametrize(("user", "config"), CLIENTS)
def test_error_for_a_missing_or_surplus_argument_names_the_class(user: type, config: type) -> None:
    with pytest.raises(TypeError, match=rf"^{user.__name__}\(\): missing a required argument: 'group'$"):
        user()
    with pytest.raises(TypeError, match=rf"^{user.__name__}\(\): too many positional arguments$"):
        user("group", "127.0.0.1:9876")
    with pytest.raises(TypeError, match=rf"^{user.__name__}\(\): multiple values for argument 'group'$"):
        user("group", group="group")


@pytest.mark.parametrize(("user", "config"), CLIENTS)
def test_address_without_a_port_is_rejected_by_the_constructor(user: type, config: type) -> None:
    with pytest.raises(ConfigError, match='nameserver address "localhost": expected HOST:PORT'):
        user("group", nameserver="localhost")


@pytest.mark.parametrize("user", [PushConsumer, PullConsumer, Producer])
def test_argument_of_the_wrong_type_is_rejected_by_the_constructor(user: type) -> None:
    with pytest.raises(ConfigError, match=r"^client is '127.0.0.1:9876': expected a Client or None$"):
        user("group", client="127.0.0.1:9876")
    with pytest.raises(ConfigError, match=r"^nameserver is of type int: expected "):
        user("group", nameserver=9876)


@pytest.mark.parametrize("config", [ClientConfig, ConsumerConfig, ProducerConfig, PullConsumerConfig, Backoff, OrderedRetry, LatencyFaults])
def test_numeric_settings_accept_exactly_their_declared_range(config: type) -> None:
    for setting in fields(config):
        limits = declared_range(setting)
        if limits is None:
            assert setting.type not in (int, float)
            continue
        for number in (limits.low, limits.high):
            if number is not None:
                assert getattr(config(**{**REQUIRED_WITH.get(setting.name, {}), setting.name: number}), setting.name) == number
        for number in (limits.low - 1, None if limits.high is None else limits.high + 1):
            if number is not None:
                with pytest.raises(ConfigError, match=rf"^{setting.name} is {number}: expected .*{re.escape(str(limits))}"):
                    config(**{setting.name: number})


def declared_range(setting: "Field[Any]") -> Range | None:
    return next((each for each in getattr(setting.type, "__metadata__", ()) if isinstance(each, Range)), None)


REQUIRED_WITH: dict[str, dict[str, object]] = {"max_ms": {"first_ms": 1}}
"""Other settings that a setting at the end of its range requires."""


@pytest.mark.parametrize(("on_exhausted", "parks"), [("block", False), ("dlq", False), ("park", True)])
def test_contract_says_whether_members_park_keys(on_exhausted: Literal["block", "dlq", "park"], parks: bool) -> None:
    assert ConsumerGroup("billing", (), retry=str(OrderedRetry(3, on_exhausted=on_exhausted))).parks is parks

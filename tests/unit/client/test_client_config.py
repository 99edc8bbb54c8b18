"""Settings that can't be are refused by name."""

import inspect
from dataclasses import fields
from typing import Unpack, get_type_hints

import pytest

from lockstep.client import Producer, PushConsumer
from lockstep.client.config import nameserver_addresses
from lockstep.client.consumer.config import ConsumerConfig, ConsumerOptions
from lockstep.client.producer.config import ProducerConfig, ProducerOptions, check_terms
from lockstep.protocol.errors import ConfigError, LocalProtocolError


def test_nameservers_come_as_one_text_or_as_a_list() -> None:
    assert nameserver_addresses("h:1") == ("h:1",)
    assert nameserver_addresses(" h:1 ; g:65535;h:1;") == ("h:1", "g:65535")
    assert nameserver_addresses(["h:1", "[::1]:2"]) == ("h:1", "[::1]:2")


@pytest.mark.parametrize("address", ["", ";", "host", "host:", ":1", "h:0", "h:65536", "h:" + "9" * 5_000, "h:x", "h:１"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="nameserver"):
        nameserver_addresses(address)


def test_limits_must_be_positive_and_fit_a_frame() -> None:
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
def test_a_send_has_at_least_a_millisecond(timeout_ms: object) -> None:
    with pytest.raises(LocalProtocolError, match=r"timeout_ms is .*at least 1"):
        check_terms(timeout_ms, "stored")  # type: ignore[arg-type]


def test_a_misspelt_durability_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match=r"require is 'durably'"):
        check_terms(None, "durably")
    check_terms(1, "durable")
    check_terms(None, "stored")
    check_terms(None, "written")


SETTINGS = [(PushConsumer, ConsumerConfig, ConsumerOptions), (Producer, ProducerConfig, ProducerOptions)]


@pytest.mark.parametrize(("user", "config", "options"), SETTINGS)
def test_every_setting_is_in_the_signature_with_its_default_and_known_to_mypy(user: type, config: type, options: type) -> None:
    shown = inspect.signature(user).parameters
    assert list(shown)[:2] == ["group", "nameserver"]
    for setting in fields(config):
        assert shown[setting.name].default == getattr(config(), setting.name)
    assert get_type_hints(options) == get_type_hints(config)
    assert inspect.unwrap(user.__init__).__annotations__["options"] == Unpack[options]  # type: ignore[misc, valid-type]


@pytest.mark.parametrize(("user", "config", "options"), SETTINGS)
def test_an_unknown_setting_names_the_class_that_was_called_and_what_was_meant(user: type, config: type, options: type) -> None:
    name = next(iter(options.__annotations__))
    with pytest.raises(TypeError, match=rf"^{user.__name__}\(\) has no setting '{name}x': did you mean '{name}'\?$"):
        user("group", **{f"{name}x": 1})
    with pytest.raises(TypeError, match=f"has no setting 'qqq': known are nameserver.* {name}"):
        user("group", qqq=1)

    class Own(user):  # type: ignore[misc]
        pass

    with pytest.raises(TypeError, match=r"^Own\(\) has no setting"):
        Own("group", qqq=1)


@pytest.mark.parametrize(("user", "config", "options"), SETTINGS)
def test_an_address_without_a_port_is_refused_at_once(user: type, config: type, options: type) -> None:
    with pytest.raises(ConfigError, match='nameserver address "localhost": expected HOST:PORT'):
        user("group", nameserver="localhost")

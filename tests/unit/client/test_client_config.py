"""Settings that can't be are refused by name."""

import pytest

from lockstep.client.config import nameserver_addresses
from lockstep.client.producer.config import ProducerConfig, check_terms
from lockstep.protocol.errors import ConfigError, LocalProtocolError


def test_nameservers_come_as_one_text_or_as_a_list() -> None:
    assert nameserver_addresses("h:1") == ("h:1",)
    assert nameserver_addresses(" h:1 ; g:65535;h:1;") == ("h:1", "g:65535")
    assert nameserver_addresses(["h:1", "[::1]:2"]) == ("h:1", "[::1]:2")


@pytest.mark.parametrize("address", ["", ";", "host", "host:", ":1", "h:0", "h:65536", "h:x", "h:１"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="nameserver"):
        nameserver_addresses(address)


def test_limits_must_be_positive_and_fit_a_frame() -> None:
    with pytest.raises(ConfigError, match=r"send_timeout_ms is 0: at least 1"):
        ProducerConfig(send_timeout_ms=0)
    with pytest.raises(ConfigError, match="half a frame"):
        ProducerConfig(batch_bytes_max=8 * 1024 * 1024 + 1)
    with pytest.raises(ConfigError, match="batch_count_max"):
        ProducerConfig(batch_count_max=0x1000000)
    assert ProducerConfig().keyed_send_timeout_ms == 30_000


@pytest.mark.parametrize("timeout_ms", [0, -1, 0.5, True, "3"])
def test_a_send_has_at_least_a_millisecond(timeout_ms: object) -> None:
    with pytest.raises(LocalProtocolError, match=r"timeout_ms is .*at least 1"):
        check_terms(timeout_ms, "stored")  # type: ignore[arg-type]


def test_a_misspelt_durability_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match=r"require is 'durably'"):
        check_terms(None, "durably")
    check_terms(1, "durable")
    check_terms(None, "stored")

"""Settings that can't be are refused by name."""

import pytest

from lockstep.client.config import nameserver_addresses
from lockstep.client.producer.config import ProducerConfig
from lockstep.protocol.errors import ConfigError


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

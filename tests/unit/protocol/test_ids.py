from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.ids import (
    UniqueKeys,
    is_derived_store_host,
    offset_message_id,
    parse_offset_message_id,
    store_host_of,
    unique_key_time,
)
from lockstep.protocol.messages.record import host_address

PREFIX = bytes.fromhex("7F0000010A1B18B4AAC2")
NOVEMBER_2023_MS = 1698796800000


def test_offset_message_id_equals_rocketmqs() -> None:
    assert offset_message_id("127.0.0.1:10911", 1234567) == "7F00000100002A9F000000000012D687"


@given(st.tuples(*[st.integers(0, 255)] * 4), st.integers(0, 65535), st.integers(0, (1 << 63) - 1))
def test_offset_message_ids_round_trip(ip: tuple[int, ...], port: int, offset: int) -> None:
    host = f"{'.'.join(map(str, ip))}:{port}"
    assert parse_offset_message_id(offset_message_id(host, offset)) == (host, offset)
    assert parse_offset_message_id(offset_message_id(host, offset).lower()) == (host, offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F",
        "x" * 32,
        "7F00000100002A9F000000000012D68",
        "7F00000100002A9F000000000012D687AA",
        "7F 0000100002A9F000000000012D687",
        "7F 0000010000 2A9F000000000012D6",
    ],
)
def test_invalid_offset_message_id_is_rejected(text: str) -> None:
    with pytest.raises(LocalProtocolError, match="message id"):
        parse_offset_message_id(text)


@pytest.mark.parametrize(("address", "host"), [("10.0.0.5:10911", "10.0.0.5:10911"), ("127.0.0.1:1", "127.0.0.1:1")])
def test_ipv4_address_of_a_broker_is_its_store_host(address: str, host: str) -> None:
    assert host_address(store_host_of(address, "a" * 32)) == host
    assert not is_derived_store_host(host)


@pytest.mark.parametrize("address", ["broker-a:10911", "[::1]:10911", "localhost:1"])
def test_other_addresses_are_replaced_by_a_reserved_address_derived_from_the_store(address: str) -> None:
    host = host_address(store_host_of(address, "a" * 32))
    ip, _, port = host.partition(":")
    assert ip_address(ip) in ip_network("240.0.0.0/4")
    assert not ip.startswith("255.")
    assert int(port) <= 65_535, "RocketMQ's Java clients read no message with a higher one"
    assert is_derived_store_host(host)
    assert host == host_address(store_host_of("another-name:1", "a" * 32)), "an address that changes changes no id"
    assert parse_offset_message_id(offset_message_id(host, 7)) == (host, 7)


def test_derived_store_host_is_constant_across_versions() -> None:
    """It is stored in every record of a log, so it must not change between versions."""
    assert host_address(store_host_of("broker-a:10911", "0123456789abcdef" * 2)) == "242.177.189.67:39239"


def test_derived_store_hosts_of_10000_stores_are_distinct() -> None:
    assert len({store_host_of("broker:1", f"{number:032x}") for number in range(10_000)}) == 10_000


def test_unique_key_contains_prefix_time_of_the_month_and_counter() -> None:
    keys = UniqueKeys(PREFIX)
    first, second = keys.next(NOVEMBER_2023_MS + 0x1234), keys.next(NOVEMBER_2023_MS + 0x1235)
    assert first[:12] == PREFIX[:6].hex().upper()
    assert first[20:] == "000012340000"
    assert second[20:] == "000012350001"
    assert len(first) == 32
    assert first == first.upper()


@given(made_ms=st.integers(40 * 86_400_000, 1 << 42), age_ms=st.integers(-86_400_000, 26 * 86_400_000))
def test_unique_key_of_the_last_26_days_gives_its_time(made_ms: int, age_ms: int) -> None:
    assert unique_key_time(UniqueKeys(PREFIX).next(made_ms), made_ms + age_ms) == made_ms


@pytest.mark.parametrize("ms", [31 * 86_400_000, 0xFFFFFFFF])
def test_unique_key_with_more_milliseconds_than_its_month_has_no_time(ms: int) -> None:
    assert unique_key_time("00" * 10 + f"{ms:08X}0000", NOVEMBER_2023_MS) is None


@pytest.mark.parametrize("length", [0, 9, 11])
def test_unique_key_prefix_must_have_ten_bytes(length: int) -> None:
    with pytest.raises(LocalProtocolError, match="10 bytes"):
        UniqueKeys(bytes(length))


def test_unique_keys_do_not_repeat_if_the_clock_stops_or_goes_back() -> None:
    keys = UniqueKeys(PREFIX)
    made = [keys.next(NOVEMBER_2023_MS) for _ in range(70_000)]
    made += [keys.next(NOVEMBER_2023_MS - 5) for _ in range(70_000)]
    made += [keys.next(NOVEMBER_2023_MS + 1) for _ in range(70_000)]
    assert len(set(made)) == len(made)


@given(st.lists(st.integers(0, 1 << 43), max_size=50))
def test_unique_keys_do_not_repeat_for_any_clock(clock: list[int]) -> None:
    keys = UniqueKeys(PREFIX)
    made = [keys.next(now_ms) for now_ms in clock]
    assert len(set(made)) == len(made)
    assert all(len(key) == 32 for key in made)


def test_unique_keys_of_the_same_moment_in_two_months_differ() -> None:
    one, other = UniqueKeys(PREFIX), UniqueKeys(PREFIX)
    november = one.next(NOVEMBER_2023_MS + 5)
    december = other.next(NOVEMBER_2023_MS + 30 * 86_400_000 + 5)
    assert november[20:] == december[20:]
    assert november != december


def test_last_millisecond_of_a_month_belongs_to_it() -> None:
    keys = UniqueKeys(PREFIX)
    last = keys.next(NOVEMBER_2023_MS + 30 * 86_400_000 - 1)
    first = keys.next(NOVEMBER_2023_MS + 30 * 86_400_000)
    assert (last[20:28], first[20:28]) == (f"{30 * 86_400_000 - 1:08X}", "00000000")
    assert last[:20] != first[:20]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 2, 5, 0x7FFF, 0xFFFF, 0x10000, 0x10001])), max_size=4))
@settings(max_examples=30, deadline=None)
def test_many_unique_keys_are_the_same_as_single_ones(taken: list[tuple[int, int]]) -> None:
    singly, together = UniqueKeys(PREFIX), UniqueKeys(PREFIX)
    for later_ms, count in taken:
        now_ms = NOVEMBER_2023_MS + later_ms
        assert list(together.next_many(now_ms, count)) == [singly.next(now_ms) for _ in range(count)]


def test_range_of_unique_keys_is_a_sequence() -> None:
    keys = UniqueKeys(PREFIX).next_many(NOVEMBER_2023_MS, 5)
    listed = list(keys)
    assert len(keys) == 5
    assert [keys[place] for place in range(5)] == listed
    assert keys[-1] == listed[-1]
    assert list(keys[1:3]) == listed[1:3]
    with pytest.raises(IndexError):
        keys[5]

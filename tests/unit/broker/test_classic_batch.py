"""The body of RocketMQ's batch: it is read completely, or refused with the message that can't be read."""

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.classic.batch import BATCH_MAX, joined_properties, read_batch
from lockstep.protocol.errors import MessageIllegalError

PROPERTIES = "KEYS\x01k\x02"


def message(body: bytes, properties: str = PROPERTIES, flag: int = 0) -> bytes:
    raw = properties.encode()
    return pack(">iiiii", 22 + len(body) + len(raw), 0, 0, flag, len(body)) + body + pack(">h", len(raw)) + raw


@given(st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.text("aé\x01\x02", max_size=20)), max_size=5))
def test_batch_is_read_as_it_was_written(messages: list[tuple[int, bytes, str]]) -> None:
    assert list(read_batch(b"".join(message(body, properties, flag) for flag, body, properties in messages))) == messages


@given(st.binary(max_size=80))
def test_random_bytes_are_a_batch_or_are_refused(data: bytes) -> None:
    try:
        assert sum(22 + len(body) + len(properties.encode()) for _, body, properties in read_batch(data)) == len(data)
    except MessageIllegalError:
        pass


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (message(b"first") + b"\0" * 10, "message 2 is cut off at byte 34"),
        (message(b"body")[:-1], "message 1 at byte 0 has a body of 4 bytes and a size of 33"),
        (pack(">iiiii", 22, 0, 0, 0, -1) + pack(">h", 0), "a body of -1 bytes"),
        (pack(">iiiii", 0, 0, 0, 0, 0) + pack(">h", 0), "a size of 0"),
        (pack(">iiiii", 22, 0, 0, 0, 0) + pack(">h", -2), "properties of -2 bytes"),
        (pack(">iiiii", 23, 0, 0, 0, 0) + pack(">h", 1) + b"\xff", "properties of message 1 are not UTF-8"),
        (message(b"x", "") * (BATCH_MAX + 1), f"more than {BATCH_MAX} messages"),
    ],
)
def test_batch_that_can_not_be_read_is_refused_with_the_message(data: bytes, said: str) -> None:
    with pytest.raises(MessageIllegalError, match=said):
        list(read_batch(data))


@pytest.mark.parametrize(
    ("own", "batch", "joined"),
    [
        ("", "", ""),
        ("A\x011\x02", "", "A\x011\x02"),
        ("", "B\x012\x02", "B\x012\x02"),
        ("A\x011\x02", "B\x012\x02", "A\x011\x02B\x012\x02"),
        ("A\x011", "B\x012", "A\x011\x02B\x012"),
    ],
)
def test_properties_of_the_batch_follow_those_of_the_message(own: str, batch: str, joined: str) -> None:
    assert joined_properties(own, batch) == joined

"""Which queue: a key belongs to the layout, never to who lives."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.producer.selector import number_of_key, queue_of_key, queue_of_selector
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message
from lockstep.protocol.queue import MessageQueue
from support.fake_broker import make_layout

LAYOUT = make_layout("t", "a", "b", queues=3)


def test_a_key_goes_to_crc32_mod_n_of_the_layouts_queues() -> None:
    assert number_of_key("123456789", 6) == 0xCBF43926 % 6
    assert queue_of_key(LAYOUT, "123456789") == LAYOUT.write_queues[0xCBF43926 % 6]


def test_a_key_is_hashed_as_utf8() -> None:
    assert number_of_key("ключ", 97) == zlib.crc32("ключ".encode()) % 97


@pytest.mark.parametrize(("key", "why"), [("\udc80", "half a surrogate pair"), (1001, "is a int: expected str")])
def test_what_is_no_key_is_refused(key: object, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        number_of_key(key, 4)  # type: ignore[arg-type]


@given(st.text(min_size=1, max_size=8), st.integers(1, 500))
def test_every_key_has_exactly_one_queue(key: str, count: int) -> None:
    assert 0 <= number_of_key(key, count) < count
    assert number_of_key(key, count) == number_of_key(key, count)


def test_a_selector_gets_the_layouts_queues_and_must_answer_one_of_them() -> None:
    message = Message("t", b"x")
    seen = []

    def pick(queues: object, message: Message, arg: int) -> MessageQueue:
        seen.append((queues, message, arg))
        return LAYOUT.write_queues[arg]

    assert queue_of_selector(LAYOUT, pick, message, 4) == MessageQueue("t", "b", 1)
    assert seen == [(LAYOUT.write_queues, message, 4)]
    with pytest.raises(LocalProtocolError, match="expected one of the 6 queues"):
        queue_of_selector(LAYOUT, lambda queues, message, arg: None, message, None)  # type: ignore[arg-type, return-value]
    with pytest.raises(LocalProtocolError, match="selector"):
        queue_of_selector(LAYOUT, lambda queues, message, arg: MessageQueue("t", "c", 0), message, None)

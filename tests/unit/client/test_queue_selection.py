"""Routing: the queue of a key depends on the layout only, not on which brokers are up."""

import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.producer.machines.routing import number_of_key, queue_of_key, queue_of_selector
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import MessageQueue
from support.fake_broker import make_layout

LAYOUT = make_layout("t", "a", "b", queues=3)


def test_queue_of_a_key_is_its_crc32_modulo_the_queue_count() -> None:
    assert number_of_key("123456789", 6) == 0xCBF43926 % 6
    assert queue_of_key(LAYOUT, "123456789") == LAYOUT.write_queues[0xCBF43926 % 6]


def test_key_is_hashed_as_utf8() -> None:
    assert number_of_key("ключ", 97) == zlib.crc32("ключ".encode()) % 97


@given(st.text(min_size=1, max_size=8), st.integers(1, 500))
def test_each_key_has_exactly_one_queue(key: str, count: int) -> None:
    assert 0 <= number_of_key(key, count) < count
    assert number_of_key(key, count) == number_of_key(key, count)


def test_selector_gets_the_queues_of_the_layout_and_must_return_one_of_them() -> None:
    message = Message("t", b"x")
    seen = []

    def pick(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        seen.append((queues, message))
        return LAYOUT.write_queues[4]

    assert queue_of_selector(LAYOUT, pick, message) == MessageQueue("t", "b", 1)
    assert seen == [(LAYOUT.write_queues, message)]
    with pytest.raises(LocalProtocolError, match="expected one of the 6 queues"):
        queue_of_selector(LAYOUT, lambda queues, message: None, message)  # type: ignore[arg-type, return-value]
    with pytest.raises(LocalProtocolError, match="selector"):
        queue_of_selector(LAYOUT, lambda queues, message: MessageQueue("t", "c", 0), message)

"""The offset file of a broadcasting member: encoding, decoding, and rejection of invalid files."""

import json
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client.consumer.grants.local_offsets import LocalOffsets, SavedProgress
from lockstep.protocol.topics.queue import MessageQueue

QUEUES = st.builds(MessageQueue, st.sampled_from(["orders", "%DLQ%g"]), st.sampled_from(["a", "hz@b.c-1"]), st.integers(0, 99))
PLACES = st.builds(SavedProgress, st.integers(0, 1 << 62), st.integers(0, 1 << 30))


def offsets_of(places: dict[MessageQueue, SavedProgress], starts: int = 1) -> LocalOffsets:
    made = LocalOffsets("prices")
    made.starts = starts
    for queue, place in places.items():
        made.since(queue.topic, 1)
        made.set(queue, place)
    return made


@given(st.dictionaries(QUEUES, PLACES, max_size=20), st.integers(0, 1 << 30))
def test_offset_file_round_trips(places: dict[MessageQueue, SavedProgress], starts: int) -> None:
    text = offsets_of(places, starts).encode()
    again = LocalOffsets.decode(text, "prices")
    assert again.encode() == text
    assert again.starts == starts
    assert all(again.place(queue) == place for queue, place in places.items())


SMALL = offsets_of({MessageQueue("orders", "a", 0): SavedProgress(1500, 2)}, 3)


def test_offset_file_format_is_the_documented_one() -> None:
    assert re.fullmatch(
        rb'\{"format":1,"group":"prices","starts":3,"topics":\{"orders":\{"since":1,"queues":\{"a:0":\[1500,2\]\}\}\},"crc32":\d+\}\n',
        SMALL.encode(),
    )


@pytest.mark.parametrize("at", range(len(SMALL.encode())))
def test_changed_byte_in_the_offset_file_is_detected(at: int) -> None:
    text = bytearray(SMALL.encode())
    text[at] ^= 1
    with pytest.raises(ValueError, match=r"not JSON|checksum"):
        LocalOffsets.decode(bytes(text), "prices")


@pytest.mark.parametrize("length", range(len(SMALL.encode())))
def test_truncated_offset_file_is_detected(length: int) -> None:
    with pytest.raises(ValueError, match=r"not JSON|checksum"):
        LocalOffsets.decode(SMALL.encode()[:length], "prices")


@pytest.mark.parametrize("text", [b"", b"[]", b"7", b"{}", b"\xff", b"[" * 100_000, b'{"crc32":"x"}'])
def test_content_that_is_not_an_offset_file_is_rejected(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"not JSON|checksum"):
        LocalOffsets.decode(text, "prices")


@pytest.mark.parametrize(("change", "words"), [({"format": 2}, "its format is 2"), ({"group": "others"}, "it belongs to group 'others'")])
def test_offset_file_of_another_format_or_group_is_rejected(change: dict[str, object], words: str) -> None:
    plain = {**json.loads(SMALL.encode()), **change}
    del plain["crc32"]
    body = json.dumps(plain, separators=(",", ":"))
    signed = json.dumps({**plain, "crc32": zlib.crc32(body.encode())}, separators=(",", ":")) + "\n"
    with pytest.raises(ValueError, match=words):
        LocalOffsets.decode(signed.encode(), "prices")


def test_unknown_queue_has_no_saved_progress() -> None:
    assert SMALL.place(MessageQueue("orders", "a", 0)) == SavedProgress(1500, 2)
    assert SMALL.place(MessageQueue("orders", "a", 1)) is None


def test_since_keeps_the_first_layout_version_of_a_topic() -> None:
    made = LocalOffsets("prices")
    assert [made.since("orders", 4), made.since("orders", 7), made.since("other", 7)] == [4, 4, 7]

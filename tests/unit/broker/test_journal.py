import msgpack
import pytest

from lockstep.broker.journal import Journal, decode_changes
from lockstep.protocol.errors import StoreError


def test_all_changes_of_a_turn_are_one_record_in_order() -> None:
    journal = Journal()
    journal.append(("lock.freed", "g", "t", 1))
    journal.append(("broker.term", 5))
    body = journal.encode()
    assert body is not None
    assert decode_changes(body) == [("lock.freed", "g", "t", 1), ("broker.term", 5)]
    assert journal.encode() is None


def test_the_store_hears_of_the_first_change_of_each_turn_only() -> None:
    heard: list[int] = []
    journal = Journal(lambda: heard.append(len(journal)))
    for _ in range(2):
        journal.append(("a",))
        journal.append(("b",))
        journal.encode()
    assert heard == [1, 1]


def test_the_bytes_of_a_record() -> None:
    journal = Journal()
    journal.append(("broker.term", 1))
    assert journal.encode() == bytes.fromhex("92 01 91 92 ab") + b"broker.term" + b"\x01"


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x01", msgpack.packb([2, []]), msgpack.packb([1]), msgpack.packb("x"), b"\x92\x01\x91"])
def test_what_is_no_state_record_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(StoreError, match="state record"):
        decode_changes(body)

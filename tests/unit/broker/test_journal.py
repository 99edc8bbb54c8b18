import msgpack
import pytest

from lockstep.broker.journal import Journal, decode_changes
from lockstep.protocol.errors import StoreError


def test_all_changes_of_a_turn_are_one_record_in_order() -> None:
    journal = Journal()
    journal.append(("lock.freed", "g", "t", 1))
    journal.append(("broker.term", 5))
    (body,) = journal.encode(100)
    assert decode_changes(body) == [("lock.freed", "g", "t", 1), ("broker.term", 5)]
    assert journal.encode(100) == []


def test_what_does_not_fit_one_record_becomes_several_in_order() -> None:
    journal = Journal()
    changes = [("lock.freed", "g", "t", queue_id) for queue_id in range(100)]
    for change in changes:
        journal.append(change)
    bodies = journal.encode(200)
    assert max(map(len, bodies)) <= 200
    assert [change for body in bodies for change in decode_changes(body)] == changes
    journal.append(("x" * 300,))
    assert len(journal.encode(200)) == 1, "a change is never cut"


def test_the_store_hears_of_the_first_change_of_each_turn_only() -> None:
    heard: list[int] = []
    journal = Journal(lambda: heard.append(len(journal)))
    for _ in range(2):
        journal.append(("a",))
        journal.append(("b",))
        journal.encode(100)
    assert heard == [1, 1]


def test_the_bytes_of_a_record() -> None:
    journal = Journal()
    journal.append(("broker.term", 1))
    assert journal.encode(100) == [bytes.fromhex("92 01 91 92 ab") + b"broker.term" + b"\x01"]


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x01", msgpack.packb([2, []]), msgpack.packb([1]), msgpack.packb("x"), b"\x92\x01\x91"])
def test_what_is_no_state_record_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(StoreError, match="state record"):
        decode_changes(body)

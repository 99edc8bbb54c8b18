import msgpack
import pytest

from lockstep.broker.groups.tables.progress_table import Progress, ProgressTable
from lockstep.broker.journal import Change, Journal, decode_changes
from lockstep.protocol.errors import LocalProtocolError, StoreError


def ignore(_: Change) -> None:
    """A table that takes anything."""


def test_changes_of_a_turn_are_one_record_in_order() -> None:
    journal = Journal()
    journal.record(("lock.freed", "g", "t", 1), ignore)
    journal.record(("broker.term", 5), ignore)
    (body,) = journal.encode(100)
    assert decode_changes(body) == [("lock.freed", "g", "t", 1), ("broker.term", 5)]
    assert journal.encode(100) == []


def test_changes_beyond_one_record_become_several_in_order() -> None:
    journal = Journal()
    changes = [("lock.freed", "g", "t", queue_id) for queue_id in range(100)]
    for change in changes:
        journal.record(change, ignore)
    bodies = journal.encode(200)
    assert max(map(len, bodies)) <= 200
    assert [change for body in bodies for change in decode_changes(body)] == changes
    journal.record(("x" * 300,), ignore)
    assert len(journal.encode(200)) == 1, "a change is never cut"


@pytest.mark.parametrize("count", [1, 15, 16, 17, 65_535, 65_536, 65_537])
def test_record_is_the_msgpack_of_all_its_changes(count: int) -> None:
    journal = Journal()
    changes = [("lock.freed", "g", "t", queue_id) for queue_id in range(count)]
    for change in changes:
        journal.record(change, ignore)
    assert journal.encode(1 << 30) == [msgpack.packb([1, changes])]


def test_store_is_notified_of_the_first_change_of_each_turn_only() -> None:
    heard: list[int] = []
    journal = Journal(lambda: heard.append(len(journal)))
    for _ in range(2):
        journal.record(("a",), ignore)
        journal.record(("b",), ignore)
        journal.encode(100)
    assert heard == [1, 1]


def test_record_bytes_are_stable() -> None:
    journal = Journal()
    journal.record(("broker.term", 1), ignore)
    assert journal.encode(100) == [bytes.fromhex("92 01 91 92 ab") + b"broker.term" + b"\x01"]


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, "\ud800", object()])
def test_change_that_cannot_be_encoded_is_rejected_before_it_is_applied(value: object) -> None:
    applied: list[Change] = []
    unsure: list[BaseException] = []
    journal = Journal(on_apply_failed=unsure.append)
    journal.record(("a", 1), applied.append)
    with pytest.raises(LocalProtocolError, match=r"state change 'lock.held' can't be written to the log"):
        journal.record(("lock.held", value), applied.append)
    journal.record(("b", 2), applied.append)
    assert applied == [("a", 1), ("b", 2)]
    assert [change for body in journal.encode(100) for change in decode_changes(body)] == [("a", 1), ("b", 2)]
    assert unsure == []


def test_table_is_unchanged_after_a_change_that_cannot_be_encoded() -> None:
    journal = Journal()
    table = ProgressTable(journal)
    before = table.snapshot()
    with pytest.raises(LocalProtocolError, match="can't be written to the log"):
        table.set_progress(("g", "t", 0), Progress(1, 1 << 64, 0))
    assert table.snapshot() == before
    assert journal.encode(100) == []


def test_change_that_cannot_be_applied_is_not_written_and_reported_as_fatal() -> None:
    unsure: list[BaseException] = []
    journal = Journal(on_apply_failed=unsure.append)
    with pytest.raises(KeyError):
        journal.record(("a",), lambda _: {}["missing"])
    assert [type(error) for error in unsure] == [KeyError]
    assert journal.encode(100) == []


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x01", msgpack.packb([2, []]), msgpack.packb([1]), msgpack.packb("x"), b"\x92\x01\x91"])
def test_invalid_state_record_is_rejected(body: bytes) -> None:
    with pytest.raises(StoreError, match="state record"):
        decode_changes(body)

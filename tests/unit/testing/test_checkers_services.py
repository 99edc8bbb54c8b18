"""A server exits only because of a disk fault."""

import pytest

from support.histories import B, HistoryBuilder
from sweep.checkers.services import check
from sweep.events.universe import Fault, ServerFailed


def failed(code: int, t: float = 5, *, builder: HistoryBuilder | None = None) -> HistoryBuilder:
    return (builder or HistoryBuilder()).add(ServerFailed, t, B, exit_code=code, error="KeyError('queue')")


@pytest.mark.parametrize("code", [1, 3, 4, 5, 6])
def test_server_exit_without_a_disk_fault_is_a_violation(code: int) -> None:
    (found,) = check(failed(code).history())
    assert "B#1" in found.text
    assert f"exit code {code}: KeyError('queue')" in found.text


@pytest.mark.parametrize(("kind", "code", "count"), [
    ("disk eio", 3, 0),
    ("disk full", 3, 0),
    ("disk slow", 3, 1),
    ("disk rot", 3, 1),  # the older snapshot has to do
    ("log rot", 3, 1),
    ("log rot", 5, 0),
    ("disk eio", 5, 1),
    ("disk eio", 1, 1),
])  # fmt: skip
def test_disk_fault_of_the_right_kind_justifies_an_exit(kind: str, code: int, count: int) -> None:
    for machine, count_there in (("B", count), ("C", 1)):
        builder = HistoryBuilder().add(Fault, 2, (machine, 0), kind=kind, target=machine, facts="")
        assert len(check(failed(code, builder=builder).history())) == count_there


def test_repaired_disk_does_not_justify_an_exit() -> None:
    builder = HistoryBuilder().add(Fault, 2, ("B", 0), kind="log rot", target="B").add(Fault, 4, ("B", 0), kind="log repaired", target="B")
    assert len(check(failed(5, builder=builder).history())) == 1

"""A server exits only because of a disk fault."""

from support.histories import B, HistoryBuilder, assert_faults
from sweep.checkers.services import LAW, check
from sweep.events.universe import Fault, ServerFailed

COPIED = "a copy of a store is not served"


def failed(code: int) -> HistoryBuilder:
    return HistoryBuilder().add(ServerFailed, 5, B, exit_code=code, error="KeyError('queue')")


def test_server_exit_without_a_disk_fault_is_a_violation() -> None:
    for code in (1, 3, 4, 5, 6):
        (found,) = check(failed(code).history())
        assert "B#1" in found.text
        assert f"exit code {code}: KeyError('queue')" in found.text


def test_disk_fault_of_the_right_kind_justifies_an_exit() -> None:
    """A rotten snapshot does not: the older one has to do."""
    kinds = {("disk eio", 3): "", ("disk full", 3): "", ("disk slow", 3): LAW, ("disk rot", 3): LAW}
    kinds |= {("log rot", 3): LAW, ("log rot", 5): "", ("disk eio", 5): LAW, ("disk eio", 1): LAW}

    def after(kind: str, code: int, machine: str = "B") -> HistoryBuilder:
        return failed(code).add(Fault, 2, (machine, 0), kind=kind, target=machine, facts="")

    assert_faults(check, {
        **{f"{kind}, {code}": (after(kind, code), laws) for (kind, code), laws in kinds.items()},
        **{f"{kind}, {code}, of another machine": (after(kind, code, "C"), LAW) for kind, code in kinds},
        "a copy of a store": (after("copied", 4), ""),
        "a copy that is served": (HistoryBuilder().add(Fault, 2, ("B", 0), kind="copied", target="B").opened(3), COPIED),
        "repaired": (after("log rot", 5).add(Fault, 4, ("B", 0), kind="log repaired", target="B"), LAW),
    })  # fmt: skip

"""Whether a master may open its ports: its replicas know if it was replaced, or is not the best copy."""

import pytest

from lockstep.broker.replication.start_rules import CopyStatus, StartVerdict, judge_start

ADDRESSES = {"b": "host-b:1", "c": "host-c:1"}


def status(term: int = 5, end: int = 100, *, forgot: bool = False, replica: bool = False) -> CopyStatus:
    return CopyStatus(term, end, forgot, replica)


@pytest.mark.parametrize(("name", "own", "members", "answers", "refused", "waits"), [
    ("no replicas", status(), "", {}, "", ""),
    ("all have the same", status(), "bc", {"b": status(), "c": status()}, "", ""),
    ("a member has less", status(), "b", {"b": status(end=99)}, "", ""),
    ("a member does not answer", status(), "bc", {"b": status(), "c": None}, "", "c"),
    ("a known one that is no member does not answer", status(), "b", {"b": status(), "c": None}, "", ""),
    ("a member was promoted", status(), "b", {"b": status(6)}, "at host-b:1 (term 6, here 5): start this one with --replica-of", ""),
    ("a known one was promoted", status(), "b", {"b": None, "c": status(6)}, "was promoted at host-c:1", ""),
    ("one follows the promoted one", status(), "b", {"b": status(6, replica=True), "c": status(6)}, "was promoted at host-c:1", ""),
    ("this store is a backup", status(), "b", {"b": status(6, replica=True)}, "older than the replica of broker broker-a at host-b:1", ""),
    ("a member has more", status(), "b", {"b": status(end=101)}, "at host-b:1 has more (its log ends at 101, this one at 100)", ""),
    ("one that is no member has more", status(), "b", {"b": status(), "c": status(end=101)}, "", ""),
    ("a member with more has forgotten some", status(), "b", {"b": status(end=101, forgot=True)}, "", ""),
    ("this one has forgotten some", status(forgot=True), "b", {"b": status()}, "may have lost acknowledged messages with its machine", ""),
    ("both have", status(forgot=True), "b", {"b": status(forgot=True)}, "", ""),
    ("both have, the member has more", status(forgot=True), "b", {"b": status(end=101, forgot=True)}, "promote host-b:1", ""),
    ("this one has, the member has less", status(forgot=True), "b", {"b": status(end=99)}, "", ""),
])  # fmt: skip
def test_start(name: str, own: CopyStatus, members: str, answers: dict[str, CopyStatus | None], refused: str, waits: str) -> None:
    verdict = judge_start("broker-a", own, {member: ADDRESSES[member] for member in members}, answers, ADDRESSES)
    assert refused in verdict.refused, name
    assert bool(verdict.refused) is bool(refused), name
    assert verdict.waiting_for == (() if refused else tuple(ADDRESSES[member] for member in waits)), name


def test_allowed_start() -> None:
    assert judge_start("broker-a", status(), {}, {}, {}) == StartVerdict()

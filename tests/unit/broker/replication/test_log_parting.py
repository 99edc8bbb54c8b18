"""Where two logs part: a replica keeps what its master has too, and cuts nothing that was confirmed unless its loss was announced."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.broker.replication.log_parting import Parting, Term, parting
from lockstep.broker.replication.log_parting import PartingAction as A


@dataclass
class Log:
    """A log with one byte for each (term, writer, place)."""

    bytes: list[tuple[int, int, int]] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)

    def copy(self) -> "Log":
        return Log(list(self.bytes), list(self.terms))

    def cut(self, keep: int) -> None:
        del self.bytes[keep:]
        self.terms = [term for term in self.terms if term.begin < keep]

    def write(self, term: int, writer: int, count: int) -> None:
        self.terms.append(Term(term, len(self.bytes), False, writer))
        self.bytes += [(term, writer, place) for place in range(len(self.bytes), len(self.bytes) + count)]


@given(st.integers(0, 2**32))
def test_replica_keeps_just_what_both_logs_have(seed: int) -> None:
    """Logs of masters that were promoted at some replica's log, some in the same second: their terms have the same number."""
    random, logs = Random(seed), [Log()]
    logs[0].write(1, 0, random.randrange(1, 6))
    for writer in range(1, random.randrange(1, 8)):
        log = random.choice(logs).copy()
        log.cut(random.randrange(1, len(log.bytes) + 1))
        log.write(log.terms[-1].number + 1, writer, random.randrange(1, 6))
        logs.append(log)
    own, master = random.choice(logs).copy(), random.choice(logs)
    own.cut(random.randrange(1, len(own.bytes) + 1))
    equal = next(
        (at for at, (a, b) in enumerate(zip(own.bytes, master.bytes, strict=False)) if a != b), min(len(own.bytes), len(master.bytes))
    )
    found = parting(own.terms, len(own.bytes), 0, master.terms, 0, len(master.bytes))
    assert found == Parting(A.FOLLOW if equal == len(own.bytes) else A.TRUNCATE, equal)


OWN = (Term(1, 0, False, 1), Term(3, 100, False, 1))
LOSSES = (Term(1, 0, True, 1), Term(3, 100, True, 1))


@pytest.mark.parametrize(("name", "confirmed", "master", "start", "end", "expected"), [
    ("the same log", 150, OWN, 0, 200, Parting(A.FOLLOW, 150)),
    ("a master that was promoted at the replica's end", 150, (*OWN, Term(4, 150, False, 1)), 0, 300, Parting(A.FOLLOW, 150)),
    ("a master that was promoted before it", 120, (*OWN, Term(4, 120, False, 1)), 0, 300, Parting(A.TRUNCATE, 120)),
    ("below what was confirmed", 121, (*OWN, Term(4, 120, False, 1)), 0, 300, Parting(A.REFUSE, 120)),
    ("below it, announced", 121, (*OWN, Term(4, 120, True, 1)), 0, 300, Parting(A.TRUNCATE, 120)),
    ("below it, announced by a later term", 121, (*OWN, Term(4, 120, False, 1), Term(5, 130, True, 1)), 0, 300, Parting(A.TRUNCATE, 120)),
    ("announced before the common term only", 121, (*LOSSES, Term(4, 120, False, 1)), 0, 300, Parting(A.REFUSE, 120)),
    ("a master with a shorter log of the same term", 0, OWN, 0, 120, Parting(A.TRUNCATE, 120)),
    ("the master has removed what would be kept", 0, (*OWN, Term(4, 120, False, 1)), 121, 300, Parting(A.INSTALL)),
    ("the same number begun elsewhere", 0, (Term(1, 0, False, 1), Term(3, 90, False, 1)), 0, 300, Parting(A.TRUNCATE, 90)),
    ("the same number of another writer", 120, (OWN[0], Term(3, 100, False, 2)), 0, 300, Parting(A.REFUSE, 100)),
    ("the same number of another writer, announced", 120, (OWN[0], Term(3, 100, True, 2)), 0, 300, Parting(A.TRUNCATE, 100)),
    ("no common term", 0, (Term(7, 0, False, 1),), 0, 300, Parting(A.INSTALL)),
    ("a master without terms", 0, (), 0, 300, Parting(A.INSTALL)),
])  # fmt: skip
def test_parting(name: str, confirmed: int, master: tuple[Term, ...], start: int, end: int, expected: Parting) -> None:
    assert parting(OWN, 150, confirmed, master, start, end) == expected, name


def test_empty_replica_is_installed() -> None:
    assert parting((), 0, 0, OWN, 0, 150) == Parting(A.INSTALL)

"""The table of outcomes of local transactions, in SQLite: what it answers, over interleavings, crashes and late marks."""

import inspect
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.client import ConfigError, LocalProtocolError, StateError, TransactionDecidedError
from lockstep.client.marks import Marks
from support.databases import SQLITE, Store, do
from support.effort import examples

DAY_MS = 24 * 3_600_000


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as made:
        for statement in Marks().schema:
            made.execute(statement)
        yield made


def test_marked_transaction_is_committed_and_another_is_rolled_back_from_then_on(db: sqlite3.Connection) -> None:
    marks = Marks()
    with db:
        marks.set(db, "paid")
    with db:
        assert marks.decide(db, "paid") is True
        assert marks.decide(db, "lost") is False
    for _ in range(2):
        with pytest.raises(TransactionDecidedError, match="transaction lost was decided already: the broker has asked"), db:
            marks.set(db, "lost")
        assert marks.decide(db, "lost") is False
    with pytest.raises(TransactionDecidedError, match="transaction paid was decided already: it was marked before"), db:
        marks.set(db, "paid")
    assert marks.decide(db, "paid") is True


def test_any_text_is_an_id_and_other_things_are_refused(db: sqlite3.Connection) -> None:
    marks = Marks()
    ids = ["=a", "#a", "a" * 20_000, "a" * 20_001, "a\0", "a"]
    for each in ids:
        marks.set(db, each)
    assert [marks.decide(db, each) for each in [*ids, "b\0"]] == [True] * len(ids) + [False]
    for wrong in ("", None, 5, b"a"):
        with pytest.raises(LocalProtocolError, match="expected a text that is not empty"):
            marks.set(db, wrong)  # type: ignore[arg-type]
        with pytest.raises(LocalProtocolError):
            marks.decide(db, wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected letters, digits and _"):
        Marks("a b")
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as alone, pytest.raises(StateError, match="committed alone"):
        marks.set(alone, "a")


@pytest.mark.parametrize(("age_ms", "left"), [(2 * DAY_MS - 60_000, 1), (2 * DAY_MS + 60_000, 0)])
def test_purge_removes_rows_that_are_older_than_it_is_told(db: sqlite3.Connection, age_ms: int, left: int) -> None:
    marks = Marks()
    marks.set(db, "paid")
    db.execute("UPDATE lockstep_marks SET marked_ms = marked_ms - ?", (age_ms,))
    assert marks.purge(db) == 0, "a week by default"
    assert marks.purge(db, timedelta(days=2)) == 1 - left
    assert db.execute("SELECT COUNT(*) FROM lockstep_marks").fetchone() == (left,)
    with pytest.raises(ConfigError, match="expected at least 2 days"):
        marks.purge(db, timedelta(days=2) - timedelta(microseconds=1))


def test_row_that_is_removed_while_it_is_read_gives_no_answer(db: sqlite3.Connection) -> None:
    marks = Marks()
    steps = marks._decide("paid", "sqlite")
    assert "INSERT" in next(steps).sql
    assert steps.send(0).reads
    with pytest.raises(StateError, match="ask again"):
        steps.send([])


# ---------------------------------------------------------------------------------------------------------------------- law


class Local:
    """A local transaction, and what became of it."""

    def __init__(self, place: str) -> None:
        self.db = sqlite3.connect(place, timeout=0)
        self.state = "running"

    def set(self, marks: Marks, name: str) -> None:
        try:
            marks.set(self.db, name)
        except (TransactionDecidedError, sqlite3.OperationalError):
            self.end(commit=False)
        else:
            self.state = "marked"

    def end(self, *, commit: bool) -> None:
        if commit:
            self.db.commit()
        else:
            self.db.rollback()
        self.state = "committed" if commit and self.state == "marked" else "rolled back"


STEPS = st.lists(st.tuples(st.sampled_from(["set", "commit", "rollback", "decide", "decide", "lost"]), st.integers(0, 2)), max_size=25)


@examples(300)
@given(STEPS)
def test_answer_never_contradicts_the_local_transaction(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    """Law X2: no True after a rollback, no False after a commit, and no two answers, whatever comes between. "lost": the process that
    decides is killed before its commit."""
    place = str(tmp_path_factory.mktemp("marks") / "shop.db")
    marks = Marks()
    with closing(sqlite3.connect(place)) as db, db:
        db.execute(marks.schema[0])
    locals_ = [Local(place) for _ in range(3)]
    answers: dict[int, bool] = {}
    with closing(sqlite3.connect(place, timeout=0)) as asking:
        for what, number in steps:
            local = locals_[number]
            if what == "set" and local.state == "running":
                local.set(marks, str(number))
            elif what in ("commit", "rollback") and local.state in ("running", "marked"):
                local.end(commit=what == "commit")
            elif what in ("decide", "lost"):
                answer = ask(marks, asking, number, commit=what == "decide")
                if answer is not None:
                    assert answers.setdefault(number, answer) is answer
                    assert local.state == "committed" if answer else local.state != "committed"
        for local in locals_:
            if local.state in ("running", "marked"):
                local.end(commit=True)
        for number, local in enumerate(locals_):
            assert local.state != "committed" or answers.get(number) is not False, "committed after it was called rolled back"
            assert ask(marks, asking, number, commit=True) is (local.state == "committed")
            local.db.close()


def ask(marks: Marks, db: sqlite3.Connection, number: int, *, commit: bool) -> bool | None:
    """Return the answer, or None if it is not known, or was not committed."""
    try:
        answer: bool = marks.decide(db, str(number))
    except sqlite3.OperationalError:  # the database is locked
        db.rollback()
        return None
    if commit:
        db.commit()
        return answer
    db.rollback()
    return None


# ---------------------------------------------------------------------------------------------------------------- libraries


async def done(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize("library", SQLITE)
async def test_marks_work_by_each_library_of_sqlite(library: str, tmp_path: Path) -> None:
    await check_marks(Store(library, str(tmp_path / "shop.db")))


async def check_marks(store: Store) -> None:
    """Check every statement by this library, in this database."""
    marks = Marks()
    async with store.transaction() as db:
        for statement in marks.schema:
            await do(db, statement)
    async with store.transaction() as db:
        assert await done(marks.set(db, "paid")) is None

    async def lose() -> None:
        async with store.transaction() as db:
            await done(marks.set(db, "lost"))
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await lose()
    async with store.transaction() as db:
        assert await done(marks.decide(db, "paid")) is True
        assert await done(marks.decide(db, "lost")) is False
    with pytest.raises(TransactionDecidedError, match="lost was decided already: the broker has asked"):
        async with store.transaction() as db:
            await done(marks.set(db, "lost"))
    async with store.transaction() as db:
        await do(db, "UPDATE lockstep_marks SET marked_ms = 0 WHERE outcome = :outcome", outcome="rollback")
    async with store.transaction() as db:
        assert await done(marks.purge(db)) == 1
    assert [row[:2] for row in store.rows("SELECT transaction_id, outcome FROM lockstep_marks")] == [("=paid", "commit")]

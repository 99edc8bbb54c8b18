"""What the driver does for a write, without a JVM."""

import logging

import pytest

pytest.importorskip("pyspark", reason="needs the extra [spark]")

from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from lockstep.protocol.errors import StateError
from lockstep.spark.frames import PLACED_OVER
from lockstep.spark.options import SinkOptions
from lockstep.spark.sending import Sent
from lockstep.spark.writer import LockstepWriter, TaskCommit
from support.fake_broker import make_layout

OPTIONS = {"nameserver": "127.0.0.1:1"}
COLUMNS = (StructField("value", BinaryType()), StructField("key", BinaryType()))


def placed(queues: int) -> StructType:
    return StructType([*COLUMNS, StructField("partition", IntegerType(), metadata={PLACED_OVER: queues})])


def plan(schema: StructType, monkeypatch: pytest.MonkeyPatch) -> LockstepWriter:
    """Return the writer of a job for topic t, which has 3 queues."""
    monkeypatch.setattr("lockstep.spark.writer.run_once", lambda *_: make_layout("t", "a", queues=3))
    return LockstepWriter(SinkOptions.parse({**OPTIONS, "topic": "t"}), schema, overwrite=False)


def test_rows_that_were_placed_over_another_number_of_queues_are_refused_before_any_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StateError) as refused:
        plan(placed(2), monkeypatch)
    assert "placed the rows over 2 queues, and topic t has 3 writable queues now" in str(refused.value)
    assert "call queue_count() again" in str(refused.value)


def test_rows_that_were_placed_over_the_present_queues_or_without_keyed_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan(placed(3), monkeypatch)
    plan(StructType(list(COLUMNS)), monkeypatch)
    plan(StructType([*COLUMNS, StructField("partition", IntegerType())]), monkeypatch)


@pytest.mark.parametrize("changed", [[], ["orders", "bills"]])
def test_commit_warns_of_topics_whose_queues_were_changed(changed: list[str], caplog: pytest.LogCaptureFixture) -> None:
    schema = StructType([*COLUMNS, StructField("topic", StringType())])
    writer = LockstepWriter(SinkOptions.parse(OPTIONS), schema, overwrite=False)
    with caplog.at_level(logging.WARNING, "lockstep.spark"):
        writer.commit([TaskCommit(Sent(rows=1, changed_topics=changed[:1])), TaskCommit(Sent(changed_topics=changed))])
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == bool(changed)
    if changed:
        assert warned[0].startswith("write.queues_changed topics=")
        assert "bills" in warned[0]
        assert "stop writes by key before the queues of their topic are changed" in warned[0]

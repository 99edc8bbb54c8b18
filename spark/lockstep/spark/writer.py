"""The sink. A frame is stored once, however often its task is retried (docs/wire.md: idempotent sends).

scope = producer id, task, topic, queue    batch:  an id per job, epoch 0
                                           stream: the query's id, epoch = batch number
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lockstep.client import GivenId
from lockstep.protocol.errors import ConfigError, StateError
from lockstep.protocol.topics.queue import TopicLayout
from lockstep.runtime.event_loop import new_event_loop
from lockstep.runtime.host import Host
from lockstep.runtime.logs.log import get_logger
from lockstep.spark.cluster import Cluster, run_once
from lockstep.spark.frames import PLACED_OVER, check_columns, check_placement
from lockstep.spark.options import SinkOptions
from lockstep.spark.sending import Sent, Task, send_task, total

log = get_logger("lockstep.spark")

QUEUES_CHANGED = (
    "the rows were placed by key over the queues that the topic had when this write began; later rows of the same keys go to other queues, "
    "and order between the two is not kept: stop writes by key before the queues of their topic are changed"
)


class TaskCommit(WriterCommitMessage):
    """The totals of one task."""

    def __init__(self, sent: Sent) -> None:
        self.sent = sent


class _Writer:
    """The shared state of a job's tasks, made when Spark plans the job and pickled to each task."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('lockstep can only append: use mode("append"); to empty a topic, delete and create it again')
        types = {field.name: field.dataType.simpleString() for field in schema.fields}
        check_columns(types, topic_given=options.topic is not None)
        if options.not_before and "bornTimestamp" not in types:
            raise ConfigError('notBefore sends rows at the times in their column "bornTimestamp": add it, or remove notBefore')
        self._options = options
        self._scheduled = "bornTimestamp" in types
        self._keyed = "key" in types
        self._layout: TopicLayout | None = None
        topic = options.topic
        if topic is not None:

            async def layout(cluster: Cluster) -> TopicLayout:
                return await cluster.layout(topic)

            self._layout = run_once(options.nameserver, options.request_timeout_ms, layout)
            check_placement(_placed_over(schema), self._layout)

    def _send(self, iterator: Iterator[Any], given_id: GivenId | None, born_ms: int) -> TaskCommit:
        context = TaskContext.get()
        assert context is not None
        task = Task(
            self._options,
            self._layout,
            born_ms,
            number=context.partitionId(),
            attempt=context.attemptNumber(),
            given_id=given_id,
            scheduled=self._scheduled,
            keyed=self._keyed,
        )
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return TaskCommit(runner.run(send_task(task, iterator, Host.real())))

    def _report_commit(self, messages: list[WriterCommitMessage | None], **facts: Any) -> None:
        sent = [message.sent for message in messages if isinstance(message, TaskCommit)]
        if len(sent) != len(messages):
            raise StateError(f"{len(messages) - len(sent)} of {len(messages)} tasks did not report what they sent")
        report = {**facts, **total(sent)}
        log.info("write.committed", **{name: report[name] for name in ("rows", "bytes", "repeatedFrames", "nextOffsets")}, **facts)
        if changed := sorted({topic for one in sent for topic in one.changed_topics}):
            log.warning("write.queues_changed", topics=changed, consequence=QUEUES_CHANGED, **facts)
        if self._options.report_file is not None:
            Path(self._options.report_file).write_text(json.dumps(report))  # world: the driver's disk

    def _report_abort(self, messages: list[WriterCommitMessage | None], **facts: Any) -> None:
        ended = [message.sent.rows for message in messages if isinstance(message, TaskCommit)]
        log.error(
            "write.aborted",
            tasks=len(messages),
            ended=len(ended),
            rows_of_ended=sum(ended),
            consequence="acknowledged rows stay in the topic and can be read",
            **facts,
        )


def _placed_over(schema: StructType) -> int | None:
    """Return over how many queues `keyed` has placed the rows; None if it has not."""
    found = [field.metadata.get(PLACED_OVER) for field in schema.fields if field.name == "partition"]
    return found[0] if found else None


class LockstepWriter(_Writer, DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._producer_id = options.producer_id or Host.real().random.token(16).hex()
        # A job that is started again under its id must send the same bytes.
        self._born_ms = 0 if options.producer_id else Host.real().clock.wall_ms()

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        sequenced = self._options.idempotence == "sequence"
        given_id = GivenId(self._producer_id, context.partitionId()) if sequenced else None
        return self._send(iterator, given_id, self._born_ms)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._report_commit(messages, producerId=self._producer_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._report_abort(messages)


class LockstepStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write. Spark makes a new one for each micro-batch."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")
        given_id = None
        if self._options.idempotence == "sequence":
            if query is None or batch is None:
                raise StateError("Spark did not provide the query and micro-batch of this task: set idempotence=none")
            given_id = GivenId(self._options.producer_id or query.replace("-", ""), context.partitionId(), int(batch))
        return self._send(iterator, given_id, 0)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._report_commit(messages, batch=batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._report_abort(messages, batch=batchId)

"""One task of a write: sends its rows in frames, and ends when all are acknowledged."""

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockstep.client import GivenId, Producer, SendResult
from lockstep.protocol.errors import LockstepError, NonDeterministicRetryError, OutOfSequenceError, StaleEpochError, StateError
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout
from lockstep.runtime.host import Host
from lockstep.spark.cluster import Cluster, connected
from lockstep.spark.frames import Frame, Frames, TopicFrames
from lockstep.spark.offsets import to_plain
from lockstep.spark.options import SinkOptions

WINDOW = 4
"""Maximum number of a task's frames that are encoded and not acknowledged; one per queue is in flight."""
SLICE_MS = 20
"""Waits of the rate limit below this are skipped."""
LAYOUT_CHECK_S = 2
"""How long a task that has sent everything waits for the present layout of a topic."""
LATENCIES_MAX = 2_000
"""Latencies stored per task; at this limit every second one is dropped."""
GROUP = "spark"


class DeliberateError(LockstepError):
    """Raised by the option failTask."""


@dataclass(slots=True)
class Sent:
    """Totals of the frames that a task has sent."""

    rows: int = 0
    bytes: int = 0
    """Bytes of the records, without the bytes that the broker adds."""
    frames: int = 0
    repeated_frames: int = 0
    """Frames that the broker had stored already: an earlier attempt had sent them. Excludes those whose offset it still knows."""
    next_offsets: dict[MessageQueue, int] = field(default_factory=dict)
    changed_topics: list[str] = field(default_factory=list)
    """Topics whose writable queues were changed while rows were placed over them by key."""
    ack_us: list[int] = field(default_factory=list)
    """Time from the call to the acknowledgement of each frame, or of every 2nd, 4th, … frame."""
    _stride: int = 1

    def record(self, frame: Frame, result: SendResult, ack_us: int) -> None:
        self.rows += len(frame.sizes)
        self.bytes += len(frame.records)
        if self.frames % self._stride == 0:
            self.ack_us.append(ack_us)
            if len(self.ack_us) > LATENCIES_MAX:
                del self.ack_us[1::2]
                self._stride *= 2
        self.frames += 1
        if result.queue_offset < 0:
            self.repeated_frames += 1
        else:
            self.next_offsets[frame.queue] = max(self.next_offsets.get(frame.queue, 0), result.queue_offset + len(frame.sizes))


def total(tasks: Iterable[Sent]) -> dict[str, Any]:
    """Return the totals of a job in the form of the report."""
    sent = list(tasks)
    latencies = sorted(us for one in sent for us in one.ack_us)
    ends: dict[MessageQueue, int] = {}
    for one in sent:
        for queue, offset in one.next_offsets.items():
            ends[queue] = max(offset, ends.get(queue, 0))
    at = lambda share: latencies[min(len(latencies) - 1, int(len(latencies) * share))] / 1_000 if latencies else None  # noqa: E731
    return {
        "rows": sum(one.rows for one in sent),
        "bytes": sum(one.bytes for one in sent),
        "frames": sum(one.frames for one in sent),
        "repeatedFrames": sum(one.repeated_frames for one in sent),
        "tasks": len(sent),
        "nextOffsets": to_plain(ends),
        "ackMs": {"p50": at(0.5), "p99": at(0.99), "max": at(1.0)},
    }


@dataclass(frozen=True, slots=True)
class Task:
    """The parameters of one task attempt."""

    options: SinkOptions
    layout: TopicLayout | None
    """The layout of the job's one topic when the job was planned, the same for each attempt. None if rows name their topics."""
    born_ms: int
    """The bornTimestamp of rows without one."""
    number: int
    attempt: int
    given_id: GivenId | None
    """The id of idempotent sends; None for at-least-once sends."""
    scheduled: bool
    """True if rows have a bornTimestamp."""
    keyed: bool = False
    """True if rows have the column `key`."""


class Pace:
    """Computes when a task's frames may be sent, by an absolute schedule: after a stall they are sent faster. Pure."""

    def __init__(self, options: SinkOptions, begun_us: int) -> None:
        rate = options.max_rows_per_second
        self._row_us = 0.0 if rate is None else 1_000_000 * options.parallelism / rate
        self._not_before = options.not_before
        self._begun_us = begun_us

    def wait_ms(self, due_ms: int, rows_before: int, wall_ms: int, now_us: int) -> float:
        """Return how long to wait before a frame that is due at `due_ms` and follows `rows_before` rows.

        The rate limit causes no waits below SLICE_MS.
        """
        scheduled_ms = max(0, due_ms - wall_ms) if self._not_before else 0
        limited_ms = (self._begun_us + rows_before * self._row_us - now_us) / 1_000 if self._row_us else 0.0
        return max(scheduled_ms, limited_ms if limited_ms > SLICE_MS else 0.0)


class TaskSender:
    """Sends the frames of one task, in order per queue."""

    def __init__(self, task: Task, producer: Producer, cluster: Cluster, host: Host) -> None:
        self._task = task
        self._options = task.options
        self._producer = producer
        self._cluster = cluster
        self._clock = host.clock
        self._window = asyncio.Semaphore(WINDOW)
        self._pace = Pace(task.options, host.clock.monotonic_us())
        self._rows_sent = 0
        self._topics_begun: set[str] = set()
        """Topics to which a frame was sent. The first frame of a topic is awaited: others could overtake it."""
        self._repeated: dict[MessageQueue, bool] = {}
        """For each queue, whether its latest frame was stored already and isn't the last one there, whose repeat would get an offset."""
        self.sent = Sent()

    async def send_all(self, batches: Iterable[Any], frames: Frames) -> Sent:
        """Send all rows of the task. Raise the error of the first frame that failed."""
        try:
            async with asyncio.TaskGroup() as group:
                for batch in batches:
                    for topic in frames.missing(batch):
                        frames.open(await self._cluster.layout(topic))
                    for frame in frames.add(batch):
                        await self._start_send(frame, group)
                for frame in frames.finish():
                    await self._start_send(frame, group)
        except BaseExceptionGroup as errors:
            raise _first(errors) from None
        self._check_ends()
        return self.sent

    async def _start_send(self, frame: Frame, group: asyncio.TaskGroup) -> None:
        await self._window.acquire()
        self._fail_on_purpose()
        await self._wait(frame)
        self._rows_sent += len(frame.sizes)
        if frame.queue.topic not in self._topics_begun:
            self._topics_begun.add(frame.queue.topic)
            await self._send(frame)
            return
        group.create_task(self._send(frame))
        # One turn queues the request, the next one writes it: then it is in flight while the next frame is encoded.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _send(self, frame: Frame) -> None:
        begun_us = self._clock.monotonic_us()
        try:
            result = await self._producer.send_records(frame.queue, frame.records, frame.sizes)
        finally:
            self._window.release()
        self.sent.record(frame, result, self._clock.monotonic_us() - begun_us)
        self._repeated[frame.queue] = result.queue_offset < 0

    def _check_ends(self) -> None:
        """Raise StateError if an earlier attempt sent more frames to a queue. A queue that gets no row this time is not detected."""
        short = [str(queue) for queue, repeated in sorted(self._repeated.items()) if repeated]
        if short:
            raise StateError(
                f"a repeated task sent fewer frames than an earlier attempt to {', '.join(short)}: it had fewer rows, or the topic's "
                f"queues have changed; {ADVICE}"
            )

    async def _wait(self, frame: Frame) -> None:
        wait_ms = self._pace.wait_ms(frame.due_ms, self._rows_sent, self._clock.wall_ms(), self._clock.monotonic_us())
        if wait_ms:
            await asyncio.sleep(wait_ms / 1_000)

    def _fail_on_purpose(self) -> None:
        fail = self._options.fail_task
        if fail is not None and self._task.number == fail[0] and self._task.attempt == 0 and self.sent.rows >= fail[1]:
            raise DeliberateError(f"task {fail[0]} fails after {self.sent.rows:,} acknowledged rows, as specified by the option failTask")


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors


def task_frames(task: Task) -> Frames:
    """Return the task's frames, opened if the job has one topic."""
    options = task.options
    make = partial(
        TopicFrames,
        task=task.number,
        records_max=options.frame_records,
        bytes_max=options.frame_bytes,
        born_ms=task.born_ms,
        scheduled=task.scheduled and options.not_before,
    )
    frames = Frames(options.topic, make)
    if task.layout is not None:
        frames.open(task.layout)
    return frames


async def send_task(task: Task, batches: Iterable[Any], host: Host) -> Sent:
    """Run one attempt of one task. Raise LockstepError, with the next step if the task's rows are the cause."""
    options, frames = task.options, task_frames(task)
    async with connected(options.nameserver, options.request_timeout_ms) as cluster, _producer(task) as producer:
        try:
            sent = await TaskSender(task, producer, cluster, host).send_all(batches, frames)
        except LockstepError as error:
            raise explained(error) from error
        if task.keyed:
            sent.changed_topics = await changed_topics(cluster, frames.layouts)
        return sent


async def changed_topics(cluster: Cluster, layouts: Iterable[TopicLayout]) -> list[str]:
    """Return the topics that have other writable queues than these layouts by now. Omit those for which no nameserver responds in time.

    A task whose topic is changed ends over the queues with which it began. To fail it would be worse: its repetition under the same id
    would place the rows over the new queues, and the brokers do not notice that a row is stored already if its old queue gets no row.
    """
    changed = []
    for layout in layouts:
        try:
            async with asyncio.timeout(LAYOUT_CHECK_S):
                present = await cluster.layout(layout.topic)
        except (LockstepError, TimeoutError):
            continue  # all rows are stored: that it is not known is no reason to send them again
        if present.write_queues != layout.write_queues:
            changed.append(layout.topic)
    return changed


def _producer(task: Task) -> AbstractAsyncContextManager[Producer]:
    return Producer(
        GROUP,
        nameserver=task.options.nameserver,
        given_id=task.given_id,
        keyed_send_timeout_ms=task.options.request_timeout_ms,
        in_flight_bytes_max=2 * WINDOW * task.options.frame_bytes,
        auto_create_topics=False,
    )


ADVICE = (
    "sort within partitions before the write (lockstep.spark.keyed does), or set idempotence=none for at-least-once; another job needs "
    "another producerId (run id)."
)


def explained(error: LockstepError) -> LockstepError:
    """Return an error that contains the next step, if one is known."""
    cause = error.__cause__ if isinstance(error.__cause__, LockstepError) else error
    if isinstance(cause, NonDeterministicRetryError):
        return StateError(
            "a repeated task sent other rows, or the same in another order, than the attempt before it, or frameRecords, frameBytes, "
            f"notBefore or the topic's queues have changed: {ADVICE} Reported by the broker: {cause}"
        )
    if isinstance(cause, StaleEpochError):
        return StateError(f"a later micro-batch of this query has begun, and this attempt belongs to an earlier one. {cause}")
    if isinstance(cause, OutOfSequenceError):
        return StateError(
            "the broker does not have the frames that this task has sent: it lost the end of its log (a power cut), or frameRecords, "
            "frameBytes, notBefore, the topic's queues or the rows under this producerId have changed. The task starts again from its "
            f"first row. {cause}"
        )
    return error

"""Replay a group's dead letters.

A dead letter that can't be replayed blocks only those of its order scope (its sharding key, else its original queue), which must not
overtake it. It remains for the next replay: if no later one of its queue was replayed, the replay position stops before it; else it is
copied to the end of its dead-letter queue, because the position is one offset per queue and the later ones must not be replayed twice.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import Annotated

from lockstep.client.producer.producer import Producer
from lockstep.operations.admin_client import AdminClient, BrokerResults, broker_reasons
from lockstep.operations.changes.operation import Argument, ChangeOutcome, Operation, Option, Plan
from lockstep.operations.changes.send import PRODUCER_GROUP
from lockstep.operations.errors import OperationError
from lockstep.operations.groups.group_query import read_group
from lockstep.operations.groups.group_report import GroupReport
from lockstep.operations.messages.dead_letters import (
    DeadLetter,
    DeadLetterQueue,
    commit_replayed,
    find_dead_letter_queues,
    read_dead_letters,
)
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError, TopicNotExistError, TransportError
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.names import check_group, retry_topic
from lockstep.protocol.topics.queue import MessageQueue

RETRY_LEVEL = 1
"""The shortest delay: 1 s."""
DEAD_LETTER_LEVEL = -1
"""Straight to the dead-letter topic."""
ATTEMPTS_MAX = (1 << 31) - 1
COMMIT_EVERY = 50
"""Dead letters between two commits of the replay position: the most that are sent twice if the command is killed or run twice at once."""
FAILED_TOPIC_TIMEOUT_MS = 1_000
"""Timeout of further sends to a topic to which one send has failed: waiting 30 s for each of many messages would take hours."""
IDS_SHOWN = 3


class ReplayTarget(Enum):
    """Where dead letters are sent."""

    RETRY = "retry"
    """The group's retry topic: only this group receives them."""
    TOPIC = "topic"
    """Their original topics: every group that subscribes receives them."""


@dataclass(frozen=True, slots=True)
class Replayable:
    """The dead letters that a replay would send, and where."""

    found: BrokerResults[list[DeadLetterQueue]]
    target: ReplayTarget
    count: int

    @property
    def queues(self) -> Iterator[DeadLetterQueue]:
        return chain.from_iterable(self.found.values.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterReplay(Operation):
    """Send a group's dead letters again; they also stay in the dead-letter topic. A concurrent group tries each once more.

    Exit 1 if some could not be sent: the others were, and the next replay tries those again.
    """

    words = ("dlq", "replay")
    path = "dlq-replay"
    title = "Replay dead letters"
    confirmed = "group"

    group: Annotated[str, Argument(help="The group that gave up on the messages.", label="Group")]
    to: Annotated[
        ReplayTarget | None,
        Option(
            flags=("--to",),
            help="retry: only this group receives them again; topic: all groups of their original topics do. "
            "By default retry for a concurrent group and topic for an ordered one.",
            label="To",
            hint="retry: only this group gets them; topic: all groups of their topics; empty: topic if the group is ordered, else retry",
        ),
    ] = None
    rate: Annotated[
        int, Option(flags=("--rate",), least=1, most=100_000, help="Send at most N messages per second.", label="Messages per second")
    ] = 100
    every: Annotated[
        bool,
        Option(flags=("--all",), help="Include those that were replayed before.", label="Which", choices=("not replayed yet", "all")),
    ] = False

    async def read(self, admin: AdminClient) -> Replayable:
        """Return the dead letters that a replay would send. Raise OperationError if the group has no dead letters, or does not read
        `to`."""
        check_group(self.group)
        try:
            found = await find_dead_letter_queues(admin, self.group)
        except TopicNotExistError:
            raise OperationError(
                f"group {self.group} has no dead letters; run `lockstep dlq ls` to list the groups that have some"
            ) from None
        target = await choose_target(admin, self.group, self.to)
        return Replayable(found, target, count_to_replay(chain.from_iterable(found.values.values()), include_replayed=self.every))

    async def plan(self, admin: AdminClient) -> Plan:
        found = await self.read(admin)

        async def carry_out() -> ChangeOutcome:
            async with replaying(admin, self.group, found.target, self.rate, include_replayed=self.every) as replay:
                result = await replay.run(found.queues)
            errors = ". ".join(unfinished(self.group, result, found.found.failed))
            line = f"{result.sent} dead letters of {self.group} were sent to {self.destination(found.target)}"
            return ChangeOutcome([line], self._json(found, result, done=True), failed=errors or None)

        failed = unfinished(self.group, ReplayResult(), found.found.failed)
        return Plan(
            self.effect(found),
            carry_out,
            nothing=self.nothing(found),
            incomplete=". ".join(failed) or None,
            json=self._json(found, ReplayResult(found.count), done=False),
        )

    def effect(self, found: Replayable) -> list[str]:
        """Describe the effect of a replay in sentences."""
        seconds = max(1, found.count // self.rate)
        where = self.destination(found.target)
        effect = [f"{found.count:,} dead letters of {self.group} are sent to {where}, {self.rate} a second: some {seconds:,} s."]
        return effect + [f"{name} is left out: {why}." for name, why in found.found.failed.items()]

    def nothing(self, found: Replayable) -> str | None:
        """Return why there is nothing to send; None if there is something."""
        if found.count:
            return None
        return f"group {self.group} has no dead letter{'' if self.every else ' that was not replayed'}"

    def destination(self, target: ReplayTarget) -> str:
        return retry_topic(self.group) if target is ReplayTarget.RETRY else "their original topics"

    def _json(self, found: Replayable, result: "ReplayResult", *, done: bool) -> dict[str, object]:
        skipped = [{"offset_message_id": each.id, "origin_topic": each.topic, "why": each.why} for each in result.skipped]
        failed = {**found.found.failed, **result.failed}
        return {
            "group": self.group,
            "done": done,
            "to": found.target.value,
            "count": result.sent,
            "left": skipped,
            "failed": failed,
        }


@dataclass(frozen=True, slots=True)
class SkippedMessage:
    """A dead letter that was not replayed."""

    id: str
    """Its offset message id."""
    topic: str
    """Its original topic."""
    why: str


@dataclass(slots=True)
class ReplayResult:
    """The outcome of a replay."""

    sent: int = 0
    skipped: list[SkippedMessage] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Broker → why its dead letters were not read to the end."""
    conflict: str | None = None
    """Why the replay stopped early: another replay of the group is running."""


class ConcurrentReplayError(LockstepError):
    """Another process has moved the replay position."""


class ReplayPosition:
    """The replay position of one dead-letter queue."""

    def __init__(self, admin: AdminClient, queue: DeadLetterQueue, group: str) -> None:
        self._admin = admin
        self._queue = queue
        self._group = group
        self._committed = queue.replayed_offset

    async def commit(self, next_offset: int) -> None:
        """Move the position forward. Raise ConcurrentReplayError if it is not where this replay has put it: both sent the same messages."""
        if next_offset <= max(self._committed, self._queue.next_offset):
            return
        before = await commit_replayed(self._admin, self._queue, self._group, next_offset)
        if before != self._committed:
            if before > next_offset:
                await commit_replayed(self._admin, self._queue, self._group, before)
            raise ConcurrentReplayError(
                f"another replay of {self._group} is running: this one has stopped, and up to {COMMIT_EVERY} dead letters at "
                f"{self._queue.broker.name} were sent twice"
            )
        self._committed = next_offset


class ReplayRun:
    """One replay of one group's dead letters, `rate` messages per second; with `include_replayed` also those that were replayed before."""

    def __init__(
        self, admin: AdminClient, producer: Producer, group: str, target: ReplayTarget, rate: int, *, include_replayed: bool
    ) -> None:
        self.result = ReplayResult()
        self._admin = admin
        self._producer = producer
        self._group = group
        self._target = target
        self._rate = rate
        self._include_replayed = include_replayed
        self._blocked: dict[tuple[str, str], str] = {}
        """(topic, order scope) of a dead letter that could not be sent → why."""
        self._write_queues: dict[str, frozenset[MessageQueue]] = {}
        self._failed_topics: dict[str, None] = {}

    async def run(self, queues: Iterable[DeadLetterQueue]) -> ReplayResult:
        for queue in queues:
            try:
                await self._replay_queue(queue)
            except ConcurrentReplayError as error:
                self.result.conflict = str(error)
                break
            except (LockstepError, OSError) as error:
                self.result.failed[queue.broker.name] = " ".join(str(error).split())
        return self.result

    async def _replay_queue(self, queue: DeadLetterQueue) -> None:
        position = ReplayPosition(self._admin, queue, self._group)
        skipped: list[DeadLetter] = []
        next_offset = last_sent = queue.next_offset - 1  # with `include_replayed`, dead letters before it may remain
        first = queue.offsets.min_offset if self._include_replayed else queue.next_offset
        try:
            async for dead_letter in read_dead_letters(self._admin, queue, self._group, first):
                if await self._replay(dead_letter):
                    last_sent = max(last_sent, dead_letter.message.queue_offset)
                else:
                    skipped.append(dead_letter)
                next_offset = skipped[0].message.queue_offset if skipped else last_sent + 1
                if next_offset % COMMIT_EVERY == 0:
                    await position.commit(next_offset)
                await asyncio.sleep(1 / self._rate)
            if skipped and skipped[0].message.queue_offset < last_sent:
                for dead_letter in skipped:
                    await self._send_back(dead_letter, DEAD_LETTER_LEVEL)
                next_offset = queue.offsets.max_offset
        except ConcurrentReplayError:
            raise
        except BaseException:  # re-raised
            await position.commit(next_offset)
            raise
        await position.commit(next_offset)

    async def _replay(self, dead_letter: DeadLetter) -> bool:
        """Return False if the message could not be sent, after recording why. Raise TransportError if its broker does not respond."""
        topic, scope = dead_letter.origin_topic or dead_letter.message.topic, dead_letter.order_scope
        why = None if scope is None else self._blocked.get((topic, scope))
        try:
            if why is None:
                await self._send(dead_letter, topic)
                self.result.sent += 1
                return True
        except (LockstepError, OSError) as error:
            if self._target is ReplayTarget.RETRY and isinstance(error, TransportError):
                raise
            why = " ".join(str(error).split()) or type(error).__name__
            self._failed_topics[topic] = None
            if scope is not None and self._target is ReplayTarget.TOPIC:
                self._blocked[topic, scope] = why
        self.result.skipped.append(SkippedMessage(dead_letter.message.offset_message_id, topic, why))
        return False

    async def _send(self, dead_letter: DeadLetter, topic: str) -> None:
        if self._target is ReplayTarget.RETRY:
            await self._send_back(dead_letter, RETRY_LEVEL)
            return
        timeout_ms = FAILED_TOPIC_TIMEOUT_MS if topic in self._failed_topics else None
        # If the original queue was removed from the topic, any queue will do.
        queue = dead_letter.origin_queue if dead_letter.origin_queue in await self._write_queues_of(topic) else None
        await self._producer.send(dead_letter.original_message(), queue=queue, timeout_ms=timeout_ms)

    async def _write_queues_of(self, topic: str) -> Collection[MessageQueue]:
        """Return the topic's writable queues. Raise TopicNotExistError."""
        if topic not in self._write_queues:
            layout = (await self._admin.route(topic)).layout
            self._write_queues[topic] = frozenset(layout.write_queues)
        return self._write_queues[topic]

    async def _send_back(self, dead_letter: DeadLetter, level: int) -> None:
        header = SendBackHeader(dead_letter.physical_offset, self._group, level, max_reconsume_times=ATTEMPTS_MAX)
        await self._admin.request(dead_letter.broker, RequestCode.CONSUMER_SEND_MSG_BACK, header)


async def choose_target(admin: AdminClient, group: str, to: ReplayTarget | None) -> ReplayTarget:
    """Return where the group's members read: a concurrent group reads its retry topic, an ordered one does not.

    Raise OperationError if they don't read `to`, or if that is None and it is unknown where they read.
    """
    report, _ = await read_group(admin, group)
    ordered = None if report is None else report.ordered
    if to is ReplayTarget.RETRY and ordered:
        raise OperationError(f"group {group} is ordered, and its members don't read its retry topic: use --to topic")
    if to is ReplayTarget.RETRY and ordered is None and report is not None and _was_ordered(report):
        raise OperationError(
            f"group {group} has no members now and was ordered when it had: its members would not read its retry topic. Use --to topic; if "
            "the group is to be concurrent from now on, start a member first"
        )
    if to is None and ordered is None:
        raise OperationError(
            f"group {group} has no members, so it is unknown whether it is ordered: use --to retry if it is concurrent, else --to topic"
        )
    return to or (ReplayTarget.TOPIC if ordered else ReplayTarget.RETRY)


def _was_ordered(report: GroupReport) -> bool:
    """Return whether any queue was ever locked: those of a concurrent group never are."""
    return any(line.epoch not in (None, "0") for line in report.queues)


def count_to_replay(queues: Iterable[DeadLetterQueue], *, include_replayed: bool) -> int:
    """Return how many dead letters a replay would send."""
    return sum(queue.stored_count if include_replayed else queue.pending_count for queue in queues)


@asynccontextmanager
async def replaying(admin: AdminClient, group: str, target: ReplayTarget, rate: int, *, include_replayed: bool) -> AsyncIterator[ReplayRun]:
    """Return a replay with a producer of its own."""
    # A topic that does not exist was deleted: a replay must not create it again.
    async with Producer(PRODUCER_GROUP, nameserver=admin.address, auto_create_topics=False) as producer:
        yield ReplayRun(admin, producer, group, target, rate, include_replayed=include_replayed)


def unfinished(group: str, result: ReplayResult, failed: Mapping[str, str]) -> list[str]:
    """Return why a replay has not sent everything: sentences without a full stop, none if it has.

    `failed`: broker → why its dead letters could not be found; those that were not read to the end are in `result`.
    """
    found = [] if result.conflict is None else [result.conflict]
    if result.skipped:
        reasons = summarize_skipped(result.skipped)
        found.append(f"{len(result.skipped)} dead letters of {group} were not sent and remain for the next replay: {reasons}")
    if unread := {**failed, **result.failed}:
        found.append(f"some brokers could not be read ({broker_reasons(unread)}): replay again when they are back")
    return found


def summarize_skipped(skipped: Iterable[SkippedMessage]) -> str:
    """Return one line: the skipped dead letters, those with the same topic and reason together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for each in skipped:
        alike.setdefault((each.topic, each.why), []).append(each.id)
    return "; ".join(
        f"{len(ids)} of {topic} ({', '.join(ids[:IDS_SHOWN])}{', …' if len(ids) > IDS_SHOWN else ''}): {why}"
        for (topic, why), ids in alike.items()
    )

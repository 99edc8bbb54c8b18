"""Handing a group's dead letters out again: those that can be, whatever becomes of the others.

A letter that can't be handed out holds up only those of its lane (its sharding key, else the queue that it lay in), which must not overtake
it. It remains, and waits for the next replay: where nothing behind it went out, progress stops before it; else it is given up anew, to the
end of its queue (progress is one offset a queue, and what lies behind is not handed out twice).
"""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from lockstep.admin.client import AdminClient
from lockstep.admin.dead_letters import DeadLetter, DeadLetterQueue, letters, remember
from lockstep.client.producer.producer import Producer
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.errors import LockstepError, TransportError
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.queue import MessageQueue

RETRY_LEVEL = 1
"""One second: the shortest delay."""
GIVE_UP_LEVEL = -1
"""Straight to the dead-letter topic."""
ATTEMPTS_MAX = (1 << 31) - 1
REMEMBER_EVERY = 50
"""So many are replayed a second time, should the command be killed, or run twice at once."""
TROUBLED_TIMEOUT_MS = 1_000
"""Where one send to a topic has failed the next ones wait no longer: who waits 30 s for each of many letters never ends."""
IDS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SkippedMessage:
    """A dead letter that was not handed out."""

    id: str
    """Its offset message id."""
    topic: str
    """Where it came from."""
    why: str


@dataclass(slots=True)
class ReplayResult:
    """What became of a replay."""

    sent: int = 0
    left: list[SkippedMessage] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Broker → why its letters were not read to the end."""
    overtaken: str | None = None
    """Why the replay has stopped: another one of the group is at work."""


class OvertakenError(LockstepError):
    """Somebody else has moved the progress of the replay."""


class ReplayProgress:
    """How far the letters of one queue need no further replay."""

    def __init__(self, admin: AdminClient, morgue: DeadLetterQueue, group: str) -> None:
        self._admin = admin
        self._morgue = morgue
        self._group = group
        self._there = morgue.replayed

    async def move(self, following: int) -> None:
        """OvertakenError where it is not where this replay has put it: what was handed out since then went out twice."""
        if following <= max(self._there, self._morgue.next):
            return
        before = await remember(self._admin, self._morgue, self._group, following)
        if before != self._there:
            if before > following:
                await remember(self._admin, self._morgue, self._group, before)
            raise OvertakenError(
                f"another replay of {self._group} runs at the same time: this one has stopped, and up to {REMEMBER_EVERY} letters at "
                f"{self._morgue.broker.name} went out twice"
            )
        self._there = following


class Replay:
    """One replay of one group. `way`: "topic" or "retry"; `rate`: letters a second; `everything`: those that were replayed before, too."""

    def __init__(self, admin: AdminClient, producer: Producer, group: str, way: str, rate: int, *, everything: bool) -> None:
        self.outcome = ReplayResult()
        self._admin = admin
        self._producer = producer
        self._group = group
        self._way = way
        self._rate = rate
        self._everything = everything
        self._held: dict[tuple[str, str], str] = {}
        """(topic, lane) of a letter that remained → why it did."""
        self._queues: dict[str, frozenset[MessageQueue]] = {}
        self._troubled: dict[str, None] = {}
        """Topics to which a send has failed."""

    async def run(self, found: Iterable[DeadLetterQueue]) -> ReplayResult:
        for morgue in found:
            try:
                await self._hand_out(morgue)
            except OvertakenError as error:
                self.outcome.overtaken = str(error)
                break
            except (LockstepError, OSError) as error:
                self.outcome.failed[morgue.broker.name] = " ".join(str(error).split())
        return self.outcome

    async def _hand_out(self, morgue: DeadLetterQueue) -> None:
        bookmark = ReplayProgress(self._admin, morgue, self._group)
        left: list[DeadLetter] = []
        following = last_sent = morgue.next - 1  # with `everything` letters before it may remain
        try:
            async for letter in letters(self._admin, morgue, self._group, morgue.held.min_offset if self._everything else morgue.next):
                if await self._hand_over(letter):
                    last_sent = max(last_sent, letter.message.queue_offset)
                else:
                    left.append(letter)
                following = left[0].message.queue_offset if left else last_sent + 1
                if following % REMEMBER_EVERY == 0:
                    await bookmark.move(following)
                await asyncio.sleep(1 / self._rate)
            if left and left[0].message.queue_offset < last_sent:
                for letter in left:
                    await self._send_back(letter, GIVE_UP_LEVEL)
                following = morgue.held.max_offset
        except OvertakenError:
            raise
        except BaseException:  # re-raised
            await bookmark.move(following)
            raise
        await bookmark.move(following)

    async def _hand_over(self, letter: DeadLetter) -> bool:
        """False: it remains, and why is noted. TransportError where the broker that has it does not answer."""
        topic, lane = letter.origin_topic or letter.message.topic, letter.lane
        why = None if lane is None else self._held.get((topic, lane))
        try:
            if why is None:
                await self._send(letter, topic)
                self.outcome.sent += 1
                return True
        except (LockstepError, OSError) as error:
            if self._way == "retry" and isinstance(error, TransportError):
                raise
            why = " ".join(str(error).split()) or type(error).__name__
            self._troubled[topic] = None
            if lane is not None and self._way == "topic":
                self._held[topic, lane] = why
        self.outcome.left.append(SkippedMessage(letter.message.offset_message_id, topic, why))
        return False

    async def _send(self, letter: DeadLetter, topic: str) -> None:
        if self._way == "topic":
            timeout_ms = TROUBLED_TIMEOUT_MS if topic in self._troubled else None
            queue = letter.queue if letter.queue in await self._queues_of(topic) else None  # else it was taken away: any will do
            await self._producer.send(letter.again(), queue=queue, timeout_ms=timeout_ms)
        else:
            await self._send_back(letter, RETRY_LEVEL)

    async def _queues_of(self, topic: str) -> Collection[MessageQueue]:
        """To which messages are sent. TopicNotExistError."""
        if topic not in self._queues:
            layout = (await self._admin.route(topic)).layout
            self._queues[topic] = frozenset(layout.write_queues)
        return self._queues[topic]

    async def _send_back(self, letter: DeadLetter, level: int) -> None:
        header = SendBackHeader(letter.physical_offset, self._group, level, max_reconsume_times=ATTEMPTS_MAX)
        await self._admin.ask(letter.broker, RequestCode.CONSUMER_SEND_MSG_BACK, header)


def words(left: Iterable[SkippedMessage]) -> str:
    """Which letters remained and why, in one line: those of one topic and reason together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for each in left:
        alike.setdefault((each.topic, each.why), []).append(each.id)
    return "; ".join(
        f"{len(ids)} of {topic} ({', '.join(ids[:IDS_SHOWN])}{', …' if len(ids) > IDS_SHOWN else ''}): {why}"
        for (topic, why), ids in alike.items()
    )

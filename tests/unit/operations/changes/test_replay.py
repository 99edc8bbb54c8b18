"""Replay: a dead letter that can't be sent delays only later ones of its key, keeps its place among them, and stays stored."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from lockstep.client.producer.producer import Producer
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.changes import replay
from lockstep.operations.changes.replay import (
    COMMIT_EVERY,
    DEAD_LETTER_LEVEL,
    RETRY_LEVEL,
    ReplayResult,
    ReplayRun,
    ReplayTarget,
    SkippedMessage,
    summarize_skipped,
    unfinished,
)
from lockstep.operations.messages.dead_letters import DeadLetter, DeadLetterQueue
from lockstep.protocol.bodies import BrokerAddress, OffsetRange, TopicRoute
from lockstep.protocol.errors import BrokerSystemError, MessageIllegalError, TransportError
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.protocol.messages.message import Message, decode_messages, encode_message
from lockstep.protocol.messages.record import INT64, QUEUE_OFFSET_AT
from lockstep.protocol.topics.queue import LayoutEntry, LayoutVersion, MessageQueue, TopicLayout

BROKER = BrokerAddress("broker-a", "c", "127.0.0.1:1", True, 1)
RATE = 100_000


@dataclass
class FakeDeadLetters:
    """Dead letters of one broker: the one at offset n has the key `keys[n]` and the body n; those in `bad` can't be sent."""

    keys: list[str | None]
    bad: set[int] = field(default_factory=set)
    error: Exception = field(default_factory=lambda: MessageIllegalError("too long"))
    sent: list[int] = field(default_factory=list)
    given_up: list[int] = field(default_factory=list)
    remembered: int = 0
    other: int | None = None
    """The offset to which another replay has moved the progress when this one first moves it."""
    moved: list[int] = field(default_factory=list)
    lay_in: dict[int, int] = field(default_factory=dict)
    """By dead letter the queue of the original message; the topic has two."""
    queues: list[int | None] = field(default_factory=list)
    """The queue to which each one was sent, or None if any."""

    async def send(self, message: Message, *, queue: MessageQueue | None, timeout_ms: int | None) -> None:
        assert message.sharding_key == self.keys[int(message.body)]
        self._take(int(message.body))
        self.queues.append(None if queue is None else queue.queue_id)

    async def route(self, topic: str) -> TopicRoute:
        return TopicRoute(TopicLayout(topic, LayoutVersion(1, 7), (LayoutEntry(BROKER.name, 2, 2, 1),)), (BROKER,))

    async def request(self, broker: BrokerAddress, code: int, header: SendBackHeader) -> None:
        if header.delay_level == DEAD_LETTER_LEVEL:
            self.given_up.append(header.offset)
        else:
            assert header.delay_level == RETRY_LEVEL
            self._take(header.offset)

    def _take(self, number: int) -> None:
        if number in self.bad:
            raise self.error
        self.sent.append(number)

    async def read_dead_letters(self, admin: AdminClient, queue: DeadLetterQueue, group: str, first: int) -> AsyncIterator[DeadLetter]:
        for number in range(first, len(self.keys)):
            record = bytearray(encode_message(Message("%DLQ%g", b"%d" % number, sharding_key=self.keys[number]), 0, "A" * 32, 5))
            record[QUEUE_OFFSET_AT : QUEUE_OFFSET_AT + 8] = INT64.pack(number)
            yield DeadLetter(BROKER, decode_messages(bytes(record), BROKER.name)[0], number, "orders", None, None, self.lay_in.get(number))

    async def commit_replayed(self, admin: AdminClient, queue: DeadLetterQueue, group: str, next_offset: int) -> int:
        before = self.remembered if self.other is None else self.other
        self.other = None
        self.remembered = next_offset
        self.moved.append(next_offset)
        return before

    async def run(self, target: ReplayTarget = ReplayTarget.TOPIC, *, include_replayed: bool = False) -> ReplayResult:
        work = ReplayRun(cast(AdminClient, self), cast(Producer, self), "g", target, RATE, include_replayed=include_replayed)
        return await work.run([DeadLetterQueue(BROKER, OffsetRange(0, 0, len(self.keys)), self.remembered)])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(*keys: str | None, **facts: Any) -> FakeDeadLetters:
        made = FakeDeadLetters(list(keys), **facts)
        monkeypatch.setattr(replay, "read_dead_letters", made.read_dead_letters)
        monkeypatch.setattr(replay, "commit_replayed", made.commit_replayed)
        return made

    return make


async def test_message_that_cannot_be_sent_delays_only_later_ones_of_its_key(world: Any) -> None:
    made = world("a", "b", "a", None, "a", bad={0})
    outcome = await made.run()
    assert made.sent == [1, 3]
    assert made.given_up == [0, 2, 4], "in their order, and to the end"
    assert made.remembered == 5
    assert (outcome.sent, [each.why for each in outcome.skipped]) == (2, ["MESSAGE_ILLEGAL: too long"] * 3)


async def test_failed_messages_without_a_later_success_keep_their_place(world: Any) -> None:
    made = world("a", "b", "a", "b", bad={2, 3})
    assert (await made.run()).sent == 2
    assert (made.given_up, made.remembered) == ([], 2)


async def test_failed_replayed_message_is_dead_lettered_again(world: Any) -> None:
    made = world("a", "b", bad={0, 1}, remembered=2)
    await made.run(include_replayed=True)
    assert (made.given_up, made.remembered) == ([0, 1], 2)


async def test_rejected_retry_delays_no_other_and_an_unreachable_broker_ends_the_replay(world: Any) -> None:
    made = world("a", "a", bad={0}, error=BrokerSystemError("no message begins there"))
    assert (await made.run(ReplayTarget.RETRY)).sent == 1
    assert (made.sent, made.given_up) == ([1], [0])
    made = world("a", "b", "c", bad={1}, error=TransportError("gone"))
    outcome = await made.run(ReplayTarget.RETRY)
    assert (made.sent, outcome.skipped, outcome.failed, made.remembered) == ([0], [], {"broker-a": "gone"}, 1)


@pytest.mark.parametrize(("other", "kept"), [(COMMIT_EVERY - 1, COMMIT_EVERY), (COMMIT_EVERY, COMMIT_EVERY), (70, 70)])
async def test_replay_stops_when_another_replay_moved_the_progress(world: Any, other: int, kept: int) -> None:
    made = world(*[None] * 80, other=other)
    outcome = await made.run()
    assert "another replay of g is running" in str(outcome.conflict)
    assert (len(made.sent), made.remembered) == (COMMIT_EVERY, kept)


async def test_single_replay_finds_no_conflict(world: Any) -> None:
    made = world(*[None] * (2 * COMMIT_EVERY + 1))
    assert (await made.run()).conflict is None
    assert made.moved == [COMMIT_EVERY, 2 * COMMIT_EVERY, 2 * COMMIT_EVERY + 1]


async def test_message_without_a_key_is_sent_to_its_original_queue_if_it_exists(world: Any) -> None:
    made = world("a", None, None, None, lay_in={0: 1, 1: 1, 2: 7})
    await made.run()
    assert made.queues == [None, 1, None, None]


async def test_failed_message_without_a_key_delays_later_ones_of_its_queue(world: Any) -> None:
    made = world(None, None, None, "a", lay_in={0: 1, 1: 1, 2: 0}, bad={0})
    outcome = await made.run()
    assert (len(outcome.skipped), made.sent) == (2, [2, 3])


def test_skipped_messages_are_grouped_by_reason() -> None:
    left = [SkippedMessage(str(number), "gone", "no topic") for number in range(4)] + [SkippedMessage("9", "other", "no topic")]
    assert summarize_skipped(left) == "4 of gone (0, 1, 2, …): no topic; 1 of other (9): no topic"


def test_replay_that_has_not_sent_everything_says_why() -> None:
    assert unfinished("billing", ReplayResult(7), {}) == []
    result = ReplayResult(7, [SkippedMessage("A1", "orders", "it is full")], {"broker-b": "it is away"}, "another replay is running")
    assert unfinished("billing", result, {"broker-c": "no address"}) == [
        "another replay is running",
        "1 dead letters of billing were not sent and remain for the next replay: 1 of orders (A1): it is full",
        "some brokers could not be read (broker broker-c: no address; broker broker-b: it is away): replay again when they are back",
    ]

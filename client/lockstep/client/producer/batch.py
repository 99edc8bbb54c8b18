"""One `send_batch`: which of its messages are sent together, and their results in the given order."""

import asyncio
from collections.abc import Mapping, Sequence

from lockstep.client.errors import BatchSendError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.machines.pending import PendingSend, held_bytes_of
from lockstep.client.producer.machines.queue_machine import QueueMachine
from lockstep.client.producer.machines.routing import UNKEYED, Route, Selector, queue_of_key, route_of
from lockstep.client.producer.machines.topic_machine import TopicMachine
from lockstep.client.producer.result import SendResult
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.messages.message import Message
from lockstep.protocol.topics.queue import MessageQueue

Share = tuple[TopicMachine, QueueMachine, Route, Sequence[int]]
"""Messages that are sent together: their topic, queue and route, and their positions in the batch."""


class Batch:
    """Counts down the messages whose result is not known yet. `sends` are those that were enqueued, each with its topic."""

    __slots__ = ("_errors", "_left", "_results", "durable", "future", "sends")

    def __init__(self, count: int, future: "asyncio.Future[None]", *, durable: bool | None = None) -> None:
        self.future = future
        self.durable = durable
        self.sends: list[tuple[TopicMachine, PendingSend]] = []
        self._left = count
        self._results: list[SendResult | None] = [None] * count
        self._errors: dict[int, Exception] = {}

    def done(self) -> bool:
        """Return whether the caller no longer waits."""
        return self.future.done()

    def stored(self, places: Sequence[int], results: Sequence[SendResult]) -> None:
        all_results = self._results
        for place, result in zip(places, results, strict=True):
            all_results[place] = result
        self._end(len(places))

    def failed(self, places: Sequence[int], error: Exception) -> None:
        self._errors.update(dict.fromkeys(places, error))
        self._end(len(places))

    async def results(self) -> list[SendResult]:
        """Wait for all results. Raise BatchSendError if a message failed."""
        await self.future
        errors = self._errors
        if errors:
            first = errors[min(errors)]
            raise BatchSendError([errors.get(place) or result for place, result in enumerate(self._results)]) from first  # type: ignore[misc]
        return self._results  # type: ignore[return-value]

    def _end(self, count: int) -> None:
        self._left -= count
        if not self._left and not self.future.done():
            self.future.set_result(None)


class Division:
    """Divides the messages of a batch among queues, according to the present layouts."""

    __slots__ = ("_messages", "_named", "_selected", "_sharding_keys", "held_bytes", "keyed", "topics")

    def __init__(self, messages: Sequence[Message], selector: Selector | None, queue: MessageQueue | None) -> None:
        if not isinstance(messages, Sequence):
            raise LocalProtocolError(f"send_batch takes a list of messages, not a {type(messages).__name__}: use send() for one message")
        self._messages = messages
        try:
            self._sharding_keys = [message.sharding_key for message in messages]
            self.topics = tuple(dict.fromkeys([message.topic for message in messages]))
            """Their names."""
            self.held_bytes = [held_bytes_of(message) for message in messages]
            """The bytes that the in-flight limit counts for each message."""
        except AttributeError:
            other = next((each for each in messages if not isinstance(each, Message)), None)
            raise LocalProtocolError(f"send_batch takes a list of messages, but one of them is a {type(other).__name__}") from None
        routes = [] if selector is None and queue is None else [route_of(message, selector, queue) for message in messages]
        self._selected = None if selector is None else routes
        self._named = None if queue is None else routes[0]
        self.keyed = bool(routes) or any(self._sharding_keys)
        """Whether any message belongs to one queue."""

    def chunks(self, config: ProducerConfig) -> list[tuple[int, int]]:
        """Return the ranges of messages that fit one frame, whichever queues they go to."""
        chunks, begin, held_bytes = [], 0, 0
        for place, size in enumerate(self.held_bytes):
            if place > begin and (held_bytes + size > config.batch_bytes_max or place - begin >= config.batch_count_max):
                chunks.append((begin, place))
                begin, held_bytes = place, 0
            held_bytes += size
        return [*chunks, (begin, len(self.held_bytes))]

    def of(self, places: Sequence[int]) -> tuple[list[Message], int]:
        """Return the messages at these positions, and the bytes that the in-flight limit counts for them."""
        return [self._messages[place] for place in places], sum([self.held_bytes[place] for place in places])

    def shares(self, begin: int, end: int, topics: Mapping[str, TopicMachine], now_ms: int) -> list[Share]:
        """Return messages[begin:end] by queue; those with a selector one by one."""
        messages, keys, selected, named = self._messages, self._sharding_keys, self._selected, self._named
        by_topic: dict[str, Sequence[int]] = {self.topics[0]: range(begin, end)}
        if len(self.topics) > 1:
            by_topic = {}
            for place in range(begin, end):
                by_topic.setdefault(messages[place].topic, []).append(place)  # type: ignore[attr-defined]
        shares: list[Share] = []
        for name, places in by_topic.items():
            topic = topics[name]
            if selected is not None:
                shares += [(topic, topic.machine_for(selected[place], now_ms), selected[place], [place]) for place in places]
                continue
            if named is not None:
                shares.append((topic, topic.machine_for(named, now_ms), named, places))
                continue
            keyed = {place: key for place in places if (key := keys[place]) is not None} if self.keyed else {}
            for sender, own in topic.of_keys(keyed):
                shares.append((topic, sender, Route([keyed[place] for place in own], queue_of_key), own))
            if len(keyed) < len(places):
                unkeyed = [place for place in places if place not in keyed] if keyed else places
                shares.append((topic, topic.next(now_ms), UNKEYED, unkeyed))
        return shares

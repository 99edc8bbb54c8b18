"""One `send_batch`: which of its messages go together, and their results in the order given."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.client.errors import BatchSendError
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.parcel import Parcel
from lockstep.client.producer.queue_sender import QueueSender
from lockstep.client.producer.result import SendResult
from lockstep.client.producer.selector import Selector, queue_of_key
from lockstep.client.producer.topic_sender import TopicSender
from lockstep.client.producer.way import Way, way_of
from lockstep.protocol.errors import LocalProtocolError
from lockstep.protocol.message import Message
from lockstep.protocol.properties import check_text
from lockstep.protocol.queue import MessageQueue

RECORD_OVERHEAD_BYTES = 384
"""What a record has beside body and user properties, at most about: its fixed fields, topic, UNIQ_KEY, key. For the in-flight limit."""


Placed = tuple[TopicSender, QueueSender, Way, Sequence[int]]
"""Messages that go together: where, how, and their places in the batch."""


def held_bytes_of(message: Message) -> int:
    """What the in-flight limit counts for it."""
    return len(message.body) + len(message.stored_properties) + RECORD_OVERHEAD_BYTES


class Batch:
    """Counts down until the end of each message is known; `parcels` are those that hold them now or did."""

    __slots__ = ("_errors", "_left", "_results", "durable", "future", "parcels")

    def __init__(self, count: int, future: "asyncio.Future[None]", *, durable: bool | None = None) -> None:
        self.future = future
        self.durable = durable
        self.parcels: list[Parcel] = []
        self._left = count
        self._results: list[SendResult | None] = [None] * count
        self._errors: dict[int, Exception] = {}

    def stored(self, places: Sequence[int], results: Sequence[SendResult]) -> None:
        all_results = self._results
        for place, result in zip(places, results, strict=True):
            all_results[place] = result
        self._end(len(places))

    def failed(self, places: Sequence[int], error: Exception) -> None:
        self._errors.update(dict.fromkeys(places, error))
        self._end(len(places))

    async def results(self) -> list[SendResult]:
        """Wait for all of them; BatchSendError if any failed."""
        await self.future
        errors = self._errors
        if errors:
            first = errors[min(errors)]
            raise BatchSendError([errors.get(place) or result for place, result in enumerate(self._results)]) from first  # type: ignore[misc]
        return self._results  # type: ignore[return-value]

    def withdraw(self) -> None:
        """Take back what is not written: nobody waits any more."""
        for parcel in self.parcels:
            if parcel.sender is not None:
                parcel.sender.withdraw(parcel)
        self.future.cancel()

    def _end(self, count: int) -> None:
        self._left -= count
        if not self._left and not self.future.done():
            self.future.set_result(None)


class Share:
    """A parcel's part of a batch: stands where a `send` has its future."""

    __slots__ = ("_batch", "_places")

    def __init__(self, batch: Batch, places: Sequence[int]) -> None:
        self._batch = batch
        self._places = places

    def done(self) -> bool:
        """Nobody waits for it."""
        return self._batch.future.done()

    def set_result(self, results: Any) -> None:
        self._batch.stored(self._places, results)

    def set_exception(self, error: Exception) -> None:
        self._batch.failed(self._places, error)

    def part(self, places: Sequence[int]) -> "Share":
        """For some of its records only."""
        return Share(self._batch, [self._places[place] for place in places])

    def post(self, parcel: Parcel) -> None:
        """The parcel that holds the records."""
        self._batch.parcels.append(parcel)


class Division:
    """Says where each message of a batch goes, by the layouts of the moment."""

    __slots__ = ("_messages", "_selected", "_sharding_keys", "_ways", "topics", "way")

    def __init__(
        self,
        messages: Sequence[Message],
        sharding_key: str | None,
        sharding_keys: Sequence[str] | None,
        selector: Selector | None,
        arg: object,
        queue: MessageQueue | None,
    ) -> None:
        if not isinstance(messages, Sequence):
            raise LocalProtocolError(
                f"send_batch takes a list of messages, and got a {type(messages).__name__}: one message goes by send()"
            )
        if sharding_keys is not None:
            if sharding_key is not None or len(sharding_keys) != len(messages):
                raise LocalProtocolError(f"sharding_keys: give one for each of the {len(messages)} messages, and no sharding_key beside")
            for key in sharding_keys:
                if type(key) is not str or not key:
                    check_text("sharding_key", key)
            sharding_key = sharding_keys[0]
        self._messages = messages
        self._sharding_keys = sharding_keys
        try:
            firsts = {message.topic: message for message in reversed(messages)}
        except AttributeError:
            other = next((each for each in messages if not isinstance(each, Message)), None)
            raise LocalProtocolError(f"send_batch takes a list of messages, and one of them is a {type(other).__name__}") from None
        self._ways = {name: way_of(message, sharding_key, selector, arg, queue) for name, message in firsts.items()}
        self._selected = None if selector is None else [way_of(message, None, selector, arg, None) for message in messages]
        self.way = next(iter(self._ways.values()))
        """How its first message goes: keyed or not, so do all."""
        self.topics = tuple(firsts)
        """Their names."""

    def chunks(self, config: ProducerConfig) -> list[tuple[int, int]]:
        """Runs of messages that fit a frame, wherever they go."""
        chunks, begin, held_bytes = [], 0, 0
        for place, message in enumerate(self._messages):
            size = held_bytes_of(message)
            if place > begin and (held_bytes + size > config.batch_bytes_max or place - begin >= config.batch_count_max):
                chunks.append((begin, place))
                begin, held_bytes = place, 0
            held_bytes += size
        return [*chunks, (begin, len(self._messages))]

    def shares(self, begin: int, end: int, topics: Mapping[str, TopicSender]) -> list[Placed]:
        """Those of messages[begin:end] that go to one queue together, those of a selector each alone."""
        messages, keys, selected = self._messages, self._sharding_keys, self._selected
        by_topic: dict[str, Sequence[int]] = {self.topics[0]: range(begin, end)}
        if len(self.topics) > 1:
            by_topic = {}
            for place in range(begin, end):
                by_topic.setdefault(messages[place].topic, []).append(place)  # type: ignore[attr-defined]
        shares: list[Placed] = []
        for name, places in by_topic.items():
            topic = topics[name]
            if keys is not None:
                for sender, own in topic.of_keys(keys, places):
                    shares.append((topic, sender, Way([keys[place] for place in own], queue_of_key), own))
            elif selected is not None:
                shares += [(topic, selected[place].sender(topic), selected[place], [place]) for place in places]
            else:
                shares.append((topic, self._ways[name].sender(topic), self._ways[name], places))
        return shares

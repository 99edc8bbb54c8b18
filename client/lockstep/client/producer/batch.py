"""One `send_batch`: which of its messages go together, and their results in the order given."""

from collections.abc import Sequence

from lockstep.client.errors import BatchSendError
from lockstep.client.producer.batcher import Parcel
from lockstep.client.producer.config import ProducerConfig
from lockstep.client.producer.result import SendResult
from lockstep.client.producer.selector import Selector
from lockstep.client.producer.way import Way, way_of
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.message import Message
from lockstep.protocol.queue import MessageQueue

RECORD_OVERHEAD_BYTES = 384
"""What a record has beside body and user properties, at most about: its fixed fields, topic, UNIQ_KEY, key. For the in-flight limit."""


class Batch:
    """What was posted, each with the places of its messages in the user's list."""

    __slots__ = ("_count", "_places", "parcels")

    def __init__(self, count: int) -> None:
        self._count = count
        self._places: list[Sequence[int]] = []
        self.parcels: list[Parcel] = []

    def add(self, parcel: Parcel, places: Sequence[int]) -> None:
        self.parcels.append(parcel)
        self._places.append(places)

    async def results(self) -> list[SendResult]:
        """Wait for all of them; BatchSendError if any failed."""
        if len(self.parcels) == 1:
            try:
                only: list[SendResult] = await self.parcels[0].future
            except LockstepError as error:
                raise BatchSendError([error] * self._count) from error
            return only
        results: list[SendResult | None] = [None] * self._count
        errors: dict[int, Exception] = {}
        for parcel, places in zip(self.parcels, self._places, strict=True):
            try:
                answered = await parcel.future
            except LockstepError as error:
                errors.update((place, error) for place in places)
            else:
                for place, result in zip(places, answered, strict=True):
                    results[place] = result
        if errors:
            first = errors[min(errors)]
            raise BatchSendError([errors.get(place) or result for place, result in enumerate(results)]) from first  # type: ignore[misc]
        return results  # type: ignore[return-value]


def share_out(
    messages: Sequence[Message],
    sharding_key: str | None,
    sharding_keys: Sequence[str] | None,
    selector: Selector | None,
    arg: object,
    queue: MessageQueue | None,
) -> dict[tuple[str, object], tuple[Way, str | None, Sequence[int]]]:
    """(topic, what they have in common) → way, sharding key and places of the messages that go together, in the order of the first."""
    name = messages[0].topic
    if sharding_keys is None and selector is None and all(message.topic == name for message in messages):
        return {(name, None): (way_of(messages[0], sharding_key, None, None, queue), sharding_key, range(len(messages)))}
    ways: dict[tuple[str, object], tuple[Way, str | None, list[int]]] = {}
    for index, message in enumerate(messages):
        key = sharding_key if sharding_keys is None else sharding_keys[index]
        common = (message.topic, index if selector is not None else key)
        found = ways.get(common)
        if found is None:
            ways[common] = (way_of(message, key, selector, arg, queue), key, [index])
        else:
            found[2].append(index)
    return dict(ways)


def chunks(messages: Sequence[Message], config: ProducerConfig) -> list[tuple[int, int, int]]:
    """(begin, end, bytes held) of runs of messages that fit a frame."""
    sizes = [len(message.body) + len(message.stored_properties) + RECORD_OVERHEAD_BYTES for message in messages]
    total = sum(sizes)
    if len(messages) <= config.batch_count_max and total <= config.batch_bytes_max:
        return [(0, len(messages), total)]
    chunks, begin, held_bytes = [], 0, 0
    for index, size in enumerate(sizes):
        if index > begin and (held_bytes + size > config.batch_bytes_max or index - begin >= config.batch_count_max):
            chunks.append((begin, index, held_bytes))
            begin, held_bytes = index, 0
        held_bytes += size
    chunks.append((begin, len(messages), held_bytes))
    return chunks

"""The progress of one member of a broadcasting group, and the text of the file that stores it. Pure. RocketMQ: LocalFileOffsetStore.

    {"format": 1, "group": "prices", "starts": 3, "topics": {"orders": {"since": 1, "queues": {"broker-a:0": [1500, 0]}}}, "crc32": …}

The numbers of a queue are the next offset to consume, and the failed calls of the batch that begins there. They remain valid, like (queue,
offset) → message, even if a topic is deleted and created again. `since` is the layout counter at which the group's start policy was
applied, 0 if the topic did not exist then; queues that are added later begin at their first message after that. `starts` rises with each
start. `crc32` is that of the text without it.
"""

import json
import zlib
from dataclasses import dataclass
from typing import Any

from lockstep.protocol.topics.queue import MessageQueue

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SavedProgress:
    """The progress in one queue."""

    offset: int
    attempts: int


class LocalOffsets:
    """The progress of one member, by queue."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.starts = 0
        self._since: dict[str, int] = {}
        self._places: dict[MessageQueue, SavedProgress] = {}

    def place(self, queue: MessageQueue) -> SavedProgress | None:
        """Return the progress in a queue; None if this member has never had it."""
        return self._places.get(queue)

    def since(self, topic: str, counter: int) -> int:
        """Return the layout counter at which the start policy was first applied; record `counter` if it never was."""
        return self._since.setdefault(topic, counter)

    def set(self, queue: MessageQueue, place: SavedProgress) -> bool:
        """Set the progress in a queue. Return whether there was none before."""
        if self._places.get(queue) == place:
            return False
        self._places[queue] = place
        return True

    def encode(self) -> bytes:
        topics: dict[str, Any] = {topic: {"since": since, "queues": {}} for topic, since in sorted(self._since.items())}
        for queue in sorted(self._places):
            place = self._places[queue]
            topics[queue.topic]["queues"][f"{queue.broker_name}:{queue.queue_id}"] = [place.offset, place.attempts]
        return _signed({"format": FORMAT, "group": self.group, "starts": self.starts, "topics": topics})

    @classmethod
    def decode(cls, text: bytes, group: str) -> "LocalOffsets":
        """Parse the text. Raise ValueError, with the reason, if it was not written for this group."""
        try:
            plain = json.loads(text)
            del plain["crc32"]
        except (ValueError, UnicodeDecodeError, KeyError, AttributeError, TypeError, RecursionError):
            raise ValueError("it is not JSON that a consumer wrote") from None
        if text != _signed(plain):
            raise ValueError("its checksum is wrong: it was edited, or the disk lost a part")
        if plain.get("format") != FORMAT:
            raise ValueError(f"its format is {plain.get('format')!r}, expected {FORMAT}: a newer version wrote it")
        if plain.get("group") != group:
            raise ValueError(f"it belongs to group {plain.get('group')!r}")
        made = cls(group)
        made.starts = plain["starts"]
        for topic, entry in plain["topics"].items():
            made._since[topic] = entry["since"]
            for name, numbers in entry["queues"].items():
                broker, _, number = name.rpartition(":")
                made._places[MessageQueue(topic, broker, int(number))] = SavedProgress(*numbers)
        return made


def _text(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=True).encode()


def _signed(plain: dict[str, Any]) -> bytes:
    return _text({**plain, "crc32": zlib.crc32(_text(plain))}) + b"\n"

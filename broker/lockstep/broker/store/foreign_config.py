"""The files in which RocketMQ's brokers keep topics and progress: config/*.json, in the JSON of fastjson, whose keys may be bare numbers.

lockstep keeps the same in the log. It reads these files when it takes a directory over, and writes them for `lockstep store export`. The
content that it has read or written last is named in `lockstep/apache`; if the files differ from that, another broker has written them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lockstep.broker.store.errors import StoreCorruptError
from lockstep.protocol.crc import crc32

TOPICS, OFFSETS, GROUPS, DELAYS = "topics.json", "consumerOffset.json", "subscriptionGroup.json", "delayOffset.json"
FILES = (TOPICS, OFFSETS, GROUPS, DELAYS)
FORMAT = 1
COMPACTION = "COMPACTION"
PERM_READ, PERM_WRITE, PERM_INHERIT = 4, 2, 1
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,\s])-?[0-9]+(?=\s*:)', re.DOTALL)
"""A string, or a number that is a key. Strings are matched so that nothing within them is."""


class SmallFiles(Protocol):
    """The part of StoreDirectory that this module uses."""

    root: str
    own: str

    def read(self, path: str) -> bytes | None: ...

    def replace(self, path: str, *chunks: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class ForeignTopic:
    """An entry of topics.json."""

    topic: str
    read_queue_count: int
    write_queue_count: int
    perm: int
    compacted: bool = False
    """Whether the topic keeps the newest message of each key only, in files of its own."""

    @property
    def writable_count(self) -> int:
        return self.write_queue_count if self.perm & PERM_WRITE else 0


@dataclass(frozen=True, slots=True)
class ForeignConfig:
    """The content of config/*.json."""

    topics: dict[str, ForeignTopic] = field(default_factory=dict)
    offsets: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)
    """(group, topic) → queue id → offset of the next message."""
    consume_enabled: dict[str, bool] = field(default_factory=dict)
    """Group → whether it may consume."""
    delays: dict[int, int] = field(default_factory=dict)
    """Delay level → offset of the next message to deliver."""


def parse_fastjson(text: bytes) -> Any:
    """Return the value of a text of fastjson: JSON whose keys may be bare integers. Raise ValueError."""
    quoted = _TOKEN.sub(lambda found: found[0] if found[0].startswith('"') else f'"{found[0]}"', text.decode())
    return json.loads(quoted)


def _content(directory: SmallFiles, name: str) -> bytes | None:
    """Return the content of a file of config/, or None if there is none.

    RocketMQ's broker replaces a file by removing it first. If it is missing or empty, the copy of the one before counts, as for RocketMQ.
    """
    for path in (f"{directory.root}/config/{name}", f"{directory.root}/config/{name}.bak"):
        text = directory.read(path)
        if text is not None and text.strip():
            return text
    return None


def read_plain(directory: SmallFiles) -> dict[str, Any]:
    """Return name → content of those of FILES that exist. Raise StoreCorruptError, which names the file, if one can't be read."""
    found = {}
    for name in FILES:
        text = _content(directory, name)
        if text is None:
            continue
        try:
            value = parse_fastjson(text)
            if not isinstance(value, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise _unreadable(f"{directory.root}/config/{name}", error) from error
        found[name] = value
    return found


def read_config(directory: SmallFiles) -> ForeignConfig:
    """Return the content of config/*.json. A file that is missing is empty. Raise StoreCorruptError if one can't be read."""
    plain = read_plain(directory)
    config = ForeignConfig()
    name = TOPICS
    try:
        for topic, entry in plain.get(TOPICS, {}).get("topicConfigTable", {}).items():
            compacted = (entry.get("attributes") or {}).get("cleanup.policy") == COMPACTION
            counts = int(entry["readQueueNums"]), int(entry["writeQueueNums"])
            config.topics[topic] = ForeignTopic(topic, *counts, int(entry["perm"]), compacted)
        name = OFFSETS
        for key, offsets in plain.get(OFFSETS, {}).get("offsetTable", {}).items():
            topic, _, group = key.partition("@")
            config.offsets[group, topic] = {int(queue_id): int(offset) for queue_id, offset in offsets.items()}
        name = GROUPS
        for group, entry in plain.get(GROUPS, {}).get("subscriptionGroupTable", {}).items():
            config.consume_enabled[group] = bool(entry.get("consumeEnable", True))
        name = DELAYS
        for level, offset in plain.get(DELAYS, {}).get("offsetTable", {}).items():
            config.delays[int(level)] = int(offset)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(f"{directory.root}/config/{name}", error) from error
    return config


def _unreadable(path: str, error: Exception) -> StoreCorruptError:
    return StoreCorruptError(
        f"{path} can't be read ({type(error).__name__}: {error}): restore it, for example from {path}.bak, which RocketMQ keeps. "
        "Nothing was changed"
    )


def config_text(plain: Mapping[str, Any]) -> bytes:
    """Return the text of a file of config/, as fastjson writes it: keys that are numbers are bare."""
    return _text(plain, "\n").encode()


def _text(value: Any, line: str) -> str:
    if not isinstance(value, Mapping):
        return json.dumps(value)
    inner = f"{line}\t"
    rows = [f"{key if isinstance(key, int) else json.dumps(key)}:{_text(item, inner)}" for key, item in value.items()]
    return "{" + inner + f",{inner}".join(rows) + line + "}" if rows else "{}"


# -- which content is known ------------------------------------------------------------------------


def found_digests(directory: SmallFiles) -> dict[str, int]:
    """Return name → CRC-32 of the content of those of FILES that exist."""
    texts = {name: _content(directory, name) for name in FILES}
    return {name: crc32(text) for name, text in texts.items() if text is not None}


def known_digests(directory: SmallFiles) -> dict[str, int]:
    """Return name → CRC-32 of the files that this store has read or written last."""
    path = f"{directory.own}/apache"
    text = directory.read(path)
    if text is None:
        return {}
    try:
        plain = json.loads(text)
        if plain["format"] != FORMAT:
            raise ValueError(f"format {plain['format']}, this version knows {FORMAT}")
        return {str(name): int(crc) for name, crc in plain["config"].items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreCorruptError(f"{path} is damaged ({error}): remove it, and start with --adopt to read config/*.json again") from error


def save_known(directory: SmallFiles, digests: Mapping[str, int]) -> None:
    """Record, durably, that this store has the content of config/*.json."""
    directory.replace(f"{directory.own}/apache", json.dumps({"format": FORMAT, "config": dict(digests)}).encode())

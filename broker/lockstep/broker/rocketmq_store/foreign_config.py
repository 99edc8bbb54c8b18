"""The files in which RocketMQ's brokers keep topics and progress: config/*.json, in the JSON of fastjson, whose keys may be bare numbers.

lockstep keeps the same in the log. It reads these files when it takes a directory over, and writes them for `lockstep store export`. The
content that it has read or written last is named in `lockstep/apache`; if the files differ from that, another broker has written them.

    lockstep/apache    {"format": 1, "config": {file name: [CRC-32, …]}, "exported": whether an export wrote it, with no start since}
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
INT_MAX, OFFSET_MAX = (1 << 31) - 1, (1 << 63) - 1
PERM_READ, PERM_WRITE, PERM_INHERIT = 4, 2, 1
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,\s])-?[0-9]+(?=\s*:)', re.DOTALL)
"""A string, or a number that is a key. Strings are matched so that nothing within them is."""
_KEY = re.compile("-?[0-9]{1,19}")


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

    files: frozenset[str] = frozenset()
    """Those of FILES that exist, or whose copy counts."""
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
    path = f"{directory.root}/config/{name}"
    text = _text_of(directory, path) or _text_of(directory, f"{path}.bak")
    if not text and directory.read(path) is not None:
        raise StoreCorruptError(f"{path} is empty, and there is no copy in {path}.bak: restore it. Nothing was changed")
    return text or None


def _text_of(directory: SmallFiles, path: str) -> bytes:
    """Return the content of a file, empty if there is none. Raise StoreCorruptError if it is a directory."""
    try:
        text = directory.read(path) or b""
    except IsADirectoryError as error:
        raise StoreCorruptError(f"{path} is a directory, expected a file: remove it, or restore the file. Nothing was changed") from error
    return text if text.strip() else b""


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
    """Return the content of config/*.json. A file that is missing is empty. Raise StoreCorruptError if one can't be read.

    Values have the types and ranges of RocketMQ's, so that nothing that follows can fail for one that has not.
    """
    plain = read_plain(directory)
    config = ForeignConfig(frozenset(plain))
    name = TOPICS
    try:
        for topic, entry in plain.get(TOPICS, {}).get("topicConfigTable", {}).items():
            compacted = (entry.get("attributes") or {}).get("cleanup.policy") == COMPACTION
            read, write, perm = (_number(entry[field], 0, INT_MAX) for field in ("readQueueNums", "writeQueueNums", "perm"))
            config.topics[_encodable(topic)] = ForeignTopic(topic, read, write, perm, compacted)
        name = OFFSETS
        for key, offsets in plain.get(OFFSETS, {}).get("offsetTable", {}).items():
            topic, _, group = key.partition("@")
            config.offsets[_encodable(group), _encodable(topic)] = _offsets(offsets)
        name = GROUPS
        for group, entry in plain.get(GROUPS, {}).get("subscriptionGroupTable", {}).items():
            enabled = entry.get("consumeEnable", True)
            if not isinstance(enabled, bool):
                raise ValueError(f"consumeEnable of group {group} is {enabled!r:.40}: expected true or false")
            config.consume_enabled[_encodable(group)] = enabled
        name = DELAYS
        config.delays.update(_offsets(plain.get(DELAYS, {}).get("offsetTable", {})))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(f"{directory.root}/config/{name}", error) from error
    return config


def _number(value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"the number {value!r:.40}: expected {low} to {high}")
    return value


def _offsets(plain: Mapping[str, object]) -> dict[int, int]:
    """Return queue id, or level, → offset."""
    found = {}
    for key, offset in plain.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"the key {key!r:.40}: expected a number")
        found[_number(int(key), -INT_MAX, INT_MAX)] = _number(offset, -OFFSET_MAX, OFFSET_MAX)
    return found


def _encodable(name: str) -> str:
    """Return the name. Raise ValueError if it has half a surrogate pair, which no record and no response can have."""
    name.encode()
    return name


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


@dataclass(frozen=True, slots=True)
class KnownContent:
    """The content of config/*.json that this store has read or written (lockstep/apache)."""

    digests: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Name → CRC-32 of the content: of both the old and the new one while an export replaces the files."""
    exported: bool = False
    """Whether an export has written all of it, and this store has not been started since: what RocketMQ's broker makes of it continues the
    progress here. Else it may be behind.
    """

    def has(self, name: str, digest: int) -> bool:
        return digest in self.digests.get(name, ())


def found_digests(directory: SmallFiles) -> dict[str, int]:
    """Return name → CRC-32 of the content of those of FILES that exist and are not empty. A copy (.bak) does not count."""
    texts = {name: _text_of(directory, f"{directory.root}/config/{name}") for name in FILES}
    return {name: crc32(text) for name, text in texts.items() if text}


def known_content(directory: SmallFiles) -> KnownContent | None:
    """Return which content this store has read or written last, or None if no version that records it has started it."""
    path = f"{directory.own}/apache"
    text = directory.read(path)
    if text is None:
        return None
    try:
        plain = json.loads(text)
        if plain["format"] != FORMAT:
            raise ValueError(f"format {plain['format']}, this version knows {FORMAT}")
        digests = {str(name): tuple(int(crc) for crc in crcs) for name, crcs in plain["config"].items()}
        return KnownContent(digests, bool(plain["exported"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreCorruptError(
            f"{path} is damaged ({error}): restore it. If RocketMQ's broker has not run here since the last start, remove it instead"
        ) from error


def save_known(directory: SmallFiles, known: KnownContent) -> None:
    """Record, durably, that this store has this content of config/*.json."""
    plain = {"format": FORMAT, "config": known.digests, "exported": known.exported}
    directory.replace(f"{directory.own}/apache", json.dumps(plain).encode())

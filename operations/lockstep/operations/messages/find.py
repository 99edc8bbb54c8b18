"""Find messages by key or id in the logs of all brokers: the newest first, at most a given number."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lockstep.operations.admin_client import AdminClient, gather_results, within_patience
from lockstep.operations.progress import SearchProgress
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import ConfigError, RemoteProtocolError
from lockstep.protocol.headers.offsets import TIMESTAMP_MAX, QueryMessageHeader
from lockstep.protocol.messages.ids import is_unique_key, unique_key_time
from lockstep.protocol.messages.message import MessageExt, decode_messages
from lockstep.protocol.messages.properties import check_text
from lockstep.protocol.tags import TagFilter

BEFORE_BIRTH_MS = 1_000
AFTER_BIRTH_MS = 600_000
"""A message is stored soon after its producer made its id, by a clock that may be ahead."""
POSITION = re.compile(r"([a-zA-Z0-9._@-]{1,127}):(\d{0,19})", re.ASCII)
OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Criteria:
    """The conditions that a message must meet to be shown."""

    topic: str | None = None
    begin_ms: int = 0
    end_ms: int = TIMESTAMP_MAX
    """The store times, both included."""
    tags: str = "*"
    sharding_key: str | None = None
    body: str | None = None
    """A text that is in the body."""
    queue: tuple[str, int] | None = None
    """The broker and the number of the only queue that is searched."""
    offset_max: int | None = None
    """The last offset in each queue."""

    def has_queue(self, broker: str, queue_id: int) -> bool:
        """Return whether messages of this queue may be shown."""
        return self.queue is None or self.queue == (broker, queue_id)

    def accepts(self, message: MessageExt) -> bool:
        """Return whether the message is to be shown."""
        if not self.has_queue(message.broker_name, message.queue_id):
            return False
        if self.offset_max is not None and message.queue_offset > self.offset_max:
            return False
        if not self.begin_ms <= message.stored_ms <= self.end_ms or not TagFilter.parse(self.tags).matches_tag(message.tags):
            return False
        if self.sharding_key is not None and message.sharding_key != self.sharding_key:
            return False
        if self.body is None:
            return True
        try:
            return self.body.encode() in bytes(message.body)
        except RemoteProtocolError:
            return False  # it can't be decompressed


@dataclass(slots=True)
class Found:
    """The result of a search, also of one that was interrupted."""

    limit: int
    progress: SearchProgress
    messages: list[MessageExt] = field(default_factory=list)
    """The newest first."""
    cut: bool = False
    """Whether the limit was reached: older messages may match."""
    complete: bool = False
    """Whether everything was searched, or the limit was reached."""
    unread_bytes: int = 0
    """Bytes that the disks of the brokers could not read."""
    failed: dict[str, str] = field(default_factory=dict)
    """Broker → why its search has ended."""
    ended_early: bool = False
    """Whether a limit of time or size was reached."""
    unlooked: int = 0
    """Queues whose newest message was not read: they may have newer ones than those that were found."""
    older: str | None = None
    """Where the search of a topic with limits goes on; None if nothing is left, or queues were not looked at."""
    reached: dict[str, int | None] = field(default_factory=dict)
    """Broker → the log offset down to which its log was searched, or None if nothing was. Brokers that are done are left out."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Broker → the log offset after the newest message that was found and is not among the newest of all."""

    @property
    def positions(self) -> dict[str, int | None]:
        """Return where a search of logs goes on, as `find_key` takes it."""
        return {**self.reached, **self.left_out}

    def add(self, message: MessageExt) -> None:
        """Add a message, unless `limit` others are newer."""
        self.messages.append(message)
        self.messages.sort(key=lambda each: -each.stored_ms)
        if len(self.messages) > self.limit:
            self.leave_out(self.messages.pop())

    def leave_out(self, message: MessageExt) -> None:
        """Note that a message was found that is not among the newest: a search that goes on finds it again."""
        self.cut = True
        after = message.physical_offset + message.record_bytes
        self.left_out[message.broker_name] = max(after, self.left_out.get(message.broker_name, 0))


async def find_key(
    admin: AdminClient,
    found: Found,
    key: str,
    criteria: Criteria,
    *,
    unique: bool = False,
    recalled: bool = False,
    brokers: Sequence[BrokerAddress] | None = None,
    positions: Mapping[str, int | None] | None = None,
    patience_s: float | None = None,
) -> None:
    """Search the logs of `brokers`, or of all, for a key, or with `unique` for the id that a producer gave.

    Messages that wait for their delay or their next retry are found too, by the topic to which they go (waiting.py), and with `recalled`
    those that were recalled: `was_recalled` tells them from one another. With `positions`, as
    an earlier search has left them, only those brokers are searched, from there on. Messages are added to `found`, and where each
    broker was left and which ones failed, also if the search is cancelled. A broker that does not respond for `patience_s` has failed.
    Raises TransportError if no nameserver responds.
    """
    begin_ms, end_ms = criteria.begin_ms, criteria.end_ms
    header = QueryMessageHeader(criteria.topic, key, begin_timestamp=begin_ms, end_timestamp=end_ms, unique_key=unique, waiting=True)
    header = replace(header, recalled=recalled or None)
    async with admin.keep_connections():
        if brokers is None:
            brokers = await admin.brokers()
        if positions is not None:
            brokers = [each for each in brokers if each.name in positions]
        begun = {each.name: None if positions is None else positions[each.name] for each in brokers}
        found.reached = dict(begun)
        headers = {name: replace(header, cursor=position) for name, position in begun.items()}

        async def search(broker: BrokerAddress) -> None:
            searched = _search_broker(admin, broker, found, headers[broker.name], criteria, patience_s)
            found.failed.update((await gather_results({broker.name: searched})).failed)

        await asyncio.gather(*map(search, brokers))
    found.complete = not found.failed


async def find_id(
    admin: AdminClient,
    found: Found,
    message_id: str,
    criteria: Criteria,
    *,
    everywhere: bool = False,
    recalled: bool = False,
    brokers: Sequence[BrokerAddress] | None = None,
) -> None:
    """Search for the id that a producer gave a message: first near the time that it contains, and if nothing is there, everywhere.

    With `everywhere`, copies that were stored later are found too: retries, dead letters, replays. `recalled`: as `find_key` takes it.
    """
    if is_unique_key(message_id):
        message_id = message_id.upper()
        near = near_birth(message_id, criteria, admin.host.clock.wall_ms())
        if near is not None and not everywhere:
            await find_key(admin, found, message_id, near, unique=True, recalled=recalled, brokers=brokers)
            if found.messages:
                return
            found.failed.clear()
    await find_key(admin, found, message_id, criteria, unique=True, recalled=recalled, brokers=brokers)


def near_birth(message_id: str, criteria: Criteria, now_ms: int) -> Criteria | None:
    """Return the criteria with store times near the time that a producer's id contains; None if it contains none."""
    born_ms = unique_key_time(message_id, now_ms) if is_unique_key(message_id) else None
    if born_ms is None:
        return None
    begin_ms, end_ms = max(criteria.begin_ms, born_ms - BEFORE_BIRTH_MS), min(criteria.end_ms, born_ms + AFTER_BIRTH_MS)
    return replace(criteria, begin_ms=begin_ms, end_ms=end_ms)


async def _search_broker(
    admin: AdminClient,
    broker: BrokerAddress,
    found: Found,
    header: QueryMessageHeader,
    criteria: Criteria,
    patience_s: float | None,
) -> None:
    count = 0
    while True:
        reply, data = await within_patience(admin.query(broker, header), patience_s)
        for message in filter(criteria.accepts, decode_messages(data, broker.name)):
            if count < found.limit:
                found.add(message)
            else:
                found.leave_out(message)
            count += 1
        found.unread_bytes += reply.unread_bytes or 0
        found.progress.update(broker.name, reply.scanned_bytes or 0, reply.remaining_bytes or 0)
        if reply.next_cursor is None:
            del found.reached[broker.name]
            return
        found.reached[broker.name] = reply.next_cursor
        if count >= found.limit or broker.name in found.left_out:
            found.cut = True
            return
        header = replace(header, cursor=reply.next_cursor)


def format_positions(positions: Mapping[str, int | None]) -> str:
    """Return where a search goes on as text: broker-a:4096,broker-b:"""
    return ",".join(f"{name}:{'' if position is None else position}" for name, position in sorted(positions.items()))


def parse_positions(text: str) -> dict[str, int | None]:
    """Return what `format_positions` has made a text of. Raise ConfigError for any other text."""
    found: dict[str, int | None] = {}
    for part in text.split(","):
        match = POSITION.fullmatch(part)
        if match is None or int(match[2] or 0) > OFFSET_MAX:
            raise ConfigError(f"{text[:80]!r} is no place to go on from: expected BROKER:LOG_OFFSET, as the link to older messages has")
        found[match[1]] = int(match[2]) if match[2] else None
    return found


def check_key(name: str, key: str) -> None:
    """Raise ConfigError or LocalProtocolError for a text that can't be the key of a message. `name`: what it is called to the user."""
    check_text(name, key)
    if len(key.split()) != 1:
        raise ConfigError(f"{name} {key[:80]!r} is several words: a message with several keys has each of them, so search for one")

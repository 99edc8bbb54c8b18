"""Reads the stored messages of one queue, page by page, from an offset on. It commits nothing."""

from dataclasses import dataclass

from lockstep.operations.admin_client import AdminClient, within_patience
from lockstep.protocol.bodies import TAG, BrokerAddress
from lockstep.protocol.messages.message import MessageExt, decode_messages
from lockstep.protocol.names import READER_GROUP

PAGE_COUNT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Which messages the broker returns. It compares hashes of tags, so that other tags may pass."""

    tags: str = "*"
    expression_type: str = TAG
    key: str | None = None
    """Only messages with this sharding key; with an empty text only those that wait for the replay of parked keys of `group`."""
    group: str = READER_GROUP


@dataclass(frozen=True, slots=True)
class Page:
    """The result of one pull."""

    messages: list[MessageExt]
    """Those from the offset of the reader up to its end."""
    data: bytes
    """The records of all messages that were returned."""


class QueueReader:
    """Reads forwards from `offset` up to `end`, or to where nothing follows. The caller ends it earlier if its budget is spent.

    With `hold_ms` it follows the queue: it waits for new messages and does not end, and it goes back if the broker lost the end of its log.
    """

    def __init__(
        self,
        admin: AdminClient,
        broker: BrokerAddress,
        topic: str,
        queue_id: int,
        offset: int,
        end: int | None = None,
        pick: Pick = Pick(),
        *,
        count: int = PAGE_COUNT,
        patience_s: float | None = None,
        hold_ms: int = 0,
    ) -> None:
        """`count`: messages of one page at most. `patience_s`: after so long a broker that does not respond has failed. `hold_ms`: how long
        a page waits for new messages."""
        self.broker = broker
        """The broker at its present address."""
        self.offset = offset
        """The offset of the next page."""
        self.ended = False
        """Whether nothing follows."""
        self._admin = admin
        self._topic = topic
        self._queue_id = queue_id
        self._end = end
        self._pick = pick
        self._count = count
        self._patience_s = patience_s
        self._hold_ms = hold_ms

    async def next(self) -> Page | None:
        """Return the next page, which may be empty, and None after the last one. Raises the errors of requests to the broker."""
        if self.ended or (self._end is not None and self.offset >= self._end):
            return None
        pick, count = self._pick, self._count if self._end is None else min(self._count, self._end - self.offset)
        pulled = self._admin.pull(
            self.broker,
            self._topic,
            self._queue_id,
            self.offset,
            count,
            group=pick.group,
            tags=pick.tags,
            expression_type=pick.expression_type,
            key=pick.key,
            hold_ms=self._hold_ms,
        )
        data, following = await within_patience(pulled, self._patience_s)
        messages = [each for each in decode_messages(data, self.broker.name) if self._end is None or each.queue_offset < self._end]
        if self._hold_ms:
            self.offset = following
        else:
            begin, self.offset = self.offset, max(self.offset, following)
            self.ended = following <= begin
        return Page(messages, data)

    async def rest(self) -> list[MessageExt]:
        """Return the messages of all pages that are left."""
        found: list[MessageExt] = []
        while (page := await self.next()) is not None:
            found += page.messages
        return found

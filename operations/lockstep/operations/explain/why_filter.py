"""Whether the subscription of a group matches any of the last messages of a topic: one that is misspelt matches none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.messages.queue_reader import Pick, QueueReader
from lockstep.protocol.bodies import TAG, BrokerAddress, GroupStatus, Subscription
from lockstep.protocol.errors import RemoteProtocolError
from lockstep.protocol.tags import TagFilter
from lockstep.protocol.topics.queue import MessageQueue

COMPARED_MAX = 500
"""Messages of one queue that are compared with the subscription: its last ones."""
TAGS_READ = 16
"""Messages of one queue whose tags are read: its last ones."""
TAGS_MAX = 8
TAG_SHOWN = 40
"""Characters of a tag, or of an expression, that are shown."""


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A subscription that matches none of the last messages of a topic."""

    topic: str
    expression: str
    count: int
    """The number of messages that it was compared with."""
    tags: tuple[str | None, ...]
    """Tags of the last messages, or None for messages without one; empty for a subscription that is not one of tags."""


async def find_unmatched(
    admin: AdminClient,
    statuses: Mapping[str, GroupStatus],
    lines: Sequence[QueueLine],
    brokers: Mapping[str, BrokerAddress],
) -> dict[MessageQueue, Unmatched]:
    """Return by queue the subscriptions that match none of the last messages of the queues to which they apply.

    A queue is left out if something matches in one of those, nothing is stored, or a broker does not respond. Brokers may have different
    contracts of the group: each is compared.
    """
    wanted: dict[Subscription, list[QueueLine]] = {}
    for line in lines:
        contract = statuses[line.broker].contract if line.broker in statuses else None
        for subscription in () if contract is None or not line.reached or line.broker not in brokers else contract.subscriptions:
            if subscription.topic == line.topic and not _is_for_all(subscription):
                wanted.setdefault(subscription, []).append(line)

    async def compared(subscription: Subscription, queues: Sequence[QueueLine]) -> dict[MessageQueue, Unmatched]:
        unmatched = await _compare(admin, subscription, queues, brokers)
        return {} if unmatched is None else dict.fromkeys((line.queue for line in queues), unmatched)

    found = await gather_results({str(queues[0].queue): compared(each, queues) for each, queues in wanted.items()})
    return {queue: unmatched for each in found.values.values() for queue, unmatched in each.items()}


def _is_for_all(subscription: Subscription) -> bool:
    return subscription.expression_type in ("", TAG) and TagFilter.parse(subscription.expression).all


async def _compare(
    admin: AdminClient, subscription: Subscription, lines: Sequence[QueueLine], brokers: Mapping[str, BrokerAddress]
) -> Unmatched | None:
    """Compare the queues of one topic one after the other, until a message matches. Raise the errors of requests."""
    is_tags = subscription.expression_type in ("", TAG)
    compared = 0
    tags: dict[str | None, None] = {}
    for line in lines:
        broker, topic, queue_id = brokers[line.broker], line.topic, line.queue_id
        held = next((each for each in await admin.offsets(broker, topic) if each.queue_id == queue_id), None)
        if held is None or held.max_offset == held.min_offset:
            continue
        first = max(held.min_offset, held.max_offset - COMPARED_MAX)
        if await _any_matches(admin, subscription, broker, queue_id, first, held.max_offset):
            return None
        compared += held.max_offset - first
        if is_tags and len(tags) < TAGS_MAX:
            last = max(held.min_offset, held.max_offset - TAGS_READ)
            page = await QueueReader(admin, broker, topic, queue_id, last, count=TAGS_READ).next()
            newest = () if page is None else reversed(page.messages)
            tags |= dict.fromkeys(message.tags and message.tags[:TAG_SHOWN] for message in newest)
    if not compared:
        return None
    return Unmatched(subscription.topic, subscription.shown[:TAG_SHOWN], compared, tuple(tags)[:TAGS_MAX])


async def _any_matches(admin: AdminClient, subscription: Subscription, broker: BrokerAddress, queue_id: int, offset: int, end: int) -> bool:
    """Return whether any message of the queue from `offset` to `end` matches. The broker compares; it may pass another tag of the same
    hash, as it passes that to members."""
    tags = TagFilter.parse(subscription.expression) if subscription.expression_type in ("", TAG) else None
    pick = Pick(tags=subscription.expression, expression_type=subscription.expression_type or TAG)
    reader = QueueReader(admin, broker, subscription.topic, queue_id, offset, end, pick, count=1)
    while (page := await reader.next()) is not None:
        if any(tags is None or tags.matches_tag(message.tags) for message in page.messages):
            return True
    if reader.offset < end:
        raise RemoteProtocolError(f"a pull of {subscription.topic} from offset {reader.offset} returned no next offset above it")
    return False

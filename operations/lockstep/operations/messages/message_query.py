"""Find one message by its id: the position in a broker's log, or the id that its producer gave it."""

from collections.abc import Sequence

from lockstep.operations.admin_client import AdminClient, gather_results
from lockstep.operations.errors import OperationError, raise_if_incomplete
from lockstep.operations.messages.find import Criteria, Found, find_id
from lockstep.operations.progress import SearchProgress
from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import BrokerError, BrokerSystemError, RemoteProtocolError
from lockstep.protocol.messages.ids import is_derived_store_host, is_unique_key, parse_offset_message_id
from lockstep.protocol.messages.message import MessageExt, decode_messages
from lockstep.protocol.names import TIMER_TOPIC

PORT_MAX = 65_535
LOG_OFFSET_MAX = 1 << 48
"""A log offset above this (256 TiB) is no offset: the id is a producer's."""
OFFSET_ID_DIGITS = 32
FOUND_MAX = 100
"""Messages with one producer's id, the newest, of which the oldest is shown: a retry or a dead letter keeps the id."""


def place_of(message_id: str) -> tuple[str, int] | None:
    """Return (store host, log offset), or None for an id that a producer gave. Raise LocalProtocolError for text that is no message id."""
    if len(message_id) != OFFSET_ID_DIGITS and is_unique_key(message_id):
        return None
    host, offset = parse_offset_message_id(message_id)
    return (host, offset) if int(host.rpartition(":")[2]) <= PORT_MAX and 0 <= offset <= LOG_OFFSET_MAX else None


def brokers_to_search(brokers: Sequence[BrokerAddress], name: str | None) -> list[BrokerAddress]:
    """Return the broker `name`, or all if `name` is None. Raise OperationError if there is none."""
    if name is not None:
        named = [broker for broker in brokers if broker.name == name]
        if not named:
            known = ", ".join(broker.name for broker in brokers) or "none"
            raise OperationError(f"no broker is named {name!r}; the known brokers are {known}")
        return named
    if not brokers:
        raise OperationError("no broker has registered at the nameserver: start one first")
    return list(brokers)


async def find_by_id(admin: AdminClient, searched: Sequence[BrokerAddress], message_id: str) -> tuple[MessageExt, BrokerAddress]:
    """Return the message with this offset message id, or the first stored one with this producer's id, and its broker. It may be one that
    was recalled.

    Raise LocalProtocolError for text that is no message id, and OperationError if there is no such message, or several have the id.
    """
    place = place_of(message_id)
    if place is None:
        return await _find_by_producers_id(admin, searched, message_id)
    return await _find_by_offset_id(admin, searched, message_id.upper(), *place)


async def was_recalled(admin: AdminClient, broker: BrokerAddress, message: MessageExt) -> bool:
    """Return whether a message that `find_by_id` has returned waited for a delay or a time of day, and was recalled.

    Raises the errors of connections. Brokers know it for about a day after it would have been due.
    """
    if message.stored_topic != TIMER_TOPIC:
        return False
    try:
        await admin.view(broker, message.physical_offset, recalled=True)
    except BrokerError:
        return False
    return True


async def _view(admin: AdminClient, broker: BrokerAddress, offset: int) -> bytes:
    """Return the record at a position of a broker's log, also if its message was recalled."""
    try:
        return await admin.view(broker, offset)
    except BrokerSystemError as error:
        try:
            return await admin.view(broker, offset, recalled=True)
        except BrokerError:
            raise error from None


async def _find_by_producers_id(admin: AdminClient, searched: Sequence[BrokerAddress], message_id: str) -> tuple[MessageExt, BrokerAddress]:
    """Return the first stored message with this UNIQ_KEY and its broker. Raise OperationError if there is none."""
    found = Found(FOUND_MAX, SearchProgress(admin.host.clock, reporter=admin.reporter))
    await find_id(admin, found, message_id, Criteria(), recalled=True, brokers=searched)
    found.progress.end()
    if not found.messages:
        raise_if_incomplete(found.failed)
        raise OperationError(
            f"no message has the id {message_id}, which a producer gave ({found.progress.describe()} were searched): retention has removed "
            "it, or it was not stored"
        )
    message = found.messages[-1]
    return message, next(broker for broker in searched if broker.name == message.broker_name)


async def _find_by_offset_id(
    admin: AdminClient, searched: Sequence[BrokerAddress], message_id: str, host: str, offset: int
) -> tuple[MessageExt, BrokerAddress]:
    """Return the message with this id and its broker. Raise OperationError if there is none, or if several brokers have one."""
    results = await gather_results({broker.name: _view(admin, broker, offset) for broker in searched})
    reasons, found = dict(results.failed), list[tuple[MessageExt, BrokerAddress]]()
    for broker in searched:
        if broker.name in reasons:
            continue
        try:
            message = next(iter(decode_messages(results.values[broker.name], broker.name)), None)
        except RemoteProtocolError as error:
            reasons[broker.name] = str(error)
            continue
        if message is not None and message.offset_message_id == message_id:
            found.append((message, broker))
        else:
            reasons[broker.name] = "another message is there" if message is None else f"message {message.offset_message_id} is there"
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(broker.name for _, broker in found)
        raise OperationError(f"{len(found)} messages have the id {message_id}, at the brokers {names}: choose one with --broker")
    stored_by = f"the store with the id {host}" if is_derived_store_host(host) else f"the broker at {host}"
    why = "; ".join(f"{broker.name}: {reasons[broker.name]}" for broker in searched)
    raise OperationError(f"message {message_id}, stored by {stored_by} at log offset {offset}, was not found ({why})")

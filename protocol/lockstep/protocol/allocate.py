"""Which member owns which queue: one pure function, run by both ends. RocketMQ: AllocateMessageQueueStrategy.

    name                 RocketMQ's           rule
    by_broker                                 queue number g (its place in the layout) → members[g mod n] of THAT broker's list
    average              AVG                  a run of consecutive queues each, the first (queues mod n) members one more
    average_by_circle    AVG_BY_CIRCLE        the i-th member has queues i, i+n, i+2n …
    consistent_hash      CONSISTENT_HASH      ten places of each member on a ring of MD5; a queue goes to the next one clockwise
    machine_room         MACHINE_ROOM         of the brokers ROOM@NAME in the given rooms: a run each, what is left over one by one
    machine_room_nearby  MACHINE_ROOM_NEARBY  a room's queues among the members of that room, those of a room without any among all
    config               CONFIG               the queues that this member was given, whoever else is there

Members are sorted; all but by_broker sort the readable queues as RocketMQ does (topic, broker name, queue id) and use one broker's list
for all of them. With equal lists, and a layout in that order, by_broker equals average_by_circle.

An ordered group may use what follows from list, layout and contract alone, so that no two members can differ about a queue: not `config`,
which each member says for itself, and not `machine_room_nearby`, whose rooms are answered by functions of the user's.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5
from typing import TypeVar

from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.queue import MessageQueue, TopicLayout

BY_BROKER = "by_broker"
AVERAGE = "average"
AVERAGE_BY_CIRCLE = "average_by_circle"
CONSISTENT_HASH = "consistent_hash"
MACHINE_ROOM = "machine_room"
MACHINE_ROOM_NEARBY = "machine_room_nearby"
CONFIG = "config"
BY_HAND = "by_hand"
"""In a contract: the members take queues by themselves (PullConsumer.assign), nobody deals."""

STRATEGIES = (BY_BROKER, AVERAGE, AVERAGE_BY_CIRCLE, CONSISTENT_HASH)
"""Those that are a name and nothing more."""
ROCKETMQ_NAMES = {"AVG": AVERAGE, "AVG_BY_CIRCLE": AVERAGE_BY_CIRCLE, "CONSISTENT_HASH": CONSISTENT_HASH}
NOT_IN_ORDER = frozenset({CONFIG, MACHINE_ROOM_NEARBY, BY_HAND})
"""What ordered groups may not use."""

RING_PLACES = 10
"""Of each member on the ring. RocketMQ: AllocateMessageQueueConsistentHash.virtualNodeCnt."""
WORD_LENGTH_MAX = 255
"""Characters of a strategy in a contract."""


@dataclass(frozen=True, slots=True)
class ByConfig:
    """The queues of this member, for good: nobody checks that each queue is somebody's. RocketMQ: AllocateMessageQueueByConfig."""

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Only the queues of brokers named ROOM@NAME, in these rooms. RocketMQ: AllocateMessageQueueByMachineRoom.

    The rooms are part of the group's contract: with different ones, queues would be nobody's.
    """

    rooms: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.rooms or len(word_of(self)) > WORD_LENGTH_MAX or any(not room or set(room) & set("@,: ") for room in self.rooms):
            raise ConfigError(
                f"rooms {self.rooms!r}: expected one or more names, {WORD_LENGTH_MAX} characters in all, without blanks , : and @"
            )


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Each room's queues to the members of that room, by `within`. RocketMQ: AllocateMachineRoomNearby.

    `room_of_queue` (say, by its broker) and `room_of_member` (by its client id, `ip@pid#…`) answer a room's name, the same at every member:
    they must depend on nothing but their argument. An empty one, or an error, and the member keeps what it has.
    """

    room_of_queue: Callable[[MessageQueue], str]
    room_of_member: Callable[[str], str]
    within: str = AVERAGE

    def __post_init__(self) -> None:
        object.__setattr__(self, "within", ROCKETMQ_NAMES.get(self.within, self.within))
        if self.within not in STRATEGIES[1:]:
            raise ConfigError(f"within {self.within!r}: expected one of {', '.join(STRATEGIES[1:])}")


Strategy = str | ByConfig | ByMachineRoom | MachineRoomNearby


def check_strategy(strategy: Strategy) -> Strategy:
    """The strategy under our name for it. ConfigError for one that does not exist, or that a name alone does not say."""
    if not isinstance(strategy, str):
        if isinstance(strategy, ByConfig | ByMachineRoom | MachineRoomNearby):
            return strategy
        raise ConfigError(f"allocate {strategy!r}: expected a name, ByConfig, ByMachineRoom or MachineRoomNearby")
    name = ROCKETMQ_NAMES.get(strategy, strategy)
    if name in STRATEGIES:
        return name
    fuller = {CONFIG: "ByConfig((queue, …))", MACHINE_ROOM: "ByMachineRoom((room, …))", MACHINE_ROOM_NEARBY: "MachineRoomNearby(…)"}
    if name.lower() in fuller:
        raise ConfigError(f"allocate {strategy!r}: its name does not say all; use allocate={fuller[name.lower()]}")
    raise ConfigError(f"allocate {strategy!r}: expected one of {', '.join((*STRATEGIES, *fuller.values()))}")


def word_of(strategy: Strategy) -> str:
    """What a contract says of it: members must agree on that."""
    match strategy:
        case ByConfig():
            return CONFIG
        case ByMachineRoom(rooms):
            return f"{MACHINE_ROOM}: {', '.join(sorted(set(rooms)))}"
        case MachineRoomNearby(within=within):
            return f"{MACHINE_ROOM_NEARBY}: {within}"
        case _:
            return strategy


def may_order(word: str) -> bool:
    """Whether an ordered group may have it. `word` as in a contract."""
    return word.partition(":")[0] not in NOT_IN_ORDER


def allocate(strategy: Strategy, broker_name: str | None, layout: TopicLayout, members: Sequence[str], me: str) -> tuple[MessageQueue, ...]:
    """The queues that belong to `me` by this member list: those of one broker, or (None) of all. Not a member → none.

    Raises LocalProtocolError for a strategy that does not exist, and where a user's function of it fails.
    """
    if isinstance(strategy, ByConfig):
        mine = [queue for queue in dict.fromkeys(strategy.queues) if queue in layout.number_of]
    elif strategy == BY_BROKER and broker_name is not None:
        ordered = _ordered(tuple(members))
        numbers = layout.number_of
        return tuple(queue for queue in layout.queues_of(broker_name) if ordered and ordered[numbers[queue] % len(ordered)] == me)
    else:
        mine = [queue for queue, owner in _owners(strategy, layout, members) if owner == me]
    return tuple(queue for queue in mine if broker_name in (None, queue.broker_name))


def owner_of(layout: TopicLayout, queue: MessageQueue, members: Sequence[str], strategy: str = BY_BROKER) -> str | None:
    """The member to whom the list gives the queue; None where there is no member or the layout has no such readable queue."""
    if strategy != BY_BROKER:
        return next((owner for dealt, owner in _owners(strategy, layout, members) if dealt == queue), None)
    number = layout.number_of.get(queue)
    ordered = _ordered(tuple(members))
    return None if number is None or not ordered else ordered[number % len(ordered)]


Dealt = Iterable[tuple[MessageQueue, str]]
"""One pair at a time: who looks for one member's queues does not keep everybody's."""
T = TypeVar("T")


def _owners(strategy: str | ByMachineRoom | MachineRoomNearby, layout: TopicLayout, members: Sequence[str]) -> Dealt:
    if isinstance(strategy, str) and strategy not in STRATEGIES:
        raise LocalProtocolError(f"allocation strategy {strategy!r} does not exist: expected one of {', '.join(STRATEGIES)}")
    ordered = _ordered(tuple(members))
    if not ordered:
        return []
    if strategy == BY_BROKER:
        return _circle(layout.each_read_queue(), layout.read_total, ordered)
    queues = layout.each_read_queue(by_name=True)
    match strategy:
        case ByMachineRoom(rooms):
            names = [name for name in layout.read_brokers if _room_in_name(name) in rooms]
            count = sum(layout.read_count(name) for name in names)
            return _by_machine_room((queue for queue in queues if queue.broker_name in names), count, ordered)
        case MachineRoomNearby():
            return _nearby(strategy, queues, ordered)
        case _:
            return _DEAL[strategy](queues, layout.read_total, ordered)


def _average(queues: Iterable[MessageQueue], count: int, members: tuple[str, ...]) -> Dealt:
    size, rest = divmod(count, len(members))
    runs = (member for index, member in enumerate(members) for _ in range(size + (index < rest)))
    return zip(queues, runs, strict=True)


def _circle(queues: Iterable[MessageQueue], count: int, members: tuple[str, ...]) -> Dealt:
    return ((queue, members[number % len(members)]) for number, queue in enumerate(queues))


def _by_ring(queues: Iterable[MessageQueue], count: int, members: tuple[str, ...]) -> Dealt:
    places, owners = _ring(members)
    for queue in queues:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        yield queue, owners[bisect_left(places, _hash(text)) % len(owners)]


_DEAL: dict[str, Callable[[Iterable[MessageQueue], int, tuple[str, ...]], Dealt]] = {
    AVERAGE: _average,
    AVERAGE_BY_CIRCLE: _circle,
    CONSISTENT_HASH: _by_ring,
}


def _by_machine_room(queues: Iterable[MessageQueue], count: int, members: tuple[str, ...]) -> Dealt:
    size = count // len(members)
    dealt = size * len(members)
    return ((queue, members[number // size if number < dealt else number - dealt]) for number, queue in enumerate(queues))


def _nearby(strategy: MachineRoomNearby, queues: Iterable[MessageQueue], members: tuple[str, ...]) -> Dealt:
    by_room: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_room.setdefault(_room(strategy.room_of_queue, queue), []).append(queue)
    there: dict[str, list[str]] = {}
    for member in members:
        there.setdefault(_room(strategy.room_of_member, member), []).append(member)
    deal = _DEAL[strategy.within]
    return [pair for room in sorted(by_room) for pair in deal(by_room[room], len(by_room[room]), tuple(there.get(room, members)))]


def _room(of: Callable[[T], str], what: T) -> str:
    try:
        room = of(what)
    except Exception as error:  # listener: a user's function
        raise LocalProtocolError(f"the room of {what} is not known: {type(error).__name__}: {error}") from error
    if not isinstance(room, str) or not room:
        raise LocalProtocolError(f"the room of {what} is {room!r}: expected a name")
    return room


def _room_in_name(broker_name: str) -> str | None:
    room, at, _ = broker_name.partition("@")
    return room if at else None


@lru_cache(maxsize=256)
def _ordered(members: tuple[str, ...]) -> tuple[str, ...]:
    """A broker asks for queue after queue with one list."""
    return tuple(sorted(set(members)))


@lru_cache(maxsize=64)
def _ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Places on the ring, rising, and whose each is. RocketMQ: ConsistentHashRouter."""
    places = {_hash(f"{member}-{number}"): member for member in members for number in range(RING_PLACES)}
    return sorted(places), [places[at] for at in sorted(places)]


def _hash(text: str) -> int:
    """The first four bytes of the MD5. RocketMQ: ConsistentHashRouter.MD5Hash."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")

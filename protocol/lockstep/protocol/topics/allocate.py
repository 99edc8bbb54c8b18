"""Assign queues to the members of a group. Pure functions that clients and brokers share. RocketMQ: AllocateMessageQueueStrategy.

    name                 RocketMQ's           rule
    by_broker                                 queue number g (its index in the layout) → members[g mod n] of the list of the queue's broker
    average              AVG                  consecutive queues for each member; the first (queues mod n) members get one more
    average_by_circle    AVG_BY_CIRCLE        the i-th member has queues i, i+n, i+2n …
    consistent_hash      CONSISTENT_HASH      ten points per member on a ring of MD5 hashes; a queue goes to the next point clockwise
    machine_room         MACHINE_ROOM         of the brokers ROOM@NAME in the given rooms: consecutive queues each, the remainder one by one
    machine_room_nearby  MACHINE_ROOM_NEARBY  a room's queues go to the members of that room, or to all members if the room has none
    config               CONFIG               the queues that the member is configured with, independent of the other members

Members are sorted. All strategies but by_broker sort the readable queues as RocketMQ does (topic, broker name, queue id) and use one
broker's member list for all of them. With equal lists, and a layout in that order, by_broker equals average_by_circle.

An ordered group may use only strategies that depend on nothing but the member list, the layout and the contract, so that no two members
can disagree about the owner of a queue. `config` is excluded because each member declares its own queues, `machine_room_nearby` because
its rooms are computed by the user's functions.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import md5
from typing import TypeVar

from lockstep.protocol.errors import ConfigError, LocalProtocolError
from lockstep.protocol.object_text import text_of
from lockstep.protocol.topics.queue import MessageQueue, TopicLayout

BY_BROKER = "by_broker"
AVERAGE = "average"
AVERAGE_BY_CIRCLE = "average_by_circle"
CONSISTENT_HASH = "consistent_hash"
MACHINE_ROOM = "machine_room"
MACHINE_ROOM_NEARBY = "machine_room_nearby"
CONFIG = "config"
MANUAL = "by_hand"
"""In a contract: members assign queues to themselves (PullConsumer.assign); no strategy runs."""

STRATEGIES = (BY_BROKER, AVERAGE, AVERAGE_BY_CIRCLE, CONSISTENT_HASH)
"""Strategies that a name specifies completely."""
ROCKETMQ_NAMES = {"AVG": AVERAGE, "AVG_BY_CIRCLE": AVERAGE_BY_CIRCLE, "CONSISTENT_HASH": CONSISTENT_HASH}
NOT_FOR_ORDERED = frozenset({CONFIG, MACHINE_ROOM_NEARBY, MANUAL})
"""Strategies that ordered groups may not use."""

RING_POINTS = 10
"""Points of each member on the ring. RocketMQ: AllocateMessageQueueConsistentHash.virtualNodeCnt."""
SPEC_LENGTH_MAX = 255
"""The maximum number of characters of a strategy in a contract."""


@dataclass(frozen=True, slots=True)
class ByConfig:
    """Assigns a fixed set of queues to this member. RocketMQ: AllocateMessageQueueByConfig.

    Nothing checks that the members together cover all queues, or that they don't overlap.

    Args:
        queues: The queues of this member. Those that the topic's layout does not have are ignored.
    """

    queues: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Assigns the queues of the brokers named ROOM@NAME in the given rooms. RocketMQ: AllocateMessageQueueByMachineRoom.

    The rooms are part of the group's contract: if members had different rooms, some queues would have no owner.

    Args:
        rooms: The names of the rooms.

    Raises:
        ConfigError: If `rooms` is empty, has more than 255 characters in total, or a name contains a blank, comma, colon or @.
    """

    rooms: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.rooms or len(strategy_spec(self)) > SPEC_LENGTH_MAX or any(not room or set(room) & set("@,: ") for room in self.rooms):
            raise ConfigError(
                f"rooms {self.rooms!r}: expected one or more names, {SPEC_LENGTH_MAX} characters in all, without blanks , : and @"
            )


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Assigns the queues of a room to the members of that room. RocketMQ: AllocateMachineRoomNearby.

    Both functions must return the same room on every member, so they may depend on nothing but their argument. If one raises an error or
    returns an empty name, the member keeps its current queues.

    Args:
        room_of_queue: Returns the room of a queue, for example derived from its broker's name.
        room_of_member: Returns the room of a client id (`ip@pid#…`).
        within: The strategy inside a room: `average`, `average_by_circle` or `consistent_hash`.

    Raises:
        ConfigError: If `within` is another strategy.
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
    """Return the strategy under lockstep's name for it.

    Raises ConfigError for an unknown strategy, and for a name that needs parameters.
    """
    if not isinstance(strategy, str):
        if isinstance(strategy, ByConfig | ByMachineRoom | MachineRoomNearby):
            return strategy
        raise ConfigError(f"allocate {strategy!r}: expected a name, ByConfig, ByMachineRoom or MachineRoomNearby")
    name = ROCKETMQ_NAMES.get(strategy, strategy)
    if name in STRATEGIES:
        return name
    parameterized = {CONFIG: "ByConfig((queue, …))", MACHINE_ROOM: "ByMachineRoom((room, …))", MACHINE_ROOM_NEARBY: "MachineRoomNearby(…)"}
    if name.lower() in parameterized:
        raise ConfigError(f"allocate {strategy!r}: needs parameters: pass allocate={parameterized[name.lower()]}")
    raise ConfigError(f"allocate {strategy!r}: expected one of {', '.join((*STRATEGIES, *parameterized.values()))}")


def strategy_spec(strategy: Strategy) -> str:
    """Return the strategy as it is recorded in a contract: the part on which the members must agree."""
    match strategy:
        case ByConfig():
            return CONFIG
        case ByMachineRoom(rooms):
            return f"{MACHINE_ROOM}: {', '.join(sorted(set(rooms)))}"
        case MachineRoomNearby(within=within):
            return f"{MACHINE_ROOM_NEARBY}: {within}"
        case _:
            return strategy


def is_allowed_when_ordered(spec: str) -> bool:
    """Return whether an ordered group may use the strategy, given as in a contract."""
    return spec.partition(":")[0] not in NOT_FOR_ORDERED


def allocate(strategy: Strategy, broker_name: str | None, layout: TopicLayout, members: Sequence[str], me: str) -> tuple[MessageQueue, ...]:
    """Return the queues that the member list assigns to `me`: those of one broker, or of all brokers if `broker_name` is None.

    Return no queues if `me` is not in the list. Raise LocalProtocolError for an unknown strategy, or if one of the user's functions fails.
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
    """Return the member to which the list assigns the queue. Return None without members, or if the layout has no such readable queue."""
    if strategy != BY_BROKER:
        return next((owner for candidate, owner in _owners(strategy, layout, members) if candidate == queue), None)
    number = layout.number_of.get(queue)
    ordered = _ordered(tuple(members))
    return None if number is None or not ordered else ordered[number % len(ordered)]


Assignments = Iterable[tuple[MessageQueue, str]]
"""Assignments, one pair at a time: a caller that looks for one member's queues does not keep those of all members."""
T = TypeVar("T")


def _owners(strategy: str | ByMachineRoom | MachineRoomNearby, layout: TopicLayout, members: Sequence[str]) -> Assignments:
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
            return _ASSIGN[strategy](queues, layout.read_total, ordered)


def _average(queues: Iterable[MessageQueue], count: int, members: tuple[str, ...]) -> Assignments:
    size, rest = divmod(count, len(members))
    runs = (member for index, member in enumerate(members) for _ in range(size + (index < rest)))
    return zip(queues, runs, strict=True)


def _circle(queues: Iterable[MessageQueue], count: int, members: tuple[str, ...]) -> Assignments:
    return ((queue, members[number % len(members)]) for number, queue in enumerate(queues))


def _by_ring(queues: Iterable[MessageQueue], count: int, members: tuple[str, ...]) -> Assignments:
    points, owners = _ring(members)
    for queue in queues:
        text = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        yield queue, owners[bisect_left(points, _hash(text)) % len(owners)]


_ASSIGN: dict[str, Callable[[Iterable[MessageQueue], int, tuple[str, ...]], Assignments]] = {
    AVERAGE: _average,
    AVERAGE_BY_CIRCLE: _circle,
    CONSISTENT_HASH: _by_ring,
}


def _by_machine_room(queues: Iterable[MessageQueue], count: int, members: tuple[str, ...]) -> Assignments:
    size = count // len(members)
    even = size * len(members)
    return ((queue, members[number // size if number < even else number - even]) for number, queue in enumerate(queues))


def _nearby(strategy: MachineRoomNearby, queues: Iterable[MessageQueue], members: tuple[str, ...]) -> Assignments:
    by_room: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        by_room.setdefault(_room(strategy.room_of_queue, queue), []).append(queue)
    members_by_room: dict[str, list[str]] = {}
    for member in members:
        members_by_room.setdefault(_room(strategy.room_of_member, member), []).append(member)
    assign = _ASSIGN[strategy.within]
    return [
        pair for room in sorted(by_room) for pair in assign(by_room[room], len(by_room[room]), tuple(members_by_room.get(room, members)))
    ]


def _room(of: Callable[[T], str], what: T) -> str:
    try:
        room = of(what)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # listener: a user's function
        raise LocalProtocolError(f"can't get the room of {what}: {text_of(error)}") from error
    if not isinstance(room, str) or not room:
        raise LocalProtocolError(f"the room of {what} is {room!r}: expected a name")
    return room


def _room_in_name(broker_name: str) -> str | None:
    room, at, _ = broker_name.partition("@")
    return room if at else None


@lru_cache(maxsize=256)
def _ordered(members: tuple[str, ...]) -> tuple[str, ...]:
    """Return the members sorted, cached: a broker calls this for queue after queue with the same list."""
    return tuple(sorted(set(members)))


@lru_cache(maxsize=64)
def _ring(members: tuple[str, ...]) -> tuple[list[int], list[str]]:
    """Return the points on the ring in ascending order and the owner of each. RocketMQ: ConsistentHashRouter."""
    owner_at = {_hash(f"{member}-{number}"): member for member in members for number in range(RING_POINTS)}
    return sorted(owner_at), [owner_at[point] for point in sorted(owner_at)]


def _hash(text: str) -> int:
    """Return the first four bytes of the MD5. RocketMQ: ConsistentHashRouter.MD5Hash."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")

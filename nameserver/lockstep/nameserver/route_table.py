"""Which brokers live, at which addresses, and every topic's layout. RocketMQ: RouteInfoManager.

Pure: connections are ints, time is `now_ms` of a monotonic clock. One broker name, one record:

    state         event                                          next
    ------------  ---------------------------------------------  -------------------------------------------------------------
    (unknown)     REGISTER                                       registered; *learning* where the answer carries layouts
    learning      REGISTER with every layout                     registered and routed
    registered    REGISTER same store and term                   registered: heard again, bound to the connection that carried it
    registered    REGISTER same store, higher term               registered: replaced
    registered    REGISTER other store | lower term | copy       refused (BROKER_NAME_TAKEN), nothing changes
    registered    close of its connection, UNREGISTER, silence   unregistered: the last address stays, marked so
    unregistered  REGISTER (same store: term not lower)          registered

A learning broker lacks layouts that this table has: it adopts them before it is routed, so that whoever finds it here also finds
there every topic of the cluster.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lockstep.protocol.bodies import BrokerAddress, TopicRoute
from lockstep.protocol.errors import BrokerNameTaken, LocalProtocolError, RemoteProtocolError
from lockstep.protocol.layouts import LayoutTable, check_layout
from lockstep.protocol.queue import TopicLayout

INTERNAL = "internal"
"""The listener name that every broker registers and that answers where no other fits."""
SILENCE_MS = 120_000
"""A broker registers every 30 s: four in a row are missing. RocketMQ's figure."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself in REGISTER_BROKER."""

    name: str
    cluster: str
    store_id: str
    term: int
    listeners: dict[str, str]
    """Listener name → host:port that clients shall dial."""
    layouts: tuple[TopicLayout, ...] = ()

    @property
    def address(self) -> str:
        return self.listeners[INTERNAL]

    def at(self, listener: str) -> str:
        return self.listeners.get(listener) or self.address


@dataclass(frozen=True, slots=True)
class RouteChange:
    """What one registration did."""

    missing: tuple[TopicLayout, ...]
    """Every layout of which the broker sent none or a lower one: the answer's body."""
    adopted: tuple[str, ...]
    """Topics whose layout this table took from the broker."""
    joined: bool
    """The broker was not registered before, or came back under a higher term or another store."""
    routed: bool
    """Clients see it as registered: it has every layout."""
    superseded: int | None
    """The connection that spoke for this broker until now; its close means nothing any more."""


@dataclass(slots=True)
class _Broker:
    said: Registration
    connection: int | None
    """None: not registered."""
    heard_ms: int
    routed: bool


class RouteTable:
    def __init__(self, *, silence_ms: int = SILENCE_MS) -> None:
        self.layouts = LayoutTable()
        self.ready = False
        """A broker has registered since the start. One is enough to know every topic."""
        self._silence_ms = silence_ms
        self._brokers: dict[str, _Broker] = {}

    def register(self, said: Registration, connection: int, now_ms: int) -> RouteChange:
        """Take a broker's word; raises BrokerNameTaken (nothing changes) and RemoteProtocolError."""
        if not said.listeners.get(INTERNAL):
            raise RemoteProtocolError(f"broker {said.name!r} registers no listener named {INTERNAL!r}: {sorted(said.listeners)}")
        known = self._brokers.get(said.name)
        if known is not None:
            _refuse_taken(known, said)
        self._check_layouts(said)
        adopted = tuple(layout.topic for layout in said.layouts if self.layouts.adopt(layout))
        missing = self.layouts.newer_than(said.layouts)
        joined = known is None or known.connection is None or (known.said.store_id, known.said.term) != (said.store_id, said.term)
        superseded = known.connection if known is not None and known.connection != connection else None
        was_routed = known is not None and known.routed and not joined
        # The layouts went to `self.layouts`: kept here once more they would double the memory of a nameserver.
        self._brokers[said.name] = _Broker(replace(said, layouts=()), connection, now_ms, was_routed or not missing)
        self.ready = True
        return RouteChange(missing, adopted, joined, was_routed or not missing, superseded)

    def _check_layouts(self, said: Registration) -> None:
        """Every layout that would be taken, before one is: all brokers would adopt it, and every client build its queues."""
        for layout in said.layouts:
            if self.layouts.wants(layout):
                try:
                    check_layout(layout)
                except LocalProtocolError as error:
                    raise RemoteProtocolError(f"broker {said.name!r} registers a layout that can't be: {error}") from None

    def unregister(self, name: str, store_id: str, term: int, connection: int) -> bool:
        """A broker says goodbye on the connection that speaks for it; anyone else's (a refused copy's) means nothing: False."""
        known = self._brokers.get(name)
        if known is None or known.connection != connection or (known.said.store_id, known.said.term) != (store_id, term):
            return False
        _leave(known)
        return True

    def connection_closed(self, connection: int) -> tuple[str, ...]:
        """Unregister at once the brokers that this connection spoke for; their names."""
        gone = [known for known in self._brokers.values() if known.connection == connection]
        for known in gone:
            _leave(known)
        return tuple(known.said.name for known in gone)

    def expire(self, now_ms: int) -> dict[str, int]:
        """Unregister whoever has been silent for `silence_ms`; name → the connection to close."""
        silent = {
            name: known.connection
            for name, known in self._brokers.items()
            if known.connection is not None and now_ms - known.heard_ms >= self._silence_ms
        }
        for name in silent:
            _leave(self._brokers[name])
        return silent

    def route(self, topic: str, listener: str) -> TopicRoute | None:
        """The whole layout, and every address known of its brokers; None where no live topic has this name."""
        layout = self.layouts.get(topic)
        if layout is None or layout.deleted:
            return None
        return TopicRoute(layout, self._addresses(dict.fromkeys(entry.broker_name for entry in layout.entries), listener))

    def brokers(self, listener: str) -> tuple[BrokerAddress, ...]:
        """Every broker ever registered here, sorted by name."""
        return self._addresses(sorted(self._brokers), listener)

    def registered(self) -> tuple[str, ...]:
        """Names of the brokers registered now, sorted."""
        return tuple(sorted(name for name, known in self._brokers.items() if known.connection is not None))

    def _addresses(self, names: Iterable[str], listener: str) -> tuple[BrokerAddress, ...]:
        return tuple(_address(self._brokers[name], listener) for name in names if name in self._brokers)


def _address(known: _Broker, listener: str) -> BrokerAddress:
    said = known.said
    return BrokerAddress(said.name, said.cluster, said.at(listener), known.routed, said.term)


def _leave(known: _Broker) -> None:
    known.connection = None
    known.routed = False


def _refuse_taken(known: _Broker, said: Registration) -> None:
    before, live = known.said, known.connection is not None
    name, where = said.name, f"{'registered' if live else 'last registered'} from {before.address}"
    if said.store_id != before.store_id:
        if live:
            raise BrokerNameTaken(
                f"broker name {name!r} is {where} with store {before.store_id[:8]}; the one at {said.address} has store "
                f"{said.store_id[:8]}: give it another name and a store of its own, or stop the other broker first"
            )
    elif said.term < before.term or (said.term == before.term and live and said.address != before.address):
        raise BrokerNameTaken(
            f"store {said.store_id[:8]} of broker {name!r} is {where} with term {before.term}; the one at {said.address} has the "
            f"same store with term {said.term}: one of them runs on a copy. Stop that one, and give it a name and an empty store of its own"
        )

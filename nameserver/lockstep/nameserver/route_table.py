"""Which brokers live, at which addresses, and every topic's layout. RocketMQ: RouteInfoManager.

Pure: connections are ints, time is `now_ms` of a monotonic clock. One broker name, one record:

    state         event                                            next
    ------------  -----------------------------------------------  -----------------------------------------------------------
    (unknown)     REGISTER, fewer than 1,024 names                 registered; *learning* where the answer carries layouts
    learning      REGISTER with every layout                       registered and routed
    registered    REGISTER of the same start                       registered: heard again, bound to the connection that carried it
    registered    REGISTER of another start or store               challenged: the incumbent is asked for an answer
    challenged    answer or REGISTER of the incumbent              registered; challengers are refused for 5 s
    challenged    REGISTER of a challenger, within 5 s             challenged; the challenger is told to try again (pending)
    challenged    REGISTER of a challenger, after 5 s of silence   registered: the challenger replaces the incumbent (`listened`)
    registered,   close of its connection, UNREGISTER, silence     unregistered: the last address stays, marked so; forgotten if it
    challenged                                                     was never routed
    unregistered  REGISTER                                         registered
    unregistered  7 days without a route that named it             forgotten
    any           REGISTER of the same store that is out of line   refused (BROKER_NAME_TAKEN), nothing changes
    registered    REGISTER of the owner, which is not registered   registered: the owner replaces the incumbent at once

*The owner* of a name is the first store that registered it with a proof. It stays the owner until it has not been registered for 7 days,
or another store has been registered with its proof for an hour without interruption; then the store that is registered becomes it. Until
then any other store, or a start without the proof, may use the name while the owner is not registered, neither changes which terms of the
owner are accepted, and clients are given the owner's term with its address.

*The same start*: store, proof, term and address are equal. While a registered broker answers, no other start takes its name, whatever its
term. A challenge is how the table finds out: the machine of the incumbent may have vanished without closing its connection. Its 5 s are
counted by `listened`, in time in which this process has read what arrived: while the process stands still, the answer waits in the socket.

*Out of line*: the registration is of the owner or of the store that was accepted last, and its term is lower than the one accepted of that
store, or it is higher but the store's previous term is lower: that store has not seen the start that was accepted last. It is a copy, a
restored backup, or the original of a copy that has run meanwhile. The owner is compared with its own starts alone.

A learning broker lacks layouts that this table has: it adopts them before it is routed, so that a client that finds it here also finds
there every topic of the cluster. A broker that takes no more topics says so (`full`) and is routed without them. A registration of many
layouts comes in parts, each a request; it counts with its last part. How many topics a broker may bring: room.py.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from lockstep.nameserver.topic_quota import LAYOUTS_MAX, SILENCE_MS, TopicQuota
from lockstep.protocol.bodies import BrokerAddress, RefusedLayout, TopicRoute
from lockstep.protocol.errors import (
    BrokerNameTakenError,
    LocalProtocolError,
    RegistrationPendingError,
    RemoteProtocolError,
    ServiceNotAvailableError,
)
from lockstep.protocol.layouts import ENTRIES_MAX, PART_LAYOUTS_MAX, LayoutTable, check_layout, is_higher, iter_layout_parts
from lockstep.protocol.names import TOPIC_BYTES_MAX
from lockstep.protocol.queue import TopicLayout

INTERNAL = "internal"
"""The listener name that every broker registers and that answers where no other fits."""
CHALLENGE_MS = 5_000
"""How long an incumbent has to answer before a challenger replaces it, and how long its answer counts."""
LISTEN_MS = 100
"""Challenges are counted down in slices of this length. A challenge may begin within a slice, so one slice more is waited for."""
BROKERS_MAX = 1_024
"""Names of brokers, registered or remembered."""
OWNER_MS = 3_600_000
"""A store that has been registered with its proof for so long without interruption becomes the owner: the owner's disk was replaced."""
FORGET_MS = 7 * 86_400_000
"""An unregistered broker is remembered so long after the last route that named it, or after it left, whichever is later: clients may
still dial an address that they learned then."""
PARTS_MAX = 64
"""Of one registration: 262,144 layouts."""
ARRIVING_MAX = 64
"""Registrations of several parts that may arrive at once. One more takes the place of the one that began first."""
ARRIVING_MS = 30_000
"""One that is not complete so long after its connection sent the first part 0 is given up."""
REFUSED_MAX = 1_024
"""Layouts of one registration that are named as left out. The others are counted."""


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
    proof: str | None = field(default=None, repr=False)
    """The store's secret; None: the broker is of an earlier version. Never disclosed."""
    previous_term: int | None = None
    """Of the store's start before this one; None: the broker is of an earlier version."""
    part: int = 0
    parts: int = 1
    full: bool = False
    """The broker takes no more topics: it lacks only newer layouts of those that it has."""

    @property
    def address(self) -> str:
        return self.listeners[INTERNAL]

    def at(self, listener: str) -> str:
        return self.listeners.get(listener) or self.address

    def same_store(self, other: "Registration") -> bool:
        """Whether both are of one store. A broker of an earlier version has no proof: its id counts alone."""
        return self.store_id == other.store_id and (self.proof == other.proof or None in (self.proof, other.proof))

    def proves(self, owner: "Registration | None") -> bool:
        """Whether this is a registration of the owner, with its proof."""
        if owner is None or self.proof is None:
            return False
        return (self.store_id, self.proof) == (owner.store_id, owner.proof)

    def same_start(self, other: "Registration") -> bool:
        """Whether both are of one start of one store: a broker that registers again."""
        return (self.store_id, self.proof, self.term, self.address) == (other.store_id, other.proof, other.term, other.address)


@dataclass(frozen=True, slots=True)
class RouteChange:
    """What one registration, or one part of it, did."""

    missing: tuple[TopicLayout, ...]
    """Layouts of which the broker sent none or a lower one, as many as one body holds: the answer's body."""
    adopted: tuple[str, ...]
    """Topics whose layout this table took from the broker."""
    joined: bool
    """The broker was not registered before, or came back under a higher term or another store."""
    routed: bool
    """Clients see it as registered: it has every layout."""
    superseded: int | None
    """The connection that spoke for this broker until now; its close means nothing any more."""
    refused: tuple[RefusedLayout, ...] = ()
    """Layouts that were left out, the first 1,024 of a registration; the others count."""
    refused_more: int = 0
    """How many more of this part were left out."""


@dataclass(slots=True)
class _Broker:
    said: Registration
    connection: int | None
    """None: not registered."""
    heard_ms: int
    since_ms: int
    """Since when the store is registered without interruption."""
    routed: bool
    was_routed: bool
    """Routed at any time since this record began."""
    named_ms: int | None = None
    """When a route named it last; None: none has."""
    challenge_left_ms: int | None = None
    """How long an answer is still awaited; None: none is. At 0 the next challenger replaces this broker."""
    answered_ms: int | None = None
    """When it last answered a challenge."""
    owner: Registration | None = None
    """The owner's registration that was accepted last; None: no store has registered the name with a proof."""
    owner_heard_ms: int = 0
    """When the owner was registered last."""

    @property
    def used_ms(self) -> int:
        """When an address of it was last given out, or it left."""
        return max(self.heard_ms, self.named_ms or 0)


@dataclass(slots=True)
class _Arriving:
    """A registration of which parts have come."""

    said: Registration
    theirs: dict[str, TopicLayout]
    """What the broker has of the topics that this table has: our layout where it is equal or was taken, else its own version without
    entries."""
    refused_count: int
    began_ms: int
    """When the connection sent the first part 0 since its last complete registration: sending part 0 again does not renew it."""


class RouteTable:
    """The records of all brokers, and the layouts of all topics."""

    def __init__(self, *, silence_ms: int = SILENCE_MS) -> None:
        self.layouts = LayoutTable()
        self._room = TopicQuota()
        self.ready = False
        """A broker has registered since the start. One is enough to know every topic."""
        self._silence_ms = silence_ms
        self._brokers: dict[str, _Broker] = {}
        self._arriving: dict[int, _Arriving] = {}
        """Connection → the registration of which parts have come there."""
        self._to_challenge: list[tuple[str, int]] = []

    def register(self, said: Registration, connection: int, now_ms: int) -> RouteChange:
        """Accepts a broker's registration, or one part of it.

        Raises BrokerNameTakenError and RegistrationPendingError (see the table), ServiceNotAvailableError where there are too many names,
        and RemoteProtocolError. Then nothing has changed, but for `take_challenges`.
        """
        if not said.listeners.get(INTERNAL):
            raise RemoteProtocolError(f"broker {said.name!r} registers no listener named {INTERNAL!r}: {sorted(said.listeners)}")
        known = self._brokers.get(said.name)
        if known is None:
            self._make_room(said.name)
        else:
            self._check_line(known, said)
            displaces = said.proves(known.owner) and not known.said.proves(known.owner)
            if known.connection not in (None, connection) and not known.said.same_start(said) and not displaces:
                self._check_challenge(known, said, now_ms)
        arriving = self._arrive(said, connection, now_ms)
        already = arriving.refused_count
        adopted, refused = self._take_layouts(arriving, said)
        refused_more = arriving.refused_count - already - len(refused)
        if said.part < said.parts - 1:
            self._arriving[connection] = arriving
            routed = known is not None and known.routed
            return RouteChange((), adopted, False, routed, None, refused, refused_more)
        missing = tuple(next(iter_layout_parts(self._missing(arriving.theirs, full=said.full))))
        joined = known is None or known.connection is None or not known.said.same_start(said)
        superseded = known.connection if known is not None and known.connection != connection else None
        routed = (known is not None and known.routed and not joined) or not missing
        was_routed = routed or (known is not None and known.was_routed)
        named_ms = None if known is None else known.named_ms
        # The layouts went to `self.layouts`: kept here once more they would double the memory of a nameserver.
        goes_on = (
            known is not None and known.connection is not None and (known.said.store_id, known.said.proof) == (said.store_id, said.proof)
        )
        since_ms = known.since_ms if known is not None and goes_on else now_ms
        accepted = _Broker(replace(said, layouts=()), connection, now_ms, since_ms, routed, was_routed, named_ms)
        accepted.owner, accepted.owner_heard_ms = _owner(known, accepted)
        self._brokers[said.name] = accepted
        self.ready = True
        return RouteChange(missing, adopted, joined, routed, superseded, refused, refused_more)

    def forget_deletions(self, counter_max: int) -> int:
        """Forgets the deleted topics whose deletion has at most this counter; returns how many."""
        gone = self.layouts.deletions(counter_max)
        self._forget(gone)
        return len(gone)

    def take_challenges(self) -> list[tuple[str, int]]:
        """(broker name, connection) of incumbents to ask for an answer now; report answers to `answered`."""
        taken, self._to_challenge = self._to_challenge, []
        return taken

    def answered(self, name: str, connection: int, now_ms: int) -> None:
        """The incumbent has answered a challenge on its connection."""
        known = self._brokers.get(name)
        if known is not None and known.connection == connection:
            known.challenge_left_ms, known.answered_ms = None, now_ms

    def listened(self, ms: int) -> bool:
        """Counts `ms` milliseconds in which this process has read all that arrived; returns whether an answer is still awaited."""
        awaited = False
        for known in self._brokers.values():
            if known.challenge_left_ms:
                known.challenge_left_ms = max(0, known.challenge_left_ms - ms)
                awaited = awaited or known.challenge_left_ms > 0
        return awaited

    def stood_still(self, pause_ms: int, now_ms: int) -> None:
        """This process stood still for `pause_ms`: it read nothing in that time, so that it does not count as silence of a broker."""
        for known in self._brokers.values():
            if known.connection is not None:
                known.heard_ms = min(known.heard_ms + pause_ms, now_ms)
                known.since_ms = min(known.since_ms + pause_ms, now_ms)
        for arriving in self._arriving.values():
            arriving.began_ms = min(arriving.began_ms + pause_ms, now_ms)
        self._room.stood_still(pause_ms, now_ms)

    def unregister(self, name: str, store_id: str, term: int, connection: int) -> bool:
        """Unregisters a broker on the connection that registered it; False for any other connection (of a refused copy), store or term."""
        known = self._brokers.get(name)
        if known is None or known.connection != connection or (known.said.store_id, known.said.term) != (store_id, term):
            return False
        self._leave(known)
        return True

    def connection_closed(self, connection: int) -> tuple[str, ...]:
        """Unregister at once the brokers that this connection spoke for; their names."""
        self._arriving.pop(connection, None)
        gone = [known for known in self._brokers.values() if known.connection == connection]
        for known in gone:
            self._leave(known)
        return tuple(known.said.name for known in gone)

    def expire(self, now_ms: int) -> dict[str, int]:
        """Unregister brokers that have been silent for `silence_ms`; name → the connection to close. Forget those that are not needed.

        It also makes stores the owners of their names that have been registered for OWNER_MS, and forgets topics that only brokers have
        brought which are forgotten.
        """
        silent = {
            name: known.connection
            for name, known in self._brokers.items()
            if known.connection is not None and now_ms - known.heard_ms >= self._silence_ms
        }
        for name in silent:
            self._leave(self._brokers[name])
        for connection in [each for each, arriving in self._arriving.items() if now_ms - arriving.began_ms >= ARRIVING_MS]:
            del self._arriving[connection]
        for name in [name for name, known in self._brokers.items() if known.connection is None and now_ms - known.used_ms >= FORGET_MS]:
            del self._brokers[name]
        for known in self._brokers.values():
            replaced = known.connection is not None and known.said.proof is not None and not known.said.proves(known.owner)
            if now_ms - known.owner_heard_ms >= FORGET_MS or (replaced and now_ms - known.since_ms >= OWNER_MS):
                known.owner, known.owner_heard_ms = _owner(None, known)
        self._forget(self._room.expire(self._brokers, now_ms))
        return silent

    def route(self, topic: str, listener: str, now_ms: int) -> TopicRoute | None:
        """The whole layout, and every address known of its brokers; None where no live topic has this name."""
        layout = self.layouts.get(topic)
        if layout is None or layout.deleted:
            return None
        names = [name for name in dict.fromkeys(entry.broker_name for entry in layout.entries) if name in self._brokers]
        for name in names:
            self._brokers[name].named_ms = now_ms
        return TopicRoute(layout, self._addresses(names, listener))

    def brokers(self, listener: str) -> tuple[BrokerAddress, ...]:
        """Every broker known here, sorted by name."""
        return self._addresses(sorted(self._brokers), listener)

    def registered(self) -> tuple[str, ...]:
        """Names of the brokers registered now, sorted."""
        return tuple(sorted(self._registered()))

    # ------------------------------------------------------------------------------------------------------------- admission

    def _make_room(self, name: str) -> None:
        """Makes room for one more name by forgetting the unregistered broker that left first, of those that no route has named."""
        if len(self._brokers) < BROKERS_MAX:
            return
        unused = [known for known in self._brokers.values() if known.connection is None and known.named_ms is None]
        if not unused:
            raise ServiceNotAvailableError(
                f"broker {name!r} was not registered: this nameserver knows {BROKERS_MAX} brokers, no more are allowed"
            )
        del self._brokers[min(unused, key=lambda known: known.heard_ms).said.name]

    def _check_line(self, known: _Broker, said: Registration) -> None:
        """BrokerNameTakenError for a store that is out of line."""
        owner = known.owner
        earlier = (owner,) if owner is not None and said.proves(owner) else (known.said, owner)
        for before in earlier:
            if before is None or not said.same_store(before):
                continue
            registered = known.connection is not None and known.said.same_start(before)
            same = _out_of_line(before, said, registered=registered)
            if said.term < before.term:
                raise BrokerNameTakenError(f"{same} with term {said.term}, which is older. {_COPY_ADVICE}")
            if said.term == before.term and said.address != before.address and not registered:
                raise BrokerNameTakenError(f"{same} with the same term {said.term}. {_COPY_ADVICE}")
            if said.term > before.term and said.previous_term is not None and said.previous_term < before.term:
                raise BrokerNameTakenError(
                    f"{same} with term {said.term}, and its term before that was {said.previous_term}: it has not seen term {before.term}. "
                    f"{_COPY_ADVICE}"
                )

    def _check_challenge(self, known: _Broker, said: Registration, now_ms: int) -> None:
        """Returns where the challenger may replace the incumbent, which has not answered; BrokerNameTakenError,
        RegistrationPendingError."""
        assert known.connection is not None
        if known.answered_ms is not None and now_ms - known.answered_ms < CHALLENGE_MS:
            raise BrokerNameTakenError(_taken(known, said))
        if known.challenge_left_ms is None:
            known.challenge_left_ms = CHALLENGE_MS + LISTEN_MS
            self._to_challenge.append((said.name, known.connection))
        if known.challenge_left_ms:
            raise RegistrationPendingError(
                f"broker name {said.name!r} is registered from {known.said.address}, which is asked whether it is still there: "
                f"register again in a second, it is decided in about {CHALLENGE_MS // 1000} s"
            )

    # --------------------------------------------------------------------------------------------------------------- layouts

    def _arrive(self, said: Registration, connection: int, now_ms: int) -> _Arriving:
        """What has come of the registration so far. RemoteProtocolError for a part out of turn."""
        before = self._arriving.pop(connection, None)
        if not 0 <= said.part < said.parts <= PARTS_MAX or (said.parts > 1 and len(said.layouts) > PART_LAYOUTS_MAX):
            raise RemoteProtocolError(
                f"broker {said.name!r} registers part {said.part} of {said.parts} with {len(said.layouts)} layouts: expected at most "
                f"{PARTS_MAX} parts of {PART_LAYOUTS_MAX}"
            )
        if said.part == 0:
            if said.parts > 1 and len(self._arriving) >= ARRIVING_MAX:
                # Refused newcomers would wait for connections that begin again and again.
                del self._arriving[min(self._arriving, key=lambda each: self._arriving[each].began_ms)]
            return _Arriving(replace(said, layouts=()), {}, 0, now_ms if before is None else before.began_ms)
        if before is None or (before.said.part + 1, before.said.parts) != (said.part, said.parts) or not before.said.same_start(said):
            raise RemoteProtocolError(f"broker {said.name!r} registers part {said.part} of {said.parts} out of turn: begin with part 0")
        return _Arriving(replace(said, layouts=()), before.theirs, before.refused_count, before.began_ms)

    def _take_layouts(self, arriving: _Arriving, said: Registration) -> tuple[tuple[str, ...], tuple[RefusedLayout, ...]]:
        """Adopts each layout that is higher than ours. Returns (topics that were adopted, layouts that are named as left out)."""
        adopted, refused = [], []
        registered = self._registered()
        for layout in said.layouts:
            ours = self.layouts.get(layout.topic)
            if self.layouts.is_newer(layout):
                try:
                    self._check_layout(layout, said.name)
                except LocalProtocolError as error:
                    if arriving.refused_count < REFUSED_MAX:
                        refused.append(RefusedLayout(layout.topic[:TOPIC_BYTES_MAX], str(error)))
                    arriving.refused_count += 1
                else:
                    self.layouts.adopt(layout)
                    adopted.append(layout.topic)
                    ours = layout
            if ours is None:
                continue
            equal = ours.version == layout.version
            if equal:
                self._room.count(layout.topic, said.name, registered)
            arriving.theirs[ours.topic] = ours if equal else replace(layout, entries=())
        return tuple(adopted), tuple(refused)

    def _missing(self, theirs: dict[str, TopicLayout], *, full: bool) -> Iterable[TopicLayout]:
        """Our layouts that are higher than theirs; with `full` only those of topics that they have."""
        for ours in map(self.layouts.get, theirs) if full else self.layouts.all():
            if ours is None:
                continue  # forgotten since it came
            layout = theirs.get(ours.topic)
            if layout is None or (layout is not ours and is_higher(ours, layout)):
                yield ours

    def _forget(self, topics: Sequence[str]) -> None:
        self.layouts.forget(topics)
        self._room.forget(topics)

    def _check_layout(self, layout: TopicLayout, name: str) -> None:
        check_layout(layout)
        if self.layouts.get(layout.topic) is None and not self._room.fits(name):
            # Without figures that change: the broker logs each reason once.
            raise LocalProtocolError(
                f"topic {layout.topic}: this nameserver keeps {LAYOUTS_MAX} topics, deleted ones included, and broker {name!r} has brought "
                f"as many new ones as are free: see `limits of topics and nameservers` in docs/operations.md"
            )
        more = self.layouts.more_entries(layout)
        if more > 0 and self.layouts.entry_count + more > ENTRIES_MAX:
            raise LocalProtocolError(
                f"topic {layout.topic}: its layout has {more} entries more than are known, and those of all topics together have no room "
                f"for them, {ENTRIES_MAX} are allowed: delete topics, or use fewer brokers for each"
            )

    # ----------------------------------------------------------------------------------------------------------------- others

    def _registered(self) -> set[str]:
        return {name for name, known in self._brokers.items() if known.connection is not None}

    def _leave(self, known: _Broker) -> None:
        known.connection = known.challenge_left_ms = known.answered_ms = None
        known.routed = False
        if not known.was_routed:
            del self._brokers[known.said.name]

    def _addresses(self, names: Iterable[str], listener: str) -> tuple[BrokerAddress, ...]:
        return tuple(_address(self._brokers[name], listener) for name in names)


def _address(known: _Broker, listener: str) -> BrokerAddress:
    said, owner = known.said, known.owner
    # Clients keep the address of the highest term: one that another store made up must not hide the owner from them when it is back.
    term = said.term if owner is None or said.proves(owner) else owner.term
    return BrokerAddress(said.name, said.cluster, said.at(listener), known.routed, term)


def _owner(before: _Broker | None, now: _Broker) -> tuple[Registration | None, int]:
    """The owner of the name and when it was heard, after the registration `now`; `before` is None where an earlier owner is forgotten."""
    if before is not None and before.owner is not None and not now.said.proves(before.owner):
        return before.owner, before.owner_heard_ms
    said = now.said
    return (None if said.proof is None else replace(said, listeners={INTERNAL: said.address})), now.heard_ms


def _where(before: Registration, *, registered: bool) -> str:
    return f"{'registered' if registered else 'last registered'} from {before.address}"


def _taken(known: _Broker, said: Registration) -> str:
    """Why a challenger is refused whose incumbent has answered."""
    before = known.said
    if not said.same_store(before):
        return (
            f"broker name {said.name!r} is {_where(before, registered=True)} with store {before.store_id[:8]} and answers; the one at "
            f"{said.address} has another store ({said.store_id[:8]}): give it another name and a store of its own, or stop the other "
            f"broker first"
        )
    same = _out_of_line(before, said, registered=True)
    return f"{same} with term {said.term}. The one that is registered answers and goes on. {_COPY_ADVICE}"


def _out_of_line(before: Registration, said: Registration, *, registered: bool) -> str:
    return (
        f"store {said.store_id[:8]} of broker {said.name!r} is {_where(before, registered=registered)} with term {before.term}; the one at "
        f"{said.address} has the same store"
    )


_COPY_ADVICE = (
    "There are two copies of one store, or an older state of it was restored. Do not delete either: each may hold messages that the other "
    "lacks. Find out which one clients have used last, and run only that one (see `one store, two copies` in docs/operations.md)"
)

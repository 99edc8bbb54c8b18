"""The live brokers, their addresses, and every topic's layout. RocketMQ: RouteInfoManager.

Pure: connections are ints, time is `now_ms` of a monotonic clock. Each broker name has one record:

    state         event                                            next
    ------------  -----------------------------------------------  -----------------------------------------------------------
    (unknown)     REGISTER, fewer than 1,024 names                 registered; *learning* if the response carries layouts
    learning      REGISTER with every layout                       registered and routed
    registered    REGISTER of the same start                       registered: seen again, bound to the connection that carried it
    registered    REGISTER of another start or store               challenged: the incumbent is asked for a response
    registered,   REGISTER in office of the same store with a      registered: it replaces the incumbent at once
    challenged    higher term
    challenged    response or REGISTER of the incumbent            registered; challengers are rejected for 5 s
    challenged    REGISTER of a challenger, within 5 s             challenged; the challenger has to try again (pending)
    challenged    REGISTER of a challenger, after 5 s of silence   registered: the challenger replaces the incumbent
    registered,   close of its connection, UNREGISTER, silence     unregistered: the last address stays, marked so; forgotten if it
    challenged                                                     was never routed
    unregistered  REGISTER                                         registered
                  less than 10 s, if it was in office              routes for RocketMQ's clients still have it
    unregistered  7 days without a route that named it             forgotten
    any           REGISTER of the same store with a stale term     rejected (BROKER_NAME_TAKEN), nothing changes
    registered    REGISTER of the owner, which is not registered   registered: the owner replaces the incumbent at once

*The owner* of a name is the first store that registered it. It stays the owner until it has not been registered for 7 days,
or another store has been registered for an hour without interruption; then the registered store becomes the owner. Until
then any other store may use the name while the owner is not registered. It does not change which terms of
the owner are accepted, and routes carry the owner's term with its address.

*In office*: the term stands in a register, which gives each term to one copy of the log. A master that was deposed may still respond.

*The same start*: store, proof, term and address are equal. While a registered broker responds, no other start takes its name, whatever its
term, unless that is in office. A challenge finds out whether it does: the machine of the incumbent may have vanished without closing its
connection. Its 5 s are counted by `count_down_challenges`, in time in which this process has read the data that arrived: while the process
is suspended or blocked, the response waits in the socket.

*A stale term*: the registration is of the owner or of the store that was accepted last, and its term is lower than the accepted term of
that store, or it is higher but the store's previous term is lower: that store has not seen the start that was accepted last. It is a copy,
a restored backup, or the original of a copy that has run since. The owner is compared with its own starts only.

A learning broker lacks layouts that this table has. It adopts them before it is routed, so that a client that finds it here also finds
every topic of the cluster there. A broker that accepts no more topics registers as `full` and is routed without them. A registration of
many layouts comes in parts, each a request; it takes effect with its last part. topic_quota.py limits the topics that a broker may bring.

A layout that ends a topic (a deletion, or the layout of a later creation) is left out if it comes from a broker that never had a queue of
the topic, while a broker that has some is registered: an operator's deletion reaches the brokers with queues too, and takes effect with the
registration of the first of them.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from lockstep.nameserver.broker_record import (
    BrokerRecord,
    Registration,
    broker_address,
    check_term,
    name_taken_text,
    next_owner,
)
from lockstep.nameserver.classic_topics import own_layout
from lockstep.nameserver.topic_quota import LAYOUTS_MAX, SILENCE_MS, TopicQuota
from lockstep.protocol.bodies import BrokerAddress, RefusedLayout, TopicRoute
from lockstep.protocol.errors import (
    BrokerNameTakenError,
    LocalProtocolError,
    RegistrationPendingError,
    RemoteProtocolError,
    ServiceNotAvailableError,
)
from lockstep.protocol.names import INTERNAL_LISTENER, TOPIC_BYTES_MAX
from lockstep.protocol.topics.layouts import ENTRIES_MAX, PART_LAYOUTS_MAX, LayoutTable, check_layout, is_higher, iter_layout_parts
from lockstep.protocol.topics.queue import TopicLayout

CHALLENGE_MS = 5_000
"""How long an incumbent may take to respond before a challenger replaces it, and how long its response counts."""
COUNTDOWN_STEP_MS = 100
"""The step in which challenges are counted down. A challenge may begin within a step, so one more step is waited for."""
BROKERS_MAX = 1_024
"""The maximum number of broker names, registered or remembered."""
OWNER_MS = 3_600_000
"""A store that has been registered for this long without interruption becomes the owner: the owner's disk was replaced."""
FORGET_MS = 7 * 86_400_000
"""How long an unregistered broker is remembered after the last route that named it, or after it left, whichever is later: clients may
still connect to an address that they received then."""
PARTS_MAX = 64
"""The maximum number of parts of one registration: 262,144 layouts."""
INCOMPLETE_MAX = 64
"""The maximum number of incomplete registrations. One more replaces the one that began first."""
INCOMPLETE_MS = 30_000
"""A registration that is incomplete this long after its connection sent the first part 0 is dropped."""
REFUSED_MAX = 1_024
"""The maximum number of left-out layouts of one registration that the response names. Further ones are counted."""
OWNERS_NAMED_MAX = 8
"""The maximum number of brokers that the reason of a deletion that is left out names."""


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """The effects of one registration, or of one part of it."""

    missing: tuple[TopicLayout, ...]
    """Layouts that the broker did not send, or sent in a lower version, as many as one body holds, for the response's body."""
    adopted: tuple[str, ...]
    """Topics whose layout this table adopted from the broker."""
    joined: bool
    """Whether the broker was not registered before, or came back with a higher term or another store."""
    routed: bool
    """Whether clients see the broker as registered, because it has every layout."""
    superseded: int | None
    """The connection that was bound to this broker until now; its close has no effect any more."""
    refused: tuple[RefusedLayout, ...] = ()
    """Layouts that were left out, the first 1,024 of a registration. The others are in effect."""
    refused_more: int = 0
    """How many more layouts of this part were left out."""


@dataclass(slots=True)
class _IncompleteRegistration:
    """A registration with some of its parts."""

    registration: Registration
    broker_layouts: dict[str, TopicLayout]
    """The broker's layouts of topics that this table has: the table's layout if it is equal or was adopted, else the broker's version
    without entries."""
    refused_count: int
    began_ms: int
    """When the connection sent the first part 0 since its last complete registration. Another part 0 does not renew it."""


class RouteTable:
    """The records of all brokers, and the layouts of all topics."""

    def __init__(self, *, silence_ms: int = SILENCE_MS) -> None:
        self.layouts = LayoutTable()
        self._quota = TopicQuota()
        self.ready = False
        """Whether a broker has registered since the start. One broker knows every topic."""
        self._silence_ms = silence_ms
        self._brokers: dict[str, BrokerRecord] = {}
        self._incomplete: dict[int, _IncompleteRegistration] = {}
        """Connection → its incomplete registration."""
        self._to_challenge: list[tuple[str, int]] = []

    def register(self, registration: Registration, connection: int, now_ms: int) -> RegistrationResult:
        """Accept a broker's registration, or one part of it.

        Raises BrokerNameTakenError and RegistrationPendingError (see the table of states), ServiceNotAvailableError if there are too many
        names, and RemoteProtocolError. Then only `take_challenges` has changed.
        """
        if not registration.listeners.get(INTERNAL_LISTENER):
            raise RemoteProtocolError(
                f"broker {registration.name!r} registers no listener named {INTERNAL_LISTENER!r}: {sorted(registration.listeners)}"
            )
        known = self._brokers.get(registration.name)
        if known is None:
            self._ensure_capacity(registration.name)
        else:
            check_term(known, registration)
            before = known.registration
            rival = not (before.same_start(registration) or known.displaced_by(registration) or registration.succeeds(before))
            if known.connection not in (None, connection) and rival:
                self._check_challenge(known, registration, now_ms)
        parts = self._collect_part(registration, connection, now_ms)
        already = parts.refused_count
        adopted, refused = self._adopt_layouts(parts, registration)
        refused_more = parts.refused_count - already - len(refused)
        if registration.part < registration.parts - 1:
            self._incomplete[connection] = parts
            routed = known is not None and known.routed
            return RegistrationResult((), adopted, False, routed, None, refused, refused_more)
        missing = tuple(next(iter_layout_parts(self._missing(parts.broker_layouts, full=registration.full))))
        joined = known is None or known.connection is None or not known.registration.same_start(registration)
        superseded = known.connection if known is not None and known.connection != connection else None
        routed = (known is not None and known.routed and not joined) or not missing
        was_routed = routed or (known is not None and known.was_routed)
        last_named_ms = None if known is None else known.last_named_ms
        # The layouts are in `self.layouts`: storing them here again would double the memory of a nameserver.
        is_uninterrupted = known is not None and known.connection is not None and known.registration.same_store(registration)
        since_ms = known.since_ms if known is not None and is_uninterrupted else now_ms
        accepted, owner = replace(registration, layouts=()), next_owner(known, registration, now_ms)
        self._brokers[registration.name] = BrokerRecord(
            accepted, connection, now_ms, since_ms, routed, was_routed, *owner, last_named_ms=last_named_ms
        )
        self.ready = True
        return RegistrationResult(missing, adopted, joined, routed, superseded, refused, refused_more)

    def forget_deletions(self, counter_max: int) -> int:
        """Forget the topics that were deleted with at most this counter. Return their number."""
        gone = self.layouts.deletions(counter_max)
        self._forget(gone)
        return len(gone)

    def take_challenges(self) -> list[tuple[str, int]]:
        """Return (broker name, connection) of incumbents to challenge now; pass their responses to `confirm_alive`."""
        taken, self._to_challenge = self._to_challenge, []
        return taken

    def confirm_alive(self, name: str, connection: int, now_ms: int) -> None:
        """Record that the incumbent has responded to a challenge on its connection."""
        known = self._brokers.get(name)
        if known is not None and known.connection == connection:
            known.challenge_left_ms, known.confirmed_ms = None, now_ms

    def count_down_challenges(self, ms: int) -> bool:
        """Count `ms` milliseconds in which this process has read all data that arrived. Return whether a response is still pending."""
        pending = False
        for known in self._brokers.values():
            if known.challenge_left_ms:
                known.challenge_left_ms = max(0, known.challenge_left_ms - ms)
                pending = pending or known.challenge_left_ms > 0
        return pending

    def exclude_pause(self, pause_ms: int, now_ms: int) -> None:
        """Exclude a time in which this process was suspended or blocked: it read nothing then, so brokers were not silent."""
        for known in self._brokers.values():
            if known.connection is not None:
                known.last_seen_ms = min(known.last_seen_ms + pause_ms, now_ms)
                known.since_ms = min(known.since_ms + pause_ms, now_ms)
        for parts in self._incomplete.values():
            parts.began_ms = min(parts.began_ms + pause_ms, now_ms)
        self._quota.exclude_pause(pause_ms, now_ms)

    def unregister(self, name: str, store_id: str, term: int, connection: int, now_ms: int) -> bool:
        """Unregister a broker on the connection that registered it. Return False for any other connection (of a rejected copy), store or
        term."""
        known = self._brokers.get(name)
        if known is None or known.connection != connection or (known.registration.store_id, known.registration.term) != (store_id, term):
            return False
        self._unregister(known, now_ms)
        return True

    def connection_closed(self, connection: int, now_ms: int) -> tuple[str, ...]:
        """Unregister the brokers bound to this connection at once. Return their names."""
        self._incomplete.pop(connection, None)
        gone = [known for known in self._brokers.values() if known.connection == connection]
        for known in gone:
            self._unregister(known, now_ms)
        return tuple(known.registration.name for known in gone)

    def expire(self, now_ms: int) -> dict[str, int]:
        """Unregister brokers that have been silent for `silence_ms`, and forget those that are not needed. Return name → the connection to
        close.

        Stores that have been registered for OWNER_MS become the owners of their names. Topics that only forgotten brokers have brought are
        forgotten.
        """
        silent = {
            name: known.connection
            for name, known in self._brokers.items()
            if known.connection is not None and now_ms - known.last_seen_ms >= self._silence_ms
        }
        for name in silent:
            self._unregister(self._brokers[name], now_ms)
        for connection in [each for each, parts in self._incomplete.items() if now_ms - parts.began_ms >= INCOMPLETE_MS]:
            del self._incomplete[connection]
        for name in [
            name for name, known in self._brokers.items() if known.connection is None and now_ms - known.last_used_ms >= FORGET_MS
        ]:
            del self._brokers[name]
        for known in self._brokers.values():
            replaced = known.connection is not None and not known.has_owner
            if now_ms - known.owner_last_seen_ms >= FORGET_MS or (replaced and now_ms - known.since_ms >= OWNER_MS):
                known.owner, known.owner_last_seen_ms = next_owner(None, known.registration, known.last_seen_ms)
        self._forget(self._quota.expire(self._brokers, now_ms))
        return silent

    def route(self, topic: str, listener: str, now_ms: int, *, classic: bool = False) -> TopicRoute | None:
        """Return the whole layout and every known address of its brokers, or None if the topic does not exist.

        In a `classic` route brokers that have just left count as registered if another copy is about to take their place.
        """
        layout = self.layouts.get(topic)
        if layout is None or layout.deleted:
            return None
        names = [name for name in layout.brokers if name in self._brokers]
        for name in names:
            self._brokers[name].last_named_ms = now_ms
        known = [self._brokers[name] for name in names]
        return TopicRoute(layout, tuple(broker_address(each, listener, kept=classic and each.is_kept(now_ms)) for each in known))

    def own_route(self, topic: str, listener: str) -> TopicRoute | None:
        """Return the route of a topic that RocketMQ's brokers register by themselves, or None if it is none of them."""
        names = sorted(self._registered())
        layout = own_layout(topic, [self._brokers[name].registration for name in names])
        return None if layout is None else TopicRoute(layout, self._addresses(names, listener))

    def brokers(self, listener: str) -> tuple[BrokerAddress, ...]:
        """Return all known brokers, sorted by name."""
        return self._addresses(sorted(self._brokers), listener)

    def registered(self) -> tuple[str, ...]:
        """Return the names of the registered brokers, sorted."""
        return tuple(sorted(self._registered()))

    # ------------------------------------------------------------------------------------------------------------- admission

    def _ensure_capacity(self, name: str) -> None:
        """Make room for one more name: forget the unregistered broker that left first among those that no route has named."""
        if len(self._brokers) < BROKERS_MAX:
            return
        unused = [known for known in self._brokers.values() if known.connection is None and known.last_named_ms is None]
        if not unused:
            raise ServiceNotAvailableError(f"broker {name!r} was not registered: this nameserver knows {BROKERS_MAX} brokers, the maximum")
        del self._brokers[min(unused, key=lambda known: known.last_seen_ms).registration.name]

    def _check_challenge(self, known: BrokerRecord, registration: Registration, now_ms: int) -> None:
        """Return if the challenger may replace the incumbent, which has not responded. Otherwise raise BrokerNameTakenError or
        RegistrationPendingError."""
        assert known.connection is not None
        if known.confirmed_ms is not None and now_ms - known.confirmed_ms < CHALLENGE_MS:
            raise BrokerNameTakenError(name_taken_text(known, registration))
        if known.challenge_left_ms is None:
            known.challenge_left_ms = CHALLENGE_MS + COUNTDOWN_STEP_MS
            self._to_challenge.append((registration.name, known.connection))
        if known.challenge_left_ms:
            raise RegistrationPendingError(
                f"broker name {registration.name!r} is registered from {known.registration.address}, and this nameserver is checking "
                f"whether that broker is alive: register again in a second; the decision takes about {CHALLENGE_MS // 1000} s"
            )

    # --------------------------------------------------------------------------------------------------------------- layouts

    def _collect_part(self, registration: Registration, connection: int, now_ms: int) -> _IncompleteRegistration:
        """Return the parts of the registration that have arrived so far. Raise RemoteProtocolError for a part out of order."""
        before = self._incomplete.pop(connection, None)
        if not 0 <= registration.part < registration.parts <= PARTS_MAX or len(registration.layouts) > PART_LAYOUTS_MAX:
            raise RemoteProtocolError(
                f"broker {registration.name!r} registers part {registration.part} of {registration.parts} with "
                f"{len(registration.layouts)} layouts: expected at most {PARTS_MAX} parts of {PART_LAYOUTS_MAX}"
            )
        if registration.part == 0:
            if registration.parts > 1 and len(self._incomplete) >= INCOMPLETE_MAX:
                # New registrations that are rejected would have to wait for connections that start again and again.
                del self._incomplete[min(self._incomplete, key=lambda each: self._incomplete[each].began_ms)]
            return _IncompleteRegistration(replace(registration, layouts=()), {}, 0, now_ms if before is None else before.began_ms)
        if (
            before is None
            or (before.registration.part + 1, before.registration.parts) != (registration.part, registration.parts)
            or not before.registration.same_start(registration)
        ):
            raise RemoteProtocolError(
                f"broker {registration.name!r} registers part {registration.part} of {registration.parts} out of order: begin with part 0"
            )
        return _IncompleteRegistration(replace(registration, layouts=()), before.broker_layouts, before.refused_count, before.began_ms)

    def _adopt_layouts(
        self, parts: _IncompleteRegistration, registration: Registration
    ) -> tuple[tuple[str, ...], tuple[RefusedLayout, ...]]:
        """Adopt each layout that is higher than the known one. Return (topics that were adopted, left-out layouts to name)."""
        adopted, refused = [], []
        registered = self._registered()
        for layout in registration.layouts:
            known_layout = self.layouts.get(layout.topic)
            if self.layouts.is_newer(layout):
                try:
                    self._check_layout(layout, known_layout, registration.name, registered)
                except LocalProtocolError as error:
                    if parts.refused_count < REFUSED_MAX:
                        refused.append(RefusedLayout(layout.topic[:TOPIC_BYTES_MAX], str(error)))
                    parts.refused_count += 1
                else:
                    self.layouts.adopt(layout)
                    adopted.append(layout.topic)
                    known_layout = layout
            if known_layout is None:
                continue
            equal = known_layout.version == layout.version
            if equal:
                self._quota.count(layout.topic, registration.name, registered)
            parts.broker_layouts[known_layout.topic] = known_layout if equal else replace(layout, entries=())
        return tuple(adopted), tuple(refused)

    def _missing(self, broker_layouts: dict[str, TopicLayout], *, full: bool) -> Iterable[TopicLayout]:
        """Yield the layouts that are higher than the broker's; with `full` only those of topics that it has."""
        for known_layout in map(self.layouts.get, broker_layouts) if full else self.layouts.all():
            if known_layout is None:
                continue  # forgotten since it arrived
            layout = broker_layouts.get(known_layout.topic)
            if layout is None or (layout is not known_layout and is_higher(known_layout, layout)):
                yield known_layout

    def _forget(self, topics: Sequence[str]) -> None:
        self.layouts.forget(topics)
        self._quota.forget(topics)

    def _check_layout(self, layout: TopicLayout, known: TopicLayout | None, name: str, registered: Collection[str]) -> None:
        check_layout(layout)
        if known is not None and layout.ends(known) and not known.has_named(name):
            owners = [owner for owner in known.brokers if owner in registered]
            if owners:
                raise LocalProtocolError(
                    f"topic {layout.topic}: broker {name!r} never had a queue of it, so its deletion takes effect when a broker that has "
                    f"queues registers it too, or when none of them is registered: {', '.join(owners[:OWNERS_NAMED_MAX])}"
                )
        if known is None and not self._quota.has_room(name):
            # Without numbers that change: the broker logs each reason once.
            raise LocalProtocolError(
                f"topic {layout.topic}: this nameserver keeps {LAYOUTS_MAX} topics, deleted ones included, and broker {name!r} has used "
                f"its share of the free ones: see `limits of topics and nameservers` in docs/operations.md"
            )
        more = self.layouts.more_entries(layout)
        if more > 0 and self.layouts.entry_count + more > ENTRIES_MAX:
            raise LocalProtocolError(
                f"topic {layout.topic}: its layout has {more} entries more than the known one, which exceeds the maximum of {ENTRIES_MAX} "
                f"entries of all topics: delete topics, or use fewer brokers for each"
            )

    # ----------------------------------------------------------------------------------------------------------------- others

    def _registered(self) -> set[str]:
        return {name for name, known in self._brokers.items() if known.connection is not None}

    def _unregister(self, known: BrokerRecord, now_ms: int) -> None:
        known.connection = known.challenge_left_ms = known.confirmed_ms = None
        known.routed, known.left_ms = False, now_ms
        if not known.was_routed:
            del self._brokers[known.registration.name]

    def _addresses(self, names: Iterable[str], listener: str) -> tuple[BrokerAddress, ...]:
        return tuple(broker_address(self._brokers[name], listener) for name in names)

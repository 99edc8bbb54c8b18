"""One broker name: its last registration, its owner, and the registrations that may follow. Pure. The states are in route_table.py."""

from dataclasses import dataclass, field, replace

from lockstep.protocol.bodies import BrokerAddress
from lockstep.protocol.errors import BrokerNameTakenError
from lockstep.protocol.names import INTERNAL_LISTENER
from lockstep.protocol.topics.queue import TopicLayout

KEPT_MS = 10_000
"""How long routes for RocketMQ's clients, which ask every 30 s, keep a broker that is not registered, if another copy may succeed it."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's registration, from REGISTER_BROKER."""

    name: str
    cluster: str
    store_id: str
    term: int
    listeners: dict[str, str]
    """Listener name → host:port to which clients connect."""
    layouts: tuple[TopicLayout, ...]
    proof: str = field(repr=False)
    """The store's secret. Never disclosed."""
    previous_term: int
    """The term of the store's last start that was certainly accepted."""
    part: int = 0
    parts: int = 1
    full: bool = False
    """The broker accepts no more topics: it lacks only newer layouts of the topics that it has."""
    auto_create: bool = False
    """The broker creates a topic with its first send."""
    replicas: tuple[str, ...] = ()
    """The addresses of the other copies of its log."""
    office: bool = False
    """Its term stands in a register, which gives each term to one copy of the log."""
    tried: tuple[int, ...] = ()
    """Terms of the store's starts since `previous_term`, which ended before it was certain that they had been accepted."""

    @property
    def address(self) -> str:
        return self.listeners[INTERNAL_LISTENER]

    def at(self, listener: str) -> str:
        return self.listeners.get(listener) or self.address

    def same_store(self, other: "Registration") -> bool:
        """Return whether both are of one store, which its proof shows."""
        return (self.store_id, self.proof) == (other.store_id, other.proof)

    def same_start(self, other: "Registration") -> bool:
        """Return whether both are of one start of one store: a broker that registers again."""
        return (self.store_id, self.proof, self.term, self.address) == (other.store_id, other.proof, other.term, other.address)

    def succeeds(self, other: "Registration") -> bool:
        """Return whether this is a later start of the same log, which a register has put in the place of the other one."""
        return self.office and self.same_store(other) and self.term > other.term


@dataclass(slots=True)
class BrokerRecord:
    """The registrations of one broker name: the last one, and that of the name's owner."""

    registration: Registration
    connection: int | None
    """None if the broker is not registered."""
    last_seen_ms: int
    since_ms: int
    """When the current uninterrupted registration of the store began."""
    routed: bool
    was_routed: bool
    """Whether it was routed at any time since this record began."""
    owner: Registration
    """The owner's last accepted registration."""
    owner_last_seen_ms: int
    """When the owner was last registered."""
    last_named_ms: int | None = None
    """When a route last named the broker; None if never."""
    challenge_left_ms: int | None = None
    """The time left for a pending response to a challenge; None if none is pending. At 0 the next challenger replaces this broker."""
    confirmed_ms: int | None = None
    """When the broker last responded to a challenge."""
    left_ms: int | None = None
    """When the broker was unregistered; None while it is registered."""

    @property
    def last_used_ms(self) -> int:
        """Return when an address of the broker was last returned, or it left."""
        return max(self.last_seen_ms, self.last_named_ms or 0)

    @property
    def has_owner(self) -> bool:
        """Return whether the last registration is the owner's."""
        return self.registration.same_store(self.owner)

    def displaced_by(self, new: Registration) -> bool:
        """Return whether the owner of the name takes it back from another store."""
        return new.same_store(self.owner) and not self.has_owner

    def is_kept(self, now_ms: int) -> bool:
        """Return whether routes that are asked for rarely still have the broker: another copy of its log is about to take its place."""
        return self.registration.office and self.left_ms is not None and now_ms - self.left_ms < KEPT_MS


def check_term(known: BrokerRecord, new: Registration) -> None:
    """Raise BrokerNameTakenError for a store with a stale term. It names the accepted term to a start in office."""
    owner = known.owner
    before = owner if new.same_store(owner) else known.registration
    if not new.same_store(before):
        return
    registered = known.connection is not None and known.registration.same_start(before)
    same = _conflict_text(before, new, registered=registered)
    accepted = before.term if new.office else None
    if new.term < before.term:
        raise BrokerNameTakenError(f"{same} with term {new.term}, which is lower. {_COPY_ADVICE}", term=accepted)
    if new.term == before.term and new.address != before.address and (new.office or not registered):
        raise BrokerNameTakenError(f"{same} with the same term {new.term}. {_COPY_ADVICE}", term=accepted)
    own = before.term in new.tried and new.address == before.address
    if new.term > before.term and new.previous_term < before.term and not own:
        raise BrokerNameTakenError(
            f"{same} with term {new.term}, and its term before that was {new.previous_term}: it has not seen term {before.term}. "
            f"{_COPY_ADVICE}"
        )


def broker_address(known: BrokerRecord, listener: str, *, kept: bool = False) -> BrokerAddress:
    """Return the address of the broker on a listener, as registered also if it is `kept`."""
    registration, owner = known.registration, known.owner
    # Clients keep the address of the highest term: one that another store invented must not hide the owner when it is back.
    term = registration.term if known.has_owner else owner.term
    address = registration.at(listener)
    replicas = registration.replicas if address == registration.address else ()
    return BrokerAddress(registration.name, registration.cluster, address, known.routed or kept, term, replicas or None)


def next_owner(before: BrokerRecord | None, new: Registration, seen_ms: int) -> tuple[Registration, int]:
    """Return the owner of the name and when it was last seen, after the registration `new`.

    `before` is None if the earlier owner is forgotten.
    """
    if before is not None and not new.same_store(before.owner):
        return before.owner, before.owner_last_seen_ms
    return replace(new, listeners={INTERNAL_LISTENER: new.address}, layouts=()), seen_ms


def _address_text(before: Registration, *, registered: bool) -> str:
    return f"{'registered' if registered else 'last registered'} from {before.address}"


def name_taken_text(known: BrokerRecord, new: Registration) -> str:
    """Return why a challenger is rejected if the incumbent has responded."""
    before = known.registration
    if not new.same_store(before):
        return (
            f"broker name {new.name!r} is {_address_text(before, registered=True)} with store {before.store_id[:8]} "
            f"and responds; the one at {new.address} has another store ({new.store_id[:8]}): "
            f"give it another name and a store of its own, or stop the other broker first"
        )
    same = _conflict_text(before, new, registered=True)
    return f"{same} with term {new.term}. The registered one responds and stays registered. {_COPY_ADVICE}"


def _conflict_text(before: Registration, new: Registration, *, registered: bool) -> str:
    return (
        f"store {new.store_id[:8]} of broker {new.name!r} is {_address_text(before, registered=registered)} with term "
        f"{before.term}; the one at {new.address} has the same store"
    )


_COPY_ADVICE = (
    "There are two copies of one store, or an older state of it was restored. Do not delete either: each may hold messages that the other "
    "lacks. Find out which one clients have used last, and run only that one (see `one store, two copies` in docs/operations.md)"
)

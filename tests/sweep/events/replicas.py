"""The copies of a broker's log. The universe writes these events from what it reads on the simulated disks (copies_watch.py)."""

from dataclasses import dataclass

from sweep.history import Event


@dataclass(frozen=True, slots=True)
class MasterOpened(Event):
    """A copy of a broker's log serves as its master from now on. BrokerOpened of the same process follows. For brokers with replicas."""

    broker: str
    term: int
    may_lack: str
    """Why it may lack what was acknowledged; empty if it has to have all of that."""
    assumes_loss: bool
    """Whether it begins as after a power cut: a suffix may be lost, as far as it can know."""
    missing: tuple[str, ...] = ()
    """Acknowledged records that are not at their places of its log, the first few."""


@dataclass(frozen=True, slots=True)
class Promoting(Event):
    """An operator asks a replica on `target` to become the master. The old one does not run."""

    broker: str
    target: str
    facts: str


@dataclass(frozen=True, slots=True)
class MemberLacked(Event):
    """A member of the stored set does not have an acknowledged record: when it is acknowledged, or when the member starts."""

    broker: str
    member: str
    """Its machine."""
    position: int


@dataclass(frozen=True, slots=True)
class CopiesAsked(Event):
    """In the calm, every machine of a broker's copies was asked for its status."""

    broker: str
    masters: tuple[str, ...]
    outside: tuple[str, ...]
    """Replicas that are not in the set of the master, or do not follow it, with what they say."""


@dataclass(frozen=True, slots=True)
class LogsCompared(Event):
    """In the calm, the files of a replica of the set were compared with those of its master, `since` … `until`."""

    broker: str
    replica: str
    """Its machine."""
    since: int
    until: int
    differs_at: int | None
    """The first position with another byte; None if there is none."""

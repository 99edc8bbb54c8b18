"""RocketMQ's locks of clients without a session (ordering.md 12), by the responses of the broker.

    a  no other client is granted a queue while a classic client holds it: 60 s of the broker's time from its last LOCK_BATCH_MQ, or until
       it unlocks
    b  its holder renews it within these 60 s; after that the next client that requests it gets it, if it has no other holder
    c  UPDATE_CONSUMER_OFFSET of other clients is not applied while it is held
    d  a client trusts a lock for 30 s from the response that granted it: no other client is granted the queue before, also if a power cut
       has removed the lock

A lossy power cut may remove locks, so a to c are not checked for the broker's queues from then until their next grant.
"""

from dataclasses import dataclass

from sweep.checkers.facts import Brokers, Clocks
from sweep.checkers.violation import Violation, process_name
from sweep.events.locks import ClassicLocked, ClassicUnlocked, ClassicUnlockSent, LockGranted
from sweep.events.progress import CommitResponded
from sweep.history import History, ItemVerdict, QueueKey

LEASE_MS = 60_000
TRUST_S = 28.5
"""30 s, less the drift of two clocks."""
LAPSED_MS = 62_500
"""The lease, a tick of the broker, and the longest transit of a response."""


@dataclass(slots=True)
class _Lease:
    """One classic client's hold."""

    locked: ClassicLocked
    """The last LOCK that granted it."""
    unlocking: bool = False
    """UNLOCK_BATCH_MQ was written."""


def check(history: History) -> list[Violation]:
    return _Leases(history).run() if history.of(ClassicLocked) else []


class _Leases:
    """One pass over a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.clocks = Clocks(history)
        brokers = Brokers(history)
        self.cuts = {cut: broker for broker in brokers.lives for cut in brokers.lossy_cuts(broker)}
        self.held: dict[QueueKey, _Lease] = {}
        self.lost: dict[QueueKey, _Lease] = {}
        """The last holds before a lossy power cut."""
        self.native: dict[QueueKey, float] = {}
        """Queue → when a session was granted it last."""
        self.found: list[Violation] = []

    def run(self) -> list[Violation]:
        for place, event in enumerate(self.history):
            if place in self.cuts:
                self.lost |= {key: lease for key, lease in self.held.items() if key.broker == self.cuts[place]}
                self.held = {key: lease for key, lease in self.held.items() if key.broker != self.cuts[place]}
            if isinstance(event, ClassicLocked):
                self._locked(event)
            elif isinstance(event, ClassicUnlockSent):
                lease = self.held.get(event.queue)
                if lease is not None and lease.locked.client_id == event.client_id:
                    lease.unlocking = True
            elif isinstance(event, ClassicUnlocked):
                lease = self.held.get(event.queue)
                if lease is not None and lease.locked.client_id == event.client_id and lease.locked.request_t < event.request_t:
                    del self.held[event.queue]
            elif isinstance(event, LockGranted):
                if not event.renewal:
                    self._granted(
                        event.queue, None, event.t, f"epoch {event.epoch} of session {(event.session or 'none')[:8]}", event.machine
                    )
                    self.held.pop(event.queue, None)
                self.native[event.queue] = event.t
            elif isinstance(event, CommitResponded):
                self._updated(event)
        return self.found

    def _since_ms(self, machine: str, t: float, now: float) -> float:
        """Return the time since `t` on the broker's clock."""
        then_ms, now_ms = self.clocks.boot_ms(machine, t), self.clocks.boot_ms(machine, now)
        return (now - t) * 1000 if then_ms is None or now_ms is None else now_ms - then_ms

    def _locked(self, event: ClassicLocked) -> None:
        lease = self.held.get(event.queue)
        own = lease is not None and lease.locked.client_id == event.client_id
        if event.granted:
            if not own:
                self._granted(event.queue, event.client_id, event.t, f"classic client {event.client_id}", event.machine)
            self.held[event.queue] = _Lease(event)
            return
        if lease is None or lease.unlocking or self.native.get(event.queue, -1.0) > lease.locked.t:
            return
        ms = self._since_ms(event.machine, lease.locked.request_t, event.t)
        if own and ms < LEASE_MS:
            self._report(event.t, f"{event.queue}: classic client {event.client_id} was refused its own lock, {ms:.0f} ms old")
        elif not own and self._since_ms(event.machine, lease.locked.t, event.request_t) > LAPSED_MS and self._one_life(lease, event):
            text = f"{event.queue}: classic client {event.client_id} was refused; the lock of {lease.locked.client_id} was {ms:.0f} ms old"
            self._report(event.t, text)

    def _one_life(self, lease: _Lease, event: ClassicLocked) -> bool:
        """Return whether both events are of one process: leases begin again with each start."""
        return lease.locked.process == event.process

    def _granted(self, queue: QueueKey, client_id: str | None, t: float, client: str, machine: str) -> None:
        lost = self.lost.pop(queue, None)
        if lost is not None and not lost.unlocking and lost.locked.client_id != client_id and t - lost.locked.t < TRUST_S:
            holder = f"{lost.locked.client_id} had locked it at {lost.locked.t:.3f}, before a power cut"
            self._report(t, f"{queue} was granted to {client}; {holder}")
        lease = self.held.get(queue)
        if lease is None or lease.unlocking:
            return
        ms = self._since_ms(machine, lease.locked.request_t, t)
        if ms <= LEASE_MS:
            holder = f"classic client {lease.locked.client_id} in process {lease.locked.client}"
            self._report(t, f"{queue} was granted to {client}; {holder} had locked it {ms:.0f} ms before")

    def _updated(self, event: CommitResponded) -> None:
        lease = self.held.get(event.queue)
        if event.by != "UPDATE" or event.verdict is not ItemVerdict.OK or lease is None or lease.unlocking:
            return
        locked = lease.locked
        sure = locked.t < event.request_t and self._since_ms(event.machine, locked.request_t, event.t) < LEASE_MS
        if sure and locked.client != event.client:
            text = f"{event.queue}: offset {event.offset} of process {event.client} was accepted by {process_name(event)}"
            self._report(event.t, f"{text} while classic client {locked.client_id} held it")

    def _report(self, t: float, text: str) -> None:
        self.found.append(Violation("classic", t, text))

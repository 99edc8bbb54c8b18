"""R3: one holder of a queue at a time, by the responses of the broker.

a  an epoch belongs to one session
b  no other client is granted a queue while its holder's proof is valid, it has not released, and it was not notified that its epoch is
   over; and after a start without a loss, not before the holder has had the grace, from the open port on, to come back
c  once a newer epoch was granted, nothing of an older one is served: no commit, no release, no renewal that is requested after that, and no
   pull whose response is written after that
"""

from math import inf

from lockstep.protocol.codes import ResponseCode
from sweep.checkers.facts import Brokers, Clocks, Deletions, Leases, QueueEpoch
from sweep.checkers.violation import Violation, process_name
from sweep.events.locks import ClassicLocked, GrantReceived, LockGranted, LockRefused, LockSent, ProofReceived, StaleReceived
from sweep.events.progress import CommitResponded, CommitSent, PullReceived
from sweep.events.universe import BrokerOpened, Fault, ProcessEnded
from sweep.history import History, ItemVerdict, QueueKey

SURELY = 0.9
"""The tolerance of a grace: clocks run up to a twentieth fast or slow."""


def check(history: History) -> list[Violation]:
    return _Owners(history).run()


class _Owners:
    """One pass over a history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.clocks = Clocks(history)
        self.leases = Leases()
        self.deletions = Deletions(history)
        self.brokers = Brokers(history)
        self.newest: dict[QueueKey, LockGranted] = {}
        self.sessions: dict[QueueEpoch, str | None] = {}
        self.held: dict[QueueKey, GrantReceived] = {}
        """The grant that its client has received and believes to be valid."""
        self.ended_epochs: set[QueueEpoch] = set()
        """Epochs that were released or reported as over, and not named in a LOCK since: the response to an earlier LOCK does not count."""
        self.found: list[Violation] = []
        self.opened: dict[str, BrokerOpened] = {}
        """Broker → its last start."""
        self.ended: dict[str, tuple[float, float]] = {}
        """Broker → when its last process ended, and the seconds of grace that it announced."""
        self.proven: dict[tuple[str, str], float] = {}
        """(session, broker) → when the request of the last proof was sent."""

    def run(self) -> list[Violation]:
        for place, event in enumerate(self.history):
            if isinstance(event, ProofReceived):
                self.leases.proven(event)
                self.proven[event.session or "", event.broker] = event.request_t
            elif isinstance(event, BrokerOpened):
                self._opens(place, event)
            elif isinstance(event, LockGranted):
                self._granted(event)
            elif isinstance(event, GrantReceived):
                newest = self.newest.get(event.queue)
                if (newest is None or newest.epoch <= event.epoch) and (event.queue, event.epoch) not in self.ended_epochs:
                    self.held[event.queue] = event
            elif isinstance(event, CommitSent):
                if event.released and event.epoch is not None:
                    self._end_epoch(event.queue, event.epoch)
            elif isinstance(event, StaleReceived):
                self._end_epoch(event.queue, event.epoch)
            elif isinstance(event, LockRefused):
                if event.verdict in (ItemVerdict.STALE, ItemVerdict.NOT_YOURS):
                    self._end_epoch(event.queue, event.epoch)
            elif isinstance(event, CommitResponded):
                self._committed(event)
            elif isinstance(event, ClassicLocked):
                if event.granted:
                    self._check_classic_grant(event)
            elif isinstance(event, LockSent):
                self._locked(event)
            elif isinstance(event, PullReceived):
                self._check_pull(event)
            elif isinstance(event, ProcessEnded):
                for broker, life in self.opened.items():
                    if life.process == event.process:
                        self.ended[broker] = event.t, life.grace_ms / 1000
                for queue in [queue for queue, grant in self.held.items() if grant.process == event.process]:
                    del self.held[queue]
            elif isinstance(event, Fault) and event.kind == "wipe":
                for queue in [queue for queue in self.held if queue.broker == event.target]:
                    del self.held[queue]
        return self.found

    def _opens(self, place: int, event: BrokerOpened) -> None:
        before = self.opened.get(event.broker)
        self.opened[event.broker] = event
        cuts = self.brokers.lossy_cuts(event.broker)
        lives = [] if before is None else self.brokers.lives[event.broker]
        since = next((life.opened for life in lives if before and (life.process, life.term) == (before.process, before.term)), -1)
        if before is None or any(since < cut < place for cut in cuts):
            self.ended.pop(event.broker, None)

    def _has_start_grace(self, holder: GrantReceived, t: float) -> bool:
        """Return whether the broker knows this holder from before its start, and the grace from its open port is not over.

        A request of it arrived within the grace before the end of the last process, which can't have ended its session then.
        """
        broker = holder.queue.broker
        opened, (ended_t, grace_s) = self.opened.get(broker), self.ended.get(broker, (inf, 0.0))
        if opened is None or holder.t > ended_t or opened.t < ended_t:
            return False
        heard_t = self.proven.get((holder.session or "", broker), -inf)
        return heard_t > ended_t - SURELY * grace_s and t < opened.t + SURELY * opened.grace_ms / 1000

    def _report(self, t: float, text: str) -> None:
        self.found.append(Violation("R3", t, text))

    def _end_epoch(self, queue: QueueKey, epoch: int | None) -> None:
        if epoch is not None:
            self.ended_epochs.add((queue, epoch))
        grant = self.held.get(queue)
        if grant is not None and grant.epoch == epoch:
            del self.held[queue]

    def _locked(self, event: LockSent) -> None:
        """Release the queues that a session holds and that its LOCK does not name with their epoch."""
        named = {(queue, epoch) for queue, epoch in event.items if epoch is not None}
        self.ended_epochs -= named
        for queue, grant in list(self.held.items()):
            if queue.broker == event.broker and grant.session == event.session and (queue, grant.epoch) not in named:
                del self.held[queue]

    def _granted(self, event: LockGranted) -> None:
        owner = self.sessions.setdefault((event.queue, event.epoch), event.session)
        if owner != event.session:
            text = (
                f"{event.queue} epoch {event.epoch} was granted to session {_short(event.session)}: it belongs to session {_short(owner)}"
            )
            self._report(event.t, text)
        newest = self.newest.get(event.queue)
        if event.renewal:
            if newest is not None and event.epoch < newest.epoch and event.request_t > newest.t:
                self._report(
                    event.t, f"{event.queue} epoch {event.epoch} was renewed for session {_short(event.session)}: {_newer(newest)}"
                )
            return
        holder = self.held.get(event.queue)
        if holder is not None and holder.session is not None and holder.session != event.session and holder.epoch < event.epoch:
            deadline_ms = self.leases.deadline_ms.get((holder.session, event.queue.broker))
            now_ms = self.clocks.boot_ms(holder.machine, event.t)
            deleted = self.deletions.within(event.queue.topic, holder.t, event.t)
            if deadline_ms is not None and now_ms is not None and now_ms < deadline_ms and not deleted:
                text = (
                    f"{event.queue} epoch {event.epoch} was granted to session {_short(event.session)} by "
                    f"{process_name(event)} while {process_name(holder)} held epoch {holder.epoch}: "
                    f"its deadline is {deadline_ms} on its boot clock, which showed {now_ms:.0f}"
                )
                self._report(event.t, text)
            elif not deleted and self._has_start_grace(holder, event.t):
                text = (
                    f"{event.queue} epoch {event.epoch} was granted to session {_short(event.session)} although "
                    f"{process_name(holder)}, which holds epoch {holder.epoch}, still has the grace of a start to come back"
                )
                self._report(event.t, text)
        if newest is None or event.epoch > newest.epoch:
            self.newest[event.queue] = event

    def _valid_holder(self, queue: QueueKey, t: float) -> GrantReceived | None:
        """Return the session's grant whose proof is valid at `t`."""
        holder = self.held.get(queue)
        deadline_ms = None if holder is None else self.leases.deadline_ms.get((holder.session or "", queue.broker))
        now_ms = None if holder is None else self.clocks.boot_ms(holder.machine, t)
        return holder if deadline_ms is not None and now_ms is not None and now_ms < deadline_ms else None

    def _check_classic_grant(self, event: ClassicLocked) -> None:
        """Check that a client without a session gets a queue only when no session holds it."""
        holder = self._valid_holder(event.queue, event.t)
        if holder is not None:
            text = f"{event.queue} was granted to classic client {event.client_id} while {process_name(holder)} held epoch"
            self._report(event.t, f"{text} {holder.epoch} and its proof was valid")
        self.held.pop(event.queue, None)

    def _check_update(self, event: CommitResponded) -> None:
        """Check that UPDATE_CONSUMER_OFFSET is not applied while a session holds the queue. A power cut may have removed the grant."""
        holder = self._valid_holder(event.queue, event.t)
        taken = event.by == "UPDATE" and event.verdict is ItemVerdict.OK and not self.brokers.lossy_cuts(event.queue.broker)
        if taken and holder is not None and holder.t < event.request_t:
            text = f"{event.queue}: offset {event.offset} of process {event.client} was accepted without an epoch"
            self._report(event.t, f"{text} while {process_name(holder)} held epoch {holder.epoch}")

    def _committed(self, event: CommitResponded) -> None:
        if event.epoch is None:
            self._check_update(event)
            return
        if event.verdict is ItemVerdict.STALE:
            self._end_epoch(event.queue, event.epoch)
        if event.verdict is not ItemVerdict.OK:
            return
        what = "release" if event.released else "commit"
        where = f"{event.queue}: {what} of offset {event.offset} under epoch {event.epoch} by session {_short(event.session)} was accepted"
        newest = self.newest.get(event.queue)
        if newest is not None and event.epoch < newest.epoch and event.request_t > newest.t:
            self._report(event.t, f"{where}: {_newer(newest)}")
        owner = self.sessions.get((event.queue, event.epoch), event.session)
        if owner != event.session:
            self._report(event.t, f"{where}: the epoch belongs to session {_short(owner)}")

    def _check_pull(self, event: PullReceived) -> None:
        newest = self.newest.get(event.queue)
        if event.epoch is None or newest is None or event.code != ResponseCode.SUCCESS:
            return
        if event.epoch < newest.epoch and event.response_t > newest.t:
            where = f"{event.queue}: a pull from {event.offset} under epoch {event.epoch} by {process_name(event)} was served"
            self._report(event.t, f"{where} at {event.response_t:.3f}: {_newer(newest, when='then')}")


def _newer(newest: LockGranted, when: str = "it was requested") -> str:
    return f"epoch {newest.epoch} had been granted to session {_short(newest.session)} at {newest.t:.3f}, before {when}"


def _short(session: str | None) -> str:
    return "none" if session is None else session[:8]

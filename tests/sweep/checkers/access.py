"""U1 to U5: a user gets what the rules in force at the broker allow, and nothing that belongs to another user.

Rules are in force at a server from the time at which it has read them (UsersInForce). A response that gives messages has to be allowed when
it is written, any other one at some time between its request and itself: it may have waited for the disk.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from math import inf

from lockstep.protocol.codes import RequestCode, ResponseCode
from sweep.checkers.violation import Violation, process_name
from sweep.events.access import Account, Answered, LockGivenUp, LoginAccepted, UsersInForce, UsersWritten
from sweep.events.locks import LockGranted, LockRefused, SessionBound
from sweep.events.universe import BrokerOpened, PauseBegan, PauseEnded, ProcessEnded
from sweep.history import History, ItemVerdict, QueueKey

LOOK_S, CLOSE_S = 5.0, 10.0
"""How often servers look at the file, and within which time they close the connections of who may not log in any more."""
SLACK_S = 0.6
"""The drift of clocks in that time, and threads."""
LEASE_S = 55.0
"""Less than the lease of a classic lock by any clock."""
GRACE_SHARE = 0.9
"""The same for a grace."""
TOLD_MAX = 2
"""How many LOCKs a member without rights may send until it holds no queue: the first one is answered STALE, the second does not name it."""
OF_GROUPS = ("%RETRY%", "%DLQ%")


def check(history: History) -> list[Violation]:
    if not history.of(UsersWritten):
        return []
    rules = _Rules(history)
    return [*_served(history, rules), *_reads(history, rules), *_logins(history, rules), *_owners(history), *_kept(history, rules)]


class _Rules:
    """The accounts in force at each server at each time, and when servers were paused."""

    def __init__(self, history: History) -> None:
        self._versions = {written.version: {one.name: one for one in written.accounts} for written in history.of(UsersWritten)}
        self._reads: dict[int, list[UsersInForce]] = {}
        for read in history.of(UsersInForce):
            self._reads.setdefault(read.process, []).append(read)
        self._times = {process: [read.t for read in reads] for process, reads in self._reads.items()}
        self.ends = {ended.process: ended.t for ended in history.of(ProcessEnded)}
        self._pauses: dict[int, list[tuple[float, float]]] = {}
        ends = history.of(PauseEnded)
        for began in history.of(PauseBegan):
            until = next((ended.t for ended in ends if ended.process == began.process and ended.t >= began.t), inf)
            self._pauses.setdefault(began.process, []).append((began.t, until))

    def servers(self) -> Iterator[tuple[int, list[UsersInForce]]]:
        """Yield each process of a server, with its reads."""
        yield from self._reads.items()

    def at(self, process: int, t: float) -> Mapping[str, Account]:
        """Return the accounts in force."""
        place = bisect_right(self._times[process], t)
        return self._versions[self._reads[process][max(place - 1, 0)].version]

    def between(self, process: int, begin: float, end: float) -> list[Mapping[str, Account]]:
        """Return the accounts that were in force at some time."""
        later = [self._versions[read.version] for read in self._reads[process] if begin < read.t <= end]
        return [self.at(process, begin), *later]

    def denied_since(self, process: int, t: float, user: str, needs: tuple[str, ...]) -> float | None:
        """Return since when a user lacks one of the rights at `t`; None if it has all."""
        since = None
        for read in reversed([read for read in self._reads[process] if read.t <= t]):
            if all(allows(self._versions[read.version].get(user), need) for need in needs):
                break
            since = read.t
        return since

    def was_read(self, process: int, written: UsersWritten, due_t: float) -> bool:
        """Return whether the accounts of a version, or of a later one, are in force at `due_t`."""
        found = self.at(process, due_t)
        return any(found == self._versions[version] for version in range(written.version, len(self._versions) + 1))

    def was_paused(self, process: int, begin: float, end: float) -> bool:
        return any(since <= end and until >= begin for since, until in self._pauses.get(process, ()))


# ------------------------------------------------------------------------------------------------------------------ what is served


def allows(account: Account | None, need: str) -> bool:
    """Return whether an account has one of the rights that a need names."""
    if account is None:
        return False
    words, _, resource = need.partition(" ")
    for prefix in OF_GROUPS:
        resource = resource.replace(f"topic:{prefix}", "group:")

    def named(rules: tuple[str, ...], action: str) -> bool:
        return any(_concerns(rule, action, resource) for rule in rules)

    return account.is_super or any(named(account.allow, each) and not named(account.deny, each) for each in words.split(","))


def _concerns(rule: str, action: str, resource: str) -> bool:
    actions, _, pattern = rule.partition(" ")
    return action in actions.split(",") and (resource == pattern or (pattern.endswith("*") and resource.startswith(pattern[:-1])))


def _served(history: History, rules: _Rules) -> Iterator[Violation]:
    for one in history.of(Answered):
        began = one.t if one.gives else one.request_t
        for need in one.needs:
            if not any(allows(accounts.get(one.user), need) for accounts in rules.between(one.process, began, one.t)):
                request = f"{RequestCode(one.code).name} of {one.request_t:.3f}"
                text = f"{process_name(one)} served {request} to {one.user}, who has none of the rights {need}"
                yield Violation("U1", one.t, text)


# ------------------------------------------------------------------------------------------------------------ reads and connections


def _reads(history: History, rules: _Rules) -> Iterator[Violation]:
    """Check that each server that runs reads a change in time."""
    end_t = history.events[-1].t
    for process, reads in rules.servers():
        for written in history.of(UsersWritten):
            due_t = written.t + LOOK_S + SLACK_S
            if written.t < reads[0].t or due_t > min(rules.ends.get(process, inf), end_t):
                continue
            if rules.was_paused(process, written.t, due_t):
                continue
            if not rules.was_read(process, written, due_t):
                yield Violation("U2", due_t, f"{process_name(reads[0])} has not read version {written.version} of {written.t:.3f}")


def _may_log_in(accounts: Mapping[str, Account], login: LoginAccepted) -> bool:
    account = accounts.get(login.user)
    return account is not None and (login.password is None or login.password in account.passwords)


def _logins(history: History, rules: _Rules) -> Iterator[Violation]:
    """Check that a login is accepted if it may be, and that its connection ends when it may not be any more."""
    last: dict[int, Answered] = {one.connection: one for one in history.of(Answered)}
    reads = dict(rules.servers())
    for login in history.of(LoginAccepted):
        if not _may_log_in(rules.at(login.process, login.t), login):
            yield Violation("U3", login.t, f"{process_name(login)} accepted a login of {login.user}, whose password is not in force")
            continue
        lost = (read.t for read in reads[login.process] if read.t > login.t and not _may_log_in(rules.at(login.process, read.t), login))
        gone_t, used = next(lost, inf), last.get(login.connection)
        due_t = gone_t + CLOSE_S + SLACK_S
        if used is not None and used.t > due_t and not rules.was_paused(login.process, gone_t, used.t):
            text = f"{process_name(login)} serves the connection of {login.user} of {login.t:.3f}, who may not log in since {gone_t:.3f}"
            yield Violation("U3", used.t, text)


# -------------------------------------------------------------------------------------------------------------------- ownership


def _owners(history: History) -> Iterator[Violation]:
    """Check that what belongs to a user is not given to another one while it does.

    A client id belongs to the user of a session until a grace after its last response, a classic lock until the end of its lease, and a
    producer id until the broker ends.
    """
    owners: dict[tuple[int, str], Answered] = {}
    """(broker's process, claim) → the last response to its owner."""
    used: dict[int, float] = {}
    """Connection → its last response."""
    graces: dict[int, float] = {}
    for event in history:
        if isinstance(event, BrokerOpened):
            graces[event.process] = event.grace_ms / 1_000
        elif isinstance(event, LockGivenUp):
            for key in [key for key in owners if key[1] == event.claim]:
                del owners[key]
        elif isinstance(event, Answered):
            used[event.connection] = event.t
            for claim in event.claims:
                owner = owners.get((event.process, claim))
                if owner is None or owner.user == event.user or event.t > _until(claim, owner, used, graces):
                    owners[event.process, claim] = event
                    continue
                text = f"{process_name(event)} gave {claim} to {event.user}; it belongs to {owner.user} since {owner.t:.3f}"
                yield Violation("U4", event.t, text)


def _until(claim: str, owner: Answered, used: Mapping[int, float], graces: Mapping[int, float]) -> float:
    """Return how long a claim belongs to its owner at least."""
    if claim.startswith("client id "):
        return used[owner.connection] + graces[owner.process] * GRACE_SHARE
    return owner.t + LEASE_S if claim.startswith("lock ") else inf


def _kept(history: History, rules: _Rules) -> Iterator[Violation]:
    """Check that a member that may not consume any more keeps no queue from others, once it knows."""
    users = {login.connection: login.user for login in history.of(LoginAccepted)}
    connections: dict[tuple[str, str | None], dict[int, None]] = {}
    locks: dict[int, list[float]] = {}
    """Connection → when its LOCKs were answered."""
    held: dict[QueueKey, LockGranted] = {}
    for event in history:
        if isinstance(event, SessionBound):
            connections.setdefault((event.broker, event.session), {})[event.connection] = None
        elif isinstance(event, Answered) and (event.code, event.result) == (RequestCode.LOCK_BATCH_MQ, ResponseCode.SUCCESS):
            locks.setdefault(event.connection, []).append(event.t)
        elif isinstance(event, LockGranted):
            held[event.queue] = event
        elif isinstance(event, LockRefused) and event.verdict is ItemVerdict.HELD:
            holder = held.get(event.queue)
            of_holder = connections.get((event.queue.broker, holder.session), {}) if holder is not None else {}
            user = next((users[one] for one in of_holder if one in users), None)
            if holder is None or user is None or holder.process != event.process:
                continue
            needs = f"Sub group:{event.queue.group}", f"Sub topic:{event.queue.topic}"
            since = rules.denied_since(event.process, event.t, user, needs)
            told = 0 if since is None else sum(since < t < event.t for one in of_holder for t in locks.get(one, ()))
            if told > TOLD_MAX:
                text = f"{event.queue} is held by {user}, who may not consume it since {since:.3f} and has sent {told} LOCKs since then"
                yield Violation("U5", event.t, text)

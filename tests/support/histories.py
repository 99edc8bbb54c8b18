"""Hand-written histories: a test gives the relevant fields, all other fields of an event have default values.

Broker broker-a on machine B (process 1) serves queue Q to consumers C1 (process 11, session s1) and C2 (process 12, session s2). The
producer is P (process 21). Clocks of all machines show the global time. The term is 100: epoch(n) is its n-th fencing token.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, fields
from typing import Any, Self

from sweep.checkers.violation import Violation
from sweep.events.consumers import CallBegan, CallEnded
from sweep.events.locks import GrantReceived, LockGranted, LockSent, ProofReceived
from sweep.events.producers import SendAcked, SendBegan
from sweep.events.progress import CommitReceived, CommitResponded, CommitSent
from sweep.events.sends import FrameResponded, FrameWritten
from sweep.events.universe import BrokerOpened, CalmBegan, MessageStored, PauseBegan, PauseEnded, PowerCut, ProcessEnded, ReadingEnded
from sweep.history import CallResult, Event, History, ItemVerdict, QueueKey, SendOutcome

TERM = 100
Where = tuple[str, int]
"""(machine, process)."""
B, C1, C2, P = ("B", 1), ("C1", 11), ("C2", 12), ("P", 21)
B2, ADMIN = ("B", 2), ("A", 31)
"""The broker's next process, and a process of an operator."""
SESSIONS = {11: "s1", 12: "s2"}
LOG = QueueKey("", "broker-a", "orders", 0)
Q = QueueKey("billing", "broker-a", "orders", 0)


def epoch(number: int, term: int = TERM) -> int:
    return term << 32 | number


class HistoryBuilder:
    """Builds a history. Events may be added in any order. Events of the same time keep the order of addition.

    A builder never changes: each method returns another one with more events, so that several histories may have the same beginning.
    """

    def __init__(self, *, flush: str = "async") -> None:
        self._flush = flush
        self._events: tuple[Event, ...] = ()
        self._events = self.add(BrokerOpened, 0.0, flush=flush, grace_ms=3_000)._events

    def add(self, kind: type[Event], t: float, where: Where = B, /, **facts: Any) -> Self:
        """Add an event. Fields that are not given have default values."""
        usual: dict[str, Any] = {
            "queue": LOG if kind in (MessageStored, ReadingEnded, SendAcked, FrameWritten, FrameResponded) else Q,
            "broker": "broker-a", "topic": "orders", "group": "billing", "producer": "p", "session": SESSIONS.get(where[1]),
            "client": 11, "client_id": "c", "connection": 1, "number": 1, "term": TERM, "epoch": epoch(1), "generation": 1,
            "offset": 0, "first": 0, "next_offset": 0, "position": 0, "attempts": 0, "count": 1, "code": 0, "request": 1, "call": 1,
            "renewal": False, "released": False, "lock": False, "by": "SYNC", "verdict": ItemVerdict.OK, "grace_ms": 3_000,
            "boot_ms": round(t * 1000), "request_t": t - 0.002, "request_boot_ms": round((t - 0.002) * 1000),
            "items": (), "messages": ((0, b"m0"),), "key": "k", "body": b"m0", "bodies": (b"m0",), "layout": (1, 7),
            "sequence": (0, 0, 0), "done": (), "replays": (), "level": 0, "retries_max": None,
            "result": CallResult.SUCCESS, "outcome": SendOutcome.UNKNOWN, "expressions": (("orders", "*"),),
        }  # fmt: skip
        given = {}
        for field in fields(kind)[3:]:
            if field.name in facts:
                given[field.name] = facts.pop(field.name)
            elif field.name in usual and (field.name in ("broker", "term", "topic") or not _optional(field)):
                given[field.name] = usual[field.name]
        assert not facts, f"{kind.__name__} has no {list(facts)}"
        after = copy(self)
        after._events = (*self._events, kind(t, *where, **given))
        return after

    # ------------------------------------------------------------------------------------------------------- common sequences of events

    def granted(self, t: float, number: int, where: Where = C1, *, offset: int = 0, generation: int = 1, **facts: Any) -> Self:
        """Add a LOCK, sent at t − 0.002, with a response sent at t − 0.001 and received at t. It grants the queue and proves liveness."""
        whose = {"session": SESSIONS[where[1]], "epoch": epoch(number), "offset": offset, "generation": generation, **facts}
        renewal = whose.get("renewal", False)
        asked = self.add(LockSent, t - 0.002, where, items=((whose.get("queue", Q), epoch(number) if renewal else None),))
        responded = asked.add(LockGranted, t - 0.001, client=where[1], request_t=t - 0.002, **whose)
        return responded.proven(t, where, lock=True).add(GrantReceived, t, where, **whose)

    def proven(self, t: float, where: Where = C1, *, lock: bool = False, **facts: Any) -> Self:
        """Add a response at t to a request at t − 0.002."""
        return self.add(ProofReceived, t, where, lock=lock, grace_ms=3_000 if lock else None, **facts)

    def call(self, begin: float, end: float | None, number: int, *offsets: int, where: Where = C1, **facts: Any) -> Self:
        """Add a call under epoch(number). Without an `end` it is still running."""
        call = facts.pop("call", 0) or 1 + sum(isinstance(event, CallBegan) for event in self._events)
        queue = facts.pop("queue", Q)
        result = facts.pop("result", CallResult.SUCCESS)
        bodies = facts.pop("bodies", None) or tuple(b"m%d" % offset for offset in offsets)
        messages = tuple(zip(offsets, bodies, strict=True))
        began = self.add(CallBegan, begin, where, queue=queue, epoch=epoch(number), messages=messages, call=call, **facts)
        return began if end is None else began.add(CallEnded, end, where, queue=queue, epoch=epoch(number), call=call, result=result)

    def committed(self, t: float, number: int, offset: int | None, where: Where = C1, **facts: Any) -> Self:
        """Add a commit, sent at t − 0.002, with a response sent at t − 0.001 and received at t."""
        what = {"epoch": epoch(number), "offset": offset, "session": SESSIONS[where[1]], **facts}
        verdict = what.pop("verdict", ItemVerdict.OK)
        sent = self.add(CommitSent, t - 0.002, where, **what)
        responded = sent.add(CommitResponded, t - 0.001, client=where[1], request_t=t - 0.002, verdict=verdict, **what)
        return responded.add(CommitReceived, t, where, request_t=t - 0.002, verdict=verdict, **what)

    def sent(self, t: float, body: bytes, offset: int, *, acked: float | None = None, key: str | None = "k", **facts: Any) -> Self:
        """Add a send at t. The producer received the acknowledgement at `acked` (default: 2 ms later), 1 ms after the broker's response."""
        request = 1 + sum(isinstance(event, SendBegan) for event in self._events)
        acked = t + 0.002 if acked is None else acked
        queue, layout = facts.pop("queue", LOG), facts.pop("layout", (1, 7))
        where = {"queue": queue, "offset": offset, "request": request, "position": facts.pop("position", offset * 100)}
        answerer, written = facts.pop("answerer", B), facts.pop("written", False)
        sent = self.add(SendBegan, t, P, body=body, key=key, **facts)
        sent = sent.add(FrameWritten, t, P, bodies=(body,), queue=queue, layout=layout if key else None, request=request)
        responded = sent.add(FrameResponded, acked - 0.001, answerer, request_t=t, **where)
        return responded.add(SendAcked, acked, P, body=body, queue=queue, offset=offset, written=written)

    def read(self, t: float, *bodies: bytes, queue: QueueKey = LOG, first: int = 0, stored_t: float | None = None) -> Self:
        """Add the final reading of a queue."""
        after = self
        for offset, body in enumerate(bodies, first):
            after = after.add(MessageStored, t, ("", 0), queue=queue, offset=offset, body=body, stored_t=stored_t)
        return after.add(ReadingEnded, t, ("", 0), queue=queue, first=first, end=first + len(bodies))

    # ------------------------------------------------------------------------------------------------------------------- faults

    def killed(self, t: float, where: Where = B, how: str = "kill") -> Self:
        return self.add(ProcessEnded, t, where, how=how)

    def opened(self, t: float, where: Where = B2, **facts: Any) -> Self:
        """Open the port of the broker's next process."""
        return self.add(BrokerOpened, t, where, **{"term": TERM + 1, "flush": self._flush, **facts})

    def power_cut(self, t: float, opened_t: float | None = None, where: Where = B) -> Self:
        """Cut the power of the broker's machine, whose next process opens its port at `opened_t`."""
        cut = self.killed(t, where, "power").add(PowerCut, t, ("B", 0))
        return cut if opened_t is None else cut.opened(opened_t, ("B", where[1] + 1), term=TERM + where[1])

    def suspended(self, t: float, until: float, where: Where = C1) -> Self:
        return self.add(PauseBegan, t, where).add(PauseEnded, until, where)

    def calm(self, t: float) -> Self:
        """End the faults."""
        return self.add(CalmBegan, t, ("", 0))

    # ---------------------------------------------------------------------------------------------------------------- the end

    def history(self) -> History:
        history = History()
        for event in sorted(self._events, key=lambda event: event.t):
            history.append(event)
        return history

    def broken(self, check: Callable[[History], list[Violation]]) -> list[str]:
        """Return the violated laws, sorted, one per violation."""
        return sorted(violation.law for violation in check(self.history()))


def assert_faults(check: Callable[[History], list[Violation]], rows: Mapping[str, tuple[HistoryBuilder, str]]) -> None:
    """Assert which laws each history violates: sorted, one per violation, "" for none. A row has the name of what its history shows."""
    found = {name: (" ".join(builder.broken(check)), laws) for name, (builder, laws) in rows.items()}
    wrong = [f"{name}: found {laws or 'none'}, not {expected or 'none'}" for name, (laws, expected) in found.items() if laws != expected]
    assert not wrong, "; ".join(wrong)


def _optional(field: Any) -> bool:
    return field.default is not MISSING


HELD = HistoryBuilder().granted(1, 1)
"""C1 is granted the queue at 1."""

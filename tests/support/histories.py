"""Hand-written histories: a test gives the relevant fields, all other fields of an event have default values.

Broker broker-a on machine B (process 1) serves queue Q to consumers C1 (process 11, session s1) and C2 (process 12, session s2). The
producer is P (process 21). Clocks of all machines show the global time. The term is 100: epoch(n) is its n-th fencing token.
"""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

from sweep.checkers.violation import Violation
from sweep.events.consumers import CallBegan, CallEnded
from sweep.events.locks import GrantReceived, LockGranted, LockSent, ProofReceived
from sweep.events.producers import SendAcked, SendBegan
from sweep.events.progress import CommitReceived, CommitResponded, CommitSent
from sweep.events.sends import FrameResponded, FrameWritten
from sweep.events.universe import BrokerOpened, MessageStored, ReadingEnded
from sweep.history import CallResult, Event, History, ItemVerdict, QueueKey, SendOutcome

TERM = 100
B, C1, C2, P = ("B", 1), ("C1", 11), ("C2", 12), ("P", 21)
SESSIONS = {11: "s1", 12: "s2"}
LOG = QueueKey("", "broker-a", "orders", 0)
Q = QueueKey("billing", "broker-a", "orders", 0)


def epoch(number: int, term: int = TERM) -> int:
    return term << 32 | number


class HistoryBuilder:
    """Builds a history. Events may be added in any order. Events of the same time keep the order of addition."""

    def __init__(self, *, flush: str = "async", grace_ms: int = 3_000) -> None:
        self._events: list[Event] = []
        self._requests = 0
        self.add(BrokerOpened, 0.0, flush=flush, grace_ms=grace_ms)

    def add(self, kind: type[Event], t: float, where: tuple[str, int] = B, /, **facts: Any) -> "HistoryBuilder":
        """Add an event. Fields that are not given have default values."""
        usual: dict[str, Any] = {
            "queue": LOG if kind in (MessageStored, ReadingEnded, SendAcked, FrameWritten, FrameResponded) else Q,
            "broker": "broker-a",
            "topic": "orders",
            "group": "billing",
            "term": TERM,
            "epoch": epoch(1),
            "offset": 0,
            "generation": 1,
            "attempts": 0,
            "session": SESSIONS.get(where[1]),
            "client": 11,
            "client_id": "c",
            "connection": 1,
            "number": 1,
            "renewal": False,
            "released": False,
            "grace_ms": 3_000,
            "verdict": ItemVerdict.OK,
            "by": "SYNC",
            "boot_ms": round(t * 1000),
            "request_t": t - 0.002,
            "request_boot_ms": round((t - 0.002) * 1000),
            "lock": False,
            "items": (),
            "messages": ((0, b"m0"),),
            "call": 1,
            "result": CallResult.SUCCESS,
            "key": "k",
            "body": b"m0",
            "bodies": (b"m0",),
            "layout": (1, 7),
            "producer": "p",
            "sequence": (0, 0, 0),
            "request": 1,
            "code": 0,
            "position": 0,
            "outcome": SendOutcome.UNKNOWN,
            "expressions": (("orders", "*"),),
            "first": 0,
            "next_offset": 0,
            "done": (),
            "replays": (),
            "level": 0,
            "retries_max": None,
        }
        given = {}
        for field in fields(kind)[3:]:
            if field.name in facts:
                given[field.name] = facts.pop(field.name)
            elif field.name in usual and (field.name in ("broker", "term", "topic") or not _optional(field)):
                given[field.name] = usual[field.name]
        assert not facts, f"{kind.__name__} has no {list(facts)}"
        self._events.append(kind(t, *where, **given))
        return self

    # ------------------------------------------------------------------------------------------------------- common sequences of events

    def granted(
        self, t: float, number: int, where: tuple[str, int] = C1, *, offset: int = 0, generation: int = 1, **facts: Any
    ) -> "HistoryBuilder":
        """Add a LOCK, sent at t − 0.002, with a response sent at t − 0.001 and received at t. It grants the queue and proves liveness."""
        whose = {"session": SESSIONS[where[1]], "epoch": epoch(number), "offset": offset, "generation": generation, **facts}
        renewal = whose.get("renewal", False)
        self.add(LockSent, t - 0.002, where, items=((whose.get("queue", Q), epoch(number) if renewal else None),))
        self.add(LockGranted, t - 0.001, client=where[1], request_t=t - 0.002, **whose)
        self.proven(t, where, lock=True)
        return self.add(GrantReceived, t, where, **whose)

    def proven(self, t: float, where: tuple[str, int] = C1, *, lock: bool = False, **facts: Any) -> "HistoryBuilder":
        """Add a response at t to a request at t − 0.002."""
        return self.add(ProofReceived, t, where, lock=lock, grace_ms=3_000 if lock else None, **facts)

    def call(
        self,
        begin: float,
        end: float | None,
        number: int,
        *offsets: int,
        where: tuple[str, int] = C1,
        call: int | None = None,
        **facts: Any,
    ) -> "HistoryBuilder":
        """Add a call under epoch(number). Without an `end` it is still running."""
        call = call or 1 + sum(isinstance(event, CallBegan) for event in self._events)
        queue = facts.pop("queue", Q)
        result = facts.pop("result", CallResult.SUCCESS)
        bodies = facts.pop("bodies", None) or tuple(b"m%d" % offset for offset in offsets)
        messages = tuple(zip(offsets, bodies, strict=True))
        self.add(CallBegan, begin, where, queue=queue, epoch=epoch(number), messages=messages, call=call, **facts)
        if end is not None:
            self.add(CallEnded, end, where, queue=queue, epoch=epoch(number), call=call, result=result)
        return self

    def committed(self, t: float, number: int, offset: int | None, where: tuple[str, int] = C1, **facts: Any) -> "HistoryBuilder":
        """Add a commit, sent at t − 0.002, with a response sent at t − 0.001 and received at t."""
        what = {"epoch": epoch(number), "offset": offset, "session": SESSIONS[where[1]], **facts}
        verdict = what.pop("verdict", ItemVerdict.OK)
        self.add(CommitSent, t - 0.002, where, **what)
        self.add(CommitResponded, t - 0.001, client=where[1], request_t=t - 0.002, verdict=verdict, **what)
        return self.add(CommitReceived, t, where, request_t=t - 0.002, verdict=verdict, **what)

    def sent(
        self, t: float, body: bytes, offset: int, *, acked: float | None = None, key: str | None = "k", **facts: Any
    ) -> "HistoryBuilder":
        """Add a send at t. The producer received the acknowledgement at `acked` (default: 2 ms later), 1 ms after the broker's response."""
        self._requests += 1
        acked = t + 0.002 if acked is None else acked
        queue, layout = facts.pop("queue", LOG), facts.pop("layout", (1, 7))
        position = facts.pop("position", offset * 100)
        answerer, written = facts.pop("answerer", B), facts.pop("written", False)
        self.add(SendBegan, t, P, body=body, key=key, **facts)
        self.add(FrameWritten, t, P, bodies=(body,), queue=queue, layout=layout if key else None, request=self._requests)
        self.add(
            FrameResponded, acked - 0.001, answerer, queue=queue, offset=offset, position=position, request=self._requests, request_t=t
        )
        return self.add(SendAcked, acked, P, body=body, queue=queue, offset=offset, written=written)

    def read(self, t: float, *bodies: bytes, queue: QueueKey = LOG, first: int = 0, stored_t: float | None = None) -> "HistoryBuilder":
        """Add the final reading of a queue."""
        for offset, body in enumerate(bodies, first):
            self.add(MessageStored, t, ("", 0), queue=queue, offset=offset, body=body, stored_t=stored_t)
        return self.add(ReadingEnded, t, ("", 0), queue=queue, first=first, end=first + len(bodies))

    # ---------------------------------------------------------------------------------------------------------------- the end

    def history(self) -> History:
        history = History()
        for event in sorted(self._events, key=lambda event: event.t):
            history.append(event)
        return history

    def broken(self, check: Callable[[History], list[Violation]]) -> list[str]:
        """Return the violated laws, sorted, one per violation."""
        return sorted(violation.law for violation in check(self.history()))


def _optional(field: Any) -> bool:
    return field.default is not MISSING

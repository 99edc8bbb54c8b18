"""The checkers of one history, by the laws of docs/invariants.md. Each check is a pure function.

| law | module | law | module |
|---|---|---|---|
| O1 offsets and epochs never fall, or jump | progress, generations | R1 nothing acknowledged is lost | log |
| O2 nothing is accepted twice | progress | R2 offsets in real-time order | log |
| O3 when a listener may be called | calls | R3 one holder | ownership |
| O4 the order of a key | keys | R4a offset after offset in an epoch; R4b | steps; calls.overlaps |
| O5 nothing is skipped | steps, delivery, starts, subscriptions | R5 liveness after the calm | delivery |
| O6 nothing acknowledged is forgotten | progress | R6 the same over a start | progress |
| O7 how fast a queue moves | handover | R7 delivered messages remain | log |
| O8 one message at each place, permanently | log | R9 the result of a send is true | sends |
| C1 concurrent progress | concurrent | C2 tries, dead letters | copies, dead_letters |
| D1 delays | delays, timers | R5 of concurrent groups | concurrent |
| B1–B4 broadcasting | broadcast, members | R5 of broadcasting groups | broadcast |
| P1 pull consumers | readers, concurrent | O5, R5 of pull consumers | readers |
| K1–K3 order and progress by key | lanes | P-K1–P-K3 parked keys | parks |
| L1 clients without a session | classic | R8 a damaged log is refused | rot |
| a server ends only for a known cause | services | T1 every stored message is in the layout | layouts |
| R9 a send ends by its deadline | deadlines | T2 topics have a limit | layouts |
| U1–U5 what users get | access | M1–M5 copies of a log | replicas |
| M6–M11 elections of masters | elections | W1, W2 recalls | timers |

R4c (a sink that refuses lower fences sees effects in order) follows from O1, O5 and R4a. R10 (memory and files have limits) is not a law
of one history: tests/sim/test_limits.py.
"""

from collections.abc import Callable

from sweep.checkers import (
    access,
    broadcast,
    calls,
    classic,
    concurrent,
    copies,
    dead_letters,
    deadlines,
    delays,
    delivery,
    elections,
    generations,
    handover,
    keys,
    lanes,
    layouts,
    log,
    ownership,
    parks,
    progress,
    readers,
    replicas,
    rot,
    sends,
    services,
    starts,
    steps,
    subscriptions,
    timers,
    transactions,
)
from sweep.checkers.violation import Violation
from sweep.history import History

__all__ = ["CHECKERS", "Violation", "check"]

CHECKERS: dict[str, Callable[[History], list[Violation]]] = {
    "progress": progress.check,
    "generations": generations.check,
    "starts": starts.check,
    "calls": calls.check,
    "ownership": ownership.check,
    "classic": classic.check,
    "steps": steps.check,
    "subscriptions": subscriptions.check,
    "keys": keys.check,
    "lanes": lanes.check,
    "parks": parks.check,
    "log": log.check,
    "layouts": layouts.check,
    "sends": sends.check,
    "deadlines": deadlines.check,
    "rot": rot.check,
    "services": services.check,
    "delivery": delivery.check,
    "handover": handover.check,
    "concurrent": concurrent.check,
    "copies": copies.check,
    "dead_letters": dead_letters.check,
    "delays": delays.check,
    "timers": timers.check,
    "transactions": transactions.check,
    "broadcast": broadcast.check,
    "readers": readers.check,
    "access": access.check,
    "replicas": replicas.check,
    "elections": elections.check,
}
"""Family → its check."""


def check(history: History) -> list[Violation]:
    """Return all violations of all laws, in order of time."""
    return sorted((one for family in CHECKERS.values() for one in family(history)), key=lambda one: (one.t, one.law, one.text))

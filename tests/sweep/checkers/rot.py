"""R8: a broker's start refuses a log whose synced bytes are not those that were written, until the right log is restored.

R9 checks that no wrong body is served, R1 that only an unsynced tail is cut.
"""

from sweep.checkers.violation import Violation, process_name
from sweep.events.universe import BrokerOpened, Fault
from sweep.history import History


def check(history: History) -> list[Violation]:
    rotten: dict[str, Fault] = {}
    found = []
    for event in history:
        if isinstance(event, Fault):
            if event.kind == "log rot":
                rotten[event.target] = event
            elif event.kind == "log repaired":
                rotten.pop(event.target, None)
        elif isinstance(event, BrokerOpened) and event.machine in rotten:
            rot = rotten.pop(event.machine)
            where = f"{event.broker} opened as {process_name(event)}"
            found.append(Violation("R8", event.t, f"{where} although a bit had flipped at {rot.t:.3f}: {rot.facts}"))
    return found

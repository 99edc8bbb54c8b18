"""A server exits only if its disk fails, or has lost or changed written bytes.

exit 3   its disk had failed, or was full
exit 5   a bit of its log had flipped
exit 1   as exit 4 for its log's other copies, if its settings name the one that has more
exit 4   it was started on a copy of a store whose original runs; it must exit with 4, and never open its port. Or it was started as the
         master of a log of which another copy has more: after a promotion, or after a power cut
"""

from sweep.checkers.facts import DISK_FAILS
from sweep.checkers.violation import Violation, process_name
from sweep.events.replicas import MasterOpened, Promoting
from sweep.events.universe import BrokerOpened, Fault, PowerCut, ServerFailed
from sweep.history import History

LAW = "a server exits only for a known cause"


def check(history: History) -> list[Violation]:
    failing: set[str] = set()
    """Machines whose disk has begun to fail; its broker may meet the fault after its end."""
    rotten: set[str] = set()
    copies: set[str] = set()
    """Machines on which a broker was started on a copy."""
    refused: set[str] = set()
    """Machines on which the master of a log with other copies may not open: one of those may have been promoted, or have more."""
    masters: dict[str, str] = {}
    """Broker → the machine that it opened on last."""
    replicated = {event.machine for event in history.of(MasterOpened)}
    found = []
    for event in history:
        if isinstance(event, MasterOpened):
            before = masters.get(event.broker, event.machine)
            if before != event.machine:
                refused.add(before)
            masters[event.broker] = event.machine
        elif isinstance(event, Promoting):
            refused.add(event.target)  # its nameservers may know a later term
        elif isinstance(event, PowerCut) and event.machine in replicated:
            refused.add(event.machine)
        elif isinstance(event, Fault):
            if event.kind in DISK_FAILS:
                failing.add(event.machine)
            elif event.kind == "copied":
                copies.add(event.target)
            elif event.kind == "started as master":
                refused.add(event.target)
            elif event.kind == "log rot":
                rotten.add(event.target)
            elif event.kind == "log repaired":
                rotten.discard(event.target)
        elif isinstance(event, BrokerOpened) and event.machine in copies:
            text = f"{process_name(event)} serves {event.broker} from a copy of its store, while the original runs"
            found.append(Violation("a copy of a store is not served", event.t, text))
        elif isinstance(event, ServerFailed):
            excused = {1: refused, 3: failing, 4: copies | refused, 5: rotten}.get(event.exit_code, set())
            if event.machine not in excused:
                ended = f"{process_name(event)} exited without a known cause: exit code {event.exit_code}: {event.error}"
                found.append(Violation(LAW, event.t, ended))
    return found

"""M1–M5: the copies of a broker's log (docs/replication.md). Checked from the wire and the disks, which the universe compares.

M1  a later master has what was acknowledged, at its place, unless a reason for the loss is known: it was promoted although it was not in
    the stored set of the last master, or everybody who had it lost power under async flush
M2  in the calm the logs of the set are equal, byte by byte, up to what is confirmed
M3  one master acknowledges: the one that opened last; their terms rise. Under a register a deposed one may still send what all have
M4  whoever is in the stored set has what was acknowledged, at each acknowledgement, and when it starts again
M5  in the calm each broker has one master, and all its other copies are in its set
"""

from lockstep.protocol.codes import ResponseCode
from sweep.checkers.violation import Violation, process_name
from sweep.events.elections import RegisterSeen
from sweep.events.replicas import CopiesAsked, LogsCompared, MasterOpened, MemberLacked
from sweep.events.sends import FrameResponded
from sweep.history import History


def check(history: History) -> list[Violation]:
    return [*_logs(history), *_masters(history), *_copies(history)] if history.of(MasterOpened) else []


def _logs(history: History) -> list[Violation]:
    found = []
    for opened in history.of(MasterOpened):
        if opened.missing and not opened.may_lack:
            what = f"{process_name(opened)} serves {opened.broker} without {', '.join(opened.missing)}, which was acknowledged"
            found.append(Violation("M1", opened.t, what))
    for lacked in history.of(MemberLacked):
        what = f"{lacked.member} is in the stored set of {lacked.broker}, and does not have the record at {lacked.position}"
        found.append(Violation("M4", lacked.t, f"{what}, which was acknowledged (noticed at {process_name(lacked)})"))
    for compared in history.of(LogsCompared):
        if compared.differs_at is not None:
            what = f"the log of {compared.broker} on {compared.replica} differs from its master's at {compared.differs_at}"
            found.append(Violation("M2", compared.t, f"{what}, of {compared.since} … {compared.until}"))
    return found


def _masters(history: History) -> list[Violation]:
    found = []
    elect = {seen.broker for seen in history.of(RegisterSeen)}
    last: dict[str, MasterOpened] = {}
    for event in history:
        if isinstance(event, MasterOpened):
            before = last.get(event.broker)
            if before is not None and event.term <= before.term:
                what = f"{process_name(event)} serves {event.broker} in term {event.term}, {process_name(before)} did in {before.term}"
                found.append(Violation("M3", event.t, what))
            last[event.broker] = event
        elif isinstance(event, FrameResponded) and event.code == ResponseCode.SUCCESS:
            master = last.get(event.queue.broker)
            if master is not None and master.process != event.process and event.queue.broker not in elect:
                what = (
                    f"{process_name(event)} acknowledged a send to {event.queue}: {process_name(master)} is its master since {master.t:.3f}"
                )
                found.append(Violation("M3", event.t, what))
    return found


def _copies(history: History) -> list[Violation]:
    found = []
    for asked in history.of(CopiesAsked):
        if len(asked.masters) != 1:
            found.append(Violation("M5", asked.t, f"{asked.broker} has the masters {', '.join(asked.masters) or 'none'}"))
        elif asked.outside:
            found.append(Violation("M5", asked.t, f"not in the set of {asked.broker}: {'; '.join(asked.outside)}"))
    return found

"""R9: a send ends by its deadline, which counts from the call, in whatever state it is pending."""

from sweep.checkers.violation import Violation, process_name
from sweep.events.producers import DelayedSendAcked, SendAcked, SendBegan, SendFailed
from sweep.events.universe import PauseBegan, PauseEnded
from sweep.history import History

UNKEYED_S, KEYED_S = 3.0, 30.0
"""ProducerConfig's deadlines."""
LATE_S = 1.0
"""The time for which a late timer waits again for unread bytes of its sockets."""
DRIFT = 0.05
"""The largest deviation of the producer's clock."""


def check(history: History) -> list[Violation]:
    began: dict[bytes, SendBegan] = {}
    pauses: dict[tuple[str, int], list[float]] = {}
    """Process → when it was paused and resumed; its sends may end late."""
    found = []
    for event in history:
        if isinstance(event, PauseBegan | PauseEnded):
            pauses.setdefault((event.machine, event.process), []).append(event.t)
        elif isinstance(event, SendBegan):
            began[event.body] = event
        elif isinstance(event, SendAcked | SendFailed | DelayedSendAcked) and (send := began.pop(event.body, None)) is not None:
            limit_s = UNKEYED_S if send.key is None else KEYED_S
            took_s = event.t - send.t
            paused = any(send.t <= at <= event.t for at in pauses.get((event.machine, event.process), ()))
            if took_s > limit_s * (1 + DRIFT) + LATE_S and not paused:
                text = f"the send of {event.body!r:.60} took {took_s:.3f} s, its deadline is {limit_s:.0f} s"
                found.append(Violation("R9", event.t, f"{process_name(event)}: {text}"))
    return found

"""Whether the broker takes sends. Pure, and not durable."""

from dataclasses import dataclass

from lockstep.protocol.errors import ServiceNotAvailableError


@dataclass(slots=True)
class SendGate:
    """Open while `closed_because` is None. It is closed while the broker stops."""

    closed_because: str | None = None

    def check(self) -> None:
        if self.closed_because is not None:
            raise ServiceNotAvailableError(f"{self.closed_because}: send to another broker, or again later")

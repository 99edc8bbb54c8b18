"""Whether the broker takes sends, and whether it has failed. Pure, and not durable."""

from dataclasses import dataclass

from lockstep.protocol.errors import ServiceNotAvailableError


@dataclass(slots=True)
class SendGate:
    """Open while `closed_because` is None. It is closed while the broker stops, and before it fails."""

    closed_because: str | None = None
    has_failed: bool = False
    """Whether acknowledged data may not be on the disk: no further request is handled."""

    def check(self) -> None:
        """Raise ServiceNotAvailableError if the broker takes no sends."""
        if self.closed_because is not None:
            raise ServiceNotAvailableError(f"{self.closed_because}: send to another broker, or again later")

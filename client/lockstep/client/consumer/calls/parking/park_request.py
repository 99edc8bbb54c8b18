"""What the response to a PARK means, and when the request is repeated (ordering.md 15.1). Pure."""

from enum import Enum

from lockstep.protocol.errors import BrokerError, ParkRefusedError, StaleEpochError, TransportError


class ParkOutcome(Enum):
    """What became of a message whose key was to be parked."""

    NOT_NOW = 0
    """It has attempts left, or the request failed: it is called again."""
    PARKED = 1
    REFUSED = 2
    """The broker refused: the message blocks."""


class ParkRequest:
    """One PARK. It is repeated until there is a response: if the key is parked, the message must not be called again.

    A refusal counts as a response only if it is the first one, or says that the key is not parked.
    """

    __slots__ = ("_unsure",)

    def __init__(self) -> None:
        self._unsure = False
        """Whether an earlier request had no response: the broker may have parked the key."""

    def outcome(self, error: TransportError | BrokerError | None) -> ParkOutcome | None:
        """Return what a request that ended with this error, or without one, has shown; None if it has to be repeated."""
        if error is None:
            return ParkOutcome.PARKED
        if isinstance(error, ParkRefusedError):
            return ParkOutcome.REFUSED
        self._unsure = self._unsure or isinstance(error, TransportError)
        return None if self._unsure and not isinstance(error, StaleEpochError) else ParkOutcome.NOT_NOW

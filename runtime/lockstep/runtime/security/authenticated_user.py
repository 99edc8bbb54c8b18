"""Who has logged in on a connection."""

from dataclasses import dataclass

from lockstep.runtime.security.scram import Verifier


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """A user, and the verifier of the password that was used: if it is taken away, the connection ends."""

    user: str
    verifier: Verifier

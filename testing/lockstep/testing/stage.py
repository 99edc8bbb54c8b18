"""The interface between a TestCluster and its members: simulated machines (simulated.py), or real processes and threads (realtime.py)."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Main = Callable[[], Coroutine[Any, Any, Any]]
"""The main function of a user's program."""
TEST = "test"
"""The name of the test's own process."""
STOP_S = 60.0
"""The limit of an ordered stop: longer than all drain limits."""


@dataclass(frozen=True, slots=True)
class StageSettings:
    """The settings in which a broker may differ from the defaults of `lockstep broker`."""

    flush: Literal["async", "sync"]
    disconnect_grace_ms: int
    session_timeout_ms: int
    auto_create_topics: bool
    ha: str | None = None
    """The URL of the register by which the copies of a broker elect their master."""


class Member(Protocol):
    """A nameserver, a broker or a user's program, with a name."""

    name: str
    failure: BaseException | None
    """The exception of a user's main function; None again after the next start."""

    @property
    def state(self) -> str:
        """ "new", "running", "paused", "killed", "power cut", "lost", "stopped" or "failed"."""
        ...

    async def start(self) -> None:
        """Start it (again); returns when a server serves. Not to be called while it runs."""
        ...

    async def stop(self) -> None:
        """Ask it to end in order, and wait until it has."""
        ...

    async def kill(self) -> None:
        """End it at once, as by kill −9."""
        ...

    async def pause(self) -> None:
        """Stop its execution until `resume`, as by SIGSTOP."""
        ...

    async def resume(self) -> None: ...


class ServerMember(Member, Protocol):
    """A nameserver or broker."""

    @property
    def address(self) -> str:
        """host:port."""
        ...

    async def lose(self) -> None:
        """End it with its machine and its store: the next start is with an empty one."""
        ...


class Stage(Protocol):
    """Makes members; `close` ends them all."""

    def nameserver(self, name: str) -> ServerMember: ...

    def witness(self, name: str) -> ServerMember: ...

    def broker(
        self, name: str, broker: str, nameserver: str, settings: StageSettings, replica_of: Callable[[], str | None]
    ) -> ServerMember:
        """Make a member with a copy of the log of `broker`. `replica_of` returns its master's address at each start; None: it is one."""
        ...

    def worker(self, name: str, main: Main) -> Member: ...

    def running(self) -> str:
        """Return the name of the member that is executing; "test" if none is."""
        ...

    def owner(self, client_id: str) -> str:
        """Return the name of the worker with that client id if it is known, else the id."""
        ...

    def errors(self) -> list[str]:
        """Return unhandled errors since the last call. A failed program that was started again is not included."""
        ...

    async def close(self) -> None: ...

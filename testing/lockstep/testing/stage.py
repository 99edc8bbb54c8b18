"""What a TestCluster is played on: simulated machines (simulated.py) or real processes and threads (realtime.py)."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Main = Callable[[], Coroutine[Any, Any, Any]]
"""The main function of a user's program."""
TEST = "test"
"""The name of the test's own process."""
STOP_S = 60.0
"""How long an ordered stop may take: longer than all drain limits."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What is not as `lockstep broker` has it."""

    flush: Literal["async", "sync"]
    disconnect_grace_ms: int
    session_timeout_ms: int
    auto_create_topics: bool


class Member(Protocol):
    """A nameserver, a broker or a user's program, with a name."""

    name: str
    failure: BaseException | None
    """What the main function of a user's program raised; None again when it is started anew."""

    @property
    def state(self) -> str:
        """ "new", "running", "paused", "killed", "power cut", "stopped" or "failed"."""
        ...

    async def start(self) -> None:
        """Runs it (again); a server's is over when it serves. Not to be called while it runs."""
        ...

    async def stop(self) -> None:
        """Asks it to end in order, and waits for that."""
        ...

    async def kill(self) -> None:
        """It is gone at once, as by kill −9."""
        ...

    async def pause(self) -> None:
        """Nothing of it runs until `resume`, as by SIGSTOP."""
        ...

    async def resume(self) -> None: ...


class Server(Member, Protocol):
    """A nameserver or broker."""

    @property
    def address(self) -> str:
        """host:port."""
        ...


class Stage(Protocol):
    """Makes members; `close` ends them all."""

    def nameserver(self, name: str) -> Server: ...

    def broker(self, name: str, nameserver: str, settings: BrokerSettings) -> Server: ...

    def worker(self, name: str, main: Main) -> Member: ...

    def running(self) -> str:
        """The member whose code is running; "test" where none is."""
        ...

    def owner(self, client_id: str) -> str:
        """A client id as people know it: with the worker's name where that can be told."""
        ...

    def errors(self) -> list[str]:
        """What went wrong and nobody handled, since the last call. A program that failed and was started anew is no longer told of."""
        ...

    async def close(self) -> None: ...

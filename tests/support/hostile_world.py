"""One nameserver, one broker and a good pair (a producer and an ordered consumer) for tests in which another client misbehaves."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.background import Background, background
from support.good_pair import KEYS
from support.http import fetch
from support.processes import clean_environment, run_program

UNFORESEEN = (
    "request.failed",
    "loop.failed",
    "task.failed",
    "daemon.failed",
    "stop.failed",
    "callback.failed",
    "effect.failed",
    "turn.failed",
    "pulls.failed",
)
"""Log events of unexpected errors."""
GOES_ON = 20
"""The number of messages handled by the good pair after which it counts as working."""


@dataclass
class World:
    nameserver: Background
    broker: Background
    pair: Background
    nameserver_address: str
    broker_address: str
    broker_command: tuple[str, ...]
    folder: Path

    def progress(self) -> dict[str, int]:
        """Return how many messages the good pair has sent, had acknowledged and handled so far."""
        return dict((self.pair.find("pair.progress") or [{"sent": 0, "acknowledged": 0, "handled": 0}])[-1])

    def handled(self) -> int:
        return self.progress()["handled"]

    async def until_all_handled(self) -> None:
        """Check that each message that the good pair has sent was acknowledged or is one of its KEYS in flight, and wait until each
        acknowledged one is handled.
        """
        now = self.progress()
        assert now["sent"] - now["acknowledged"] <= KEYS, now
        await self.pair.until("all that was acknowledged is handled", lambda: self.handled() >= now["acknowledged"])

    @contextmanager
    def restarted_broker(self) -> Iterator[Background]:
        """Kill the broker and restart it on its store."""
        self.broker.process.kill()
        self.broker.process.wait()
        with background(self.folder / "again", "broker", *self.broker_command, ready="broker.started") as again:
            yield again

    async def until_progress(self) -> None:
        """Wait until the good pair has made progress."""
        goal = self.handled() + GOES_ON
        await self.pair.until("the good pair goes on", lambda: self.handled() >= goal)

    @property
    def servers(self) -> tuple[Background, Background]:
        return self.broker, self.nameserver


async def metrics_of(broker: Background, *names: str) -> list[float]:
    """Return the metrics of a broker's admin port, each summed over its labels."""
    _, text = await fetch(broker.started("broker.started")["admin"], "/metrics")
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return [sum(float(value) for key, _, value in rows if key.startswith(name + "{")) for name in names]


@contextmanager
def hostile_world(folder: Path, *both: str, of_broker: tuple[str, ...] = (), program: tuple[str, ...] = ()) -> Iterator[World]:
    """Run the world with topics `good` (the pair's) and `fuzz`. `both` are options of the nameserver and the broker.

    `program` runs the broker's module instead of plain Python.
    """
    listen = ("--listen", "127.0.0.1:0", *both)
    with background(folder, "nameserver", "-m", "lockstep.nameserver", *listen, ready="nameserver.started") as nameserver:
        address = nameserver.started("nameserver.started")["address"]
        module = (*program, "lockstep.broker") if program else ("-m", "lockstep.broker")
        command = (*module, *listen, "--nameserver", address, "--store", str(folder / "store"), *of_broker)
        with background(folder, "broker", *command, ready="broker.started") as broker:
            cli = ("lockstep.cli.main", "topic", "create")
            for topic in ("good", "fuzz"):
                made = run_program(*cli, topic, environment=clean_environment(LOCKSTEP_NAMESERVER=address))
                assert made.returncode == 0, made.stderr
            with background(
                folder, "pair", "-m", "support.good_pair", "--nameserver", address, "--topic", "good", ready="pair.ready"
            ) as pair:
                yield World(nameserver, broker, pair, address, broker.started("broker.started")["address"], command, folder)


@asynccontextmanager
async def checked_world(world: World) -> AsyncIterator[None]:
    """Check that the good pair continues without a violation, and that the servers log no unexpected error.

    No send of the pair has failed, so each was acknowledged within its deadline, and each acknowledged message is handled.
    """
    await world.until_progress()
    before = {each: len(each.events) for each in (world.pair, *world.servers)}
    yield
    await world.until_progress()
    await world.until_all_handled()
    assert world.pair.find("pair.trouble", after=before[world.pair]) == []
    for server in world.servers:
        assert [each for each in server.events[before[server] :] if each["event"] in UNFORESEEN] == []
        assert server.complained.read_text() == ""


async def refusal_event(server: Background, before: int, peer: str) -> dict[str, Any] | None:
    """Return the log event of the rejected connection, or None if it was suppressed."""
    found: list[dict[str, Any]] = []

    def logged() -> bool:
        found[:] = server.find("connection.refused", after=before, peer=peer)
        return bool(found or server.find("events.left_out", after=before))

    await server.until("the reason is logged or left out", logged)
    return found[0] if found else None

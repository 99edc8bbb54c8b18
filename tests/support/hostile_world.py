"""One nameserver, one broker and a good pair (a producer and an ordered consumer) for tests in which another client misbehaves."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

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
"""Log events of errors that no rule foresaw."""
GOES_ON = 20
"""Messages handled by the good pair that show that it goes on."""


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

    async def all_answered(self) -> None:
        """Checks that each message that the good pair has sent until now was acknowledged or is one of its KEYS in flight, and returns when
        each one that was acknowledged is handled.
        """
        now = self.progress()
        assert now["sent"] - now["acknowledged"] <= KEYS, now
        await self.pair.until("all that was acknowledged is handled", lambda: self.handled() >= now["acknowledged"])

    @contextmanager
    def restarted_broker(self) -> Iterator[Background]:
        """Kills the broker and starts it again on its store."""
        self.broker.process.kill()
        self.broker.process.wait()
        with background(self.folder / "again", "broker", *self.broker_command, ready="broker.started") as again:
            yield again

    async def goes_on(self) -> None:
        """Returns when the good pair has done something more."""
        goal = self.handled() + GOES_ON
        await self.pair.until("the good pair goes on", lambda: self.handled() >= goal)

    @property
    def servers(self) -> tuple[Background, Background]:
        return self.broker, self.nameserver


async def metrics_of(broker: Background, *names: str) -> list[float]:
    """Return metrics from a broker's admin port, each summed over its labels."""
    _, text = await fetch(broker.started("broker.started")["admin"], "/metrics")
    rows = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return [sum(float(value) for key, _, value in rows if key.startswith(name + "{")) for name in names]


@contextmanager
def hostile_world(folder: Path, *both: str, of_broker: tuple[str, ...] = (), program: tuple[str, ...] = ()) -> Iterator[World]:
    """The world with topics `good` (the pair's) and `fuzz`; `both` are options of the nameserver and of the broker.

    `program` runs the broker's module, where Python does not by itself.
    """
    listen = ("--listen", "127.0.0.1:0", *both)
    with background(folder, "nameserver", "-m", "lockstep.nameserver", *listen, ready="nameserver.started") as nameserver:
        address = nameserver.started("nameserver.started")["address"]
        module = (*program, "lockstep.broker") if program else ("-m", "lockstep.broker")
        command = (*module, *listen, "--nameserver", address, "--store", str(folder / "store"), *of_broker)
        with background(folder, "broker", *command, ready="broker.started") as broker:
            cli = ("lockstep.admin.cli", "topic", "create")
            for topic in ("good", "fuzz"):
                made = run_program(*cli, topic, environment=clean_environment(LOCKSTEP_NAMESERVER=address))
                assert made.returncode == 0, made.stderr
            with background(
                folder, "pair", "-m", "support.good_pair", "--nameserver", address, "--topic", "good", ready="pair.ready"
            ) as pair:
                yield World(nameserver, broker, pair, address, broker.started("broker.started")["address"], command, folder)


@asynccontextmanager
async def undisturbed_world(world: World) -> AsyncIterator[None]:
    """Checks that the good pair goes on and meets no trouble, and that the servers log no unforeseen error meanwhile.

    No send of the pair has failed, so each was acknowledged within its deadline, and each message that was acknowledged is handled.
    """
    await world.goes_on()
    before = {each: len(each.events) for each in (world.pair, *world.servers)}
    yield
    await world.goes_on()
    await world.all_answered()
    assert world.pair.find("pair.trouble", after=before[world.pair]) == []
    for server in world.servers:
        assert [each for each in server.events[before[server] :] if each["event"] in UNFORESEEN] == []
        assert server.complained.read_text() == ""

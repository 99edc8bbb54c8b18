"""A cluster for a test: nameservers, brokers and the test's own programs, on simulated machines or as real processes."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Literal

from lockstep.client.client import Client
from lockstep.client.topics import create_topic
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.groups.group_query import read_group
from lockstep.operations.groups.group_report import GroupReport
from lockstep.protocol.bodies import ParkAction, ParkControlBody, ParkedKey
from lockstep.protocol.errors import ConfigError, LockstepError, ParkRefusedError, StateError
from lockstep.runtime.host import Host
from lockstep.testing.broker_copies import BrokerCopies
from lockstep.testing.clock import TestClock
from lockstep.testing.errors import NotReachedError, OnlySimulatedError, WorkerFailedError
from lockstep.testing.realtime import RealStage
from lockstep.testing.settling import unsettled
from lockstep.testing.simulated import SimMember, SimStage
from lockstep.testing.simulation import SimLoop
from lockstep.testing.stage import TEST, Main, Member, ServerMember, Stage, StageSettings

LOOK_S = 0.05
"""Time between two evaluations of a condition."""
HAPPENINGS_SHOWN_MAX = 40

NO_LOOP = """TestCluster needs a simulated event loop, and this one is {loop}.
 - with pytest: take the fixture `lockstep_cluster` (needs pytest-asyncio 1.5 or newer)
 - elsewhere:   lockstep.testing.simulate(main)
 - or TestCluster(real=True, folder=…): real processes, real time"""


@dataclass(frozen=True, slots=True)
class Happening:
    """An action of the test or of its chaos."""

    t: float
    """Return the seconds since the cluster began to start."""
    text: str

    def __str__(self) -> str:
        return f"{self.t:9.3f} s  {self.text}"


class TestCluster:
    """`async with TestCluster() as cluster:` starts a cluster, and ends everything in it with the block.

    In the simulator every member is a process on a machine of its own, the test is one too, and time is virtual. `real=True` runs the same
    test with real processes in `folder`, in real time; operations that only the simulator has raise OnlySimulatedError there.

    The end of the block raises WorkerFailedError if one of its programs failed and the test has not called `failures()` since.
    """

    __test__ = False

    def __init__(
        self,
        *,
        brokers: int = 2,
        replicas: int = 0,
        ha: bool = False,
        nameservers: int = 1,
        flush: Literal["async", "sync"] = "async",
        disconnect_grace_ms: int = 3_000,
        session_timeout_ms: int = 20_000,
        auto_create_topics: bool = False,
        real: bool = False,
        folder: Path | None = None,
    ) -> None:
        """`replicas`: the number of replicas of each broker, on machines of their own (docs/replication.md).

        `ha`: they elect their master by themselves, by the register of a witness that the cluster has then too.
        """
        if not 1 <= brokers <= 26 or not 1 <= nameservers <= 9 or not 0 <= replicas <= 9:
            given = f"{nameservers} nameservers, {brokers} brokers and {replicas} replicas of each"
            raise ConfigError(f"{given}: 1 to 9, 1 to 26 and 0 to 9 are possible")
        if real and folder is None:
            raise ConfigError("real=True needs folder=…, an empty directory for stores and logs (pytest's tmp_path)")
        self.happenings: list[Happening] = []
        """The actions on the cluster so far."""
        self._settings = StageSettings(flush, disconnect_grace_ms, session_timeout_ms, auto_create_topics)
        self._counts = nameservers, brokers, replicas
        self._ha = ha
        self._folder = folder if real else None
        self._stage: Stage | None = None
        self._clock: TestClock | None = None
        self._nameservers: dict[str, ServerMember] = {}
        self._witnesses: dict[str, ServerMember] = {}
        """One, if there is a register."""
        self._brokers: dict[str, BrokerCopies] = {}
        self._workers: dict[str, Member] = {}

    # ----------------------------------------------------------------------------------------------------------- begin, end

    async def __aenter__(self) -> "TestCluster":
        loop = asyncio.get_running_loop()
        if self._stage is not None:
            raise StateError("this TestCluster was started before: make a new one")
        if self._folder is not None:
            if isinstance(loop, SimLoop):
                raise StateError("real=True on a simulated loop: real processes need a real event loop")
            self._stage = RealStage(self._folder)
        elif isinstance(loop, SimLoop):
            self._stage = SimStage(loop)
        else:
            raise StateError(NO_LOOP.format(loop=type(loop).__qualname__))
        self._clock = TestClock(loop)
        try:
            await self._start_servers(self._on)
        except BaseException:  # re-raised
            await self._on.close()
            raise
        return self

    async def _start_servers(self, stage: Stage) -> None:
        nameservers, brokers, replicas = self._counts
        for number in range(1, nameservers + 1):
            name = f"nameserver-{number}"
            server = self._nameservers[name] = stage.nameserver(name)
            await server.start()
        if self._ha:
            witness = self._witnesses["witness"] = stage.witness("witness")
            await witness.start()
            self._settings = replace(self._settings, ha=f"witness://{witness.address}")
        for number in range(brokers):
            name = f"broker-{chr(ord('a') + number)}"
            self._brokers[name] = BrokerCopies(name, stage, self.nameserver, self._settings, replicas)
        await asyncio.gather(*(broker.start() for broker in self._brokers.values()))
        if failures := self.failures():
            raise WorkerFailedError("the cluster did not start:\n" + "\n".join(failures))
        await asyncio.gather(*(self.replicated(name) for name in self._brokers))

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        failures = self.failures()
        await self._on.close()
        if failures and error is None:
            raise WorkerFailedError("\n".join(failures))
        if failures and error is not None:
            error.add_note("in the cluster, too:\n" + "\n".join(failures))

    # --------------------------------------------------------------------------------------------------------------- facts

    @property
    def real(self) -> bool:
        """Return whether the cluster is real processes in real time."""
        return self._folder is not None

    @property
    def seed(self) -> int | None:
        """Return the seed of the universe; None in real time."""
        return self.clock.seed

    @property
    def flush(self) -> str:
        """Return "async" or "sync": whether brokers acknowledge before or after the sync of their disk."""
        return self._settings.flush

    @property
    def nameserver(self) -> str:
        """Return the argument `nameserver` of producers and consumers."""
        return ";".join(server.address for server in self._nameservers.values())

    @property
    def brokers(self) -> tuple[str, ...]:
        """Return the names of the brokers: "broker-a", "broker-b", …"""
        return tuple(self._brokers)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Return the names of the members that copy a broker now: "broker-a-replica-1", …; "broker-a" after a promotion."""
        return tuple(name for broker in self._brokers.values() for name in broker.replicas)

    def master(self, broker: str) -> str:
        """Return the name of the member that is the master of a broker: its own name until a replica is promoted.

        With `ha` it is the one that `elected` or `replicated` has found last.
        """
        return self._broker(broker).master

    @property
    def nameservers(self) -> tuple[str, ...]:
        """Return the names of the nameservers: "nameserver-1", "nameserver-2", …"""
        return tuple(self._nameservers)

    @property
    def workers(self) -> tuple[str, ...]:
        """Return the names of the programs that were started."""
        return tuple(self._workers)

    @property
    def clock(self) -> TestClock:
        """Return the clock of the cluster. Raise StateError before the start."""
        if self._clock is None:
            raise StateError("the cluster is not started: async with TestCluster() as cluster")
        return self._clock

    @property
    def now(self) -> float:
        """Return the seconds since the cluster began to start."""
        return self.clock.now

    def failure(self, name: str) -> BaseException | None:
        """Return the exception of a program's main function; None if it has not failed."""
        return self._member(name).failure

    def state(self, name: str) -> str:
        """Return the state of a member: "new", "running", "paused", "killed", "power cut", "lost", "stopped" or "failed"."""
        return self._member(name).state

    def running(self) -> str:
        """Return the name of the program that is executing; "test" for the test itself."""
        return self._on.running()

    def failures(self) -> list[str]:
        """Return the unhandled errors of brokers, nameservers and programs since the last call."""
        return self._on.errors()

    # ---------------------------------------------------------------------------------------------------------------- time

    async def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> None:
        """Let this much time pass for all machines.

        Raises:
            OnlySimulatedError: More than 30 s, in real time.
        """
        await self.clock.advance(seconds=seconds, minutes=minutes, hours=hours, days=days)

    async def until(self, condition: Callable[[], object], what: str = "the condition", *, timeout: float = 120) -> None:
        """Wait until `condition()` is true.

        Args:
            condition: Called again and again; it may return anything.
            what: The condition in words, for the error.
            timeout: Seconds of the cluster's clock.

        Raises:
            NotReachedError: The condition is not true after `timeout` seconds. The error describes the state of the cluster.
        """
        end = self.now + timeout
        while not condition():
            if self.now >= end:
                raise NotReachedError(f"{what} is not true after {timeout:g} s\n{self._situation()}")
            await asyncio.sleep(LOOK_S)

    # -------------------------------------------------------------------------------------------------------- topics, groups

    async def create_topic(self, name: str, queues: int = 4) -> None:
        """Create a topic with `queues` on each broker. An existing topic is not changed."""
        instance = Client(self.nameserver).instance()
        try:
            await instance.start()
            await create_topic(instance, name, queues)
        finally:
            await instance.close()

    async def group_status(self, group: str) -> GroupReport | None:
        """Return what `lockstep group show` prints: owner, epoch, progress and lag of each queue. None if no broker knows the group.

        Raises:
            TransportError: no nameserver responds.
        """
        report, _ = await read_group(AdminClient(Host.current(), self.nameserver), group)
        return report

    async def settled(self, group: str, *, timeout: float = 120) -> None:
        """Wait until the group has consumed and committed all messages, except for those of parked keys.

        Raises:
            NotReachedError: it has not after `timeout` seconds.
            StateError: the group is broadcasting: no broker knows the progress of its members.
        """
        end = self.now + timeout
        while True:
            report = None
            try:
                report = await self.group_status(group)
                missing = unsettled(report, self._on.owner)
            except LockstepError as error:
                missing = str(error)
            if report is not None and report.broadcasting:
                raise StateError(
                    f"group {group} is broadcasting: no broker knows the progress of its members, so wait for their effects with until(…)"
                )
            if not missing:
                return
            if self.now >= end:
                raise NotReachedError(f"group {group} has not settled after {timeout:g} s: {missing}\n{self._situation()}")
            await asyncio.sleep(LOOK_S)

    async def parked(self, group: str) -> tuple[ParkedKey, ...]:
        """Return what `lockstep park ls` prints: the keys of the group that were set aside.

        Raises:
            TransportError: no nameserver or broker responds.
        """
        return await self._control_parked(ParkControlBody(ParkAction.LIST, group))

    async def replay(self, group: str, key: str | None = None) -> tuple[ParkedKey, ...]:
        """Let the group's members replay a parked key, or all of them, as `lockstep park replay` does. Return the keys.

        Raises:
            ParkRefusedError: the key is not parked, or the members do not replay keys.
            TransportError: no nameserver or broker responds.
        """
        return await self._control_parked(ParkControlBody(ParkAction.REPLAY, group, None, key))

    async def _control_parked(self, body: ParkControlBody) -> tuple[ParkedKey, ...]:
        admin = AdminClient(Host.current(), self.nameserver)
        found: list[ParkedKey] = []
        refused: ParkRefusedError | None = None
        for broker in await admin.brokers():
            try:
                found += (await admin.control_parked(broker, body)).keys
            except ParkRefusedError as error:
                refused = error  # the key may be parked at another broker
        if refused is not None and not found:
            raise refused
        return tuple(found)

    # ------------------------------------------------------------------------------------------------------------ processes

    async def start(self, name: str, main: Main) -> None:
        """Run `async def main()` as a program of its own: on its own machine, in real time in its own thread and event loop.

        Build the consumer inside `main`, as the real program does, with `nameserver=cluster.nameserver`.
        """
        if name in self._members() or name == TEST:
            raise StateError(f"{name!r} is in use already: restart({name!r}) starts it again")
        worker = self._workers[name] = self._on.worker(name, main)
        self._note(f"start {name}")
        await worker.start()

    async def restart(self, name: str) -> None:
        """Start a member again; if it still runs, stop it in order first."""
        member = self._member(name)
        self._note(f"restart {name}")
        if member.state == "paused":
            await member.resume()
        if member.state == "running":
            await member.stop()
        await member.start()

    async def stop(self, name: str) -> None:
        """Ask a member to end in order, and wait until it has: by SIGTERM if it handles that, else its main function is cancelled."""
        self._note(f"stop {name}")
        await self._member(name).stop()

    async def kill(self, name: str) -> None:
        """Kill a member (kill −9): none of its code runs again, not even a `finally`. `restart` starts it again."""
        self._note(f"kill {name}")
        await self._member(name).kill()

    async def pause(self, name: str, *, seconds: float | None = None) -> None:
        """Pause a member (SIGSTOP): its code does not run, its connections stay open. With `seconds`, resume it after that time."""
        self._note(f"pause {name}" + ("" if seconds is None else f" for {seconds:g} s"))
        await self._member(name).pause()
        if seconds is not None:
            await self.advance(seconds=seconds)
            await self.resume(name)

    async def resume(self, name: str) -> None:
        """Resume a paused member (SIGCONT)."""
        self._note(f"resume {name}")
        await self._member(name).resume()

    # ------------------------------------------------------------------------------------------------------------- replicas

    async def lose(self, name: str) -> None:
        """Lose the machine of a broker, replica or nameserver for good, with its disk. `restart` starts it with an empty one."""
        member = self._servers().get(name)
        if member is None:
            raise StateError(f"{name!r} is no server, and stores nothing: known are {', '.join(self._servers())}")
        self._note(f"lose {name}")
        await member.lose()

    async def promote(self, broker: str) -> str:
        """Make the replica of a broker that has the most its master, as `lockstep replica promote` does. Return the replica's name.

        Returns when the new master serves. From then on `restart` starts the old one as a replica of it.

        Raises:
            StateError: no replica of the broker responds.
            LockstepError: the promotion is refused: the old master still answers, or no replica has what was acknowledged.
        """
        promoted = await self._broker(broker).promote(AdminClient(Host.current(), self.nameserver))
        self._note(f"promote {promoted} to {broker}")
        return promoted

    async def elected(self, broker: str, *, timeout: float = 120) -> str:
        """Wait until a copy of the broker serves as its master, and return its name; if several do, that of the highest term.

        Raises:
            NotReachedError: none does after `timeout` seconds.
        """
        copies, end = self._broker(broker), self.now + timeout
        admin = AdminClient(Host.current(), self.nameserver)
        while not await copies.find_master(admin):
            if self.now >= end:
                raise NotReachedError(f"broker {broker} has no master after {timeout:g} s\n{self._situation()}")
            await asyncio.sleep(LOOK_S)
        return copies.master

    async def replicated(self, broker: str, *, timeout: float = 120) -> None:
        """Wait until each replica of the broker that runs is in its set: a message is acknowledged when all of them have it.

        Raises:
            NotReachedError: one is not after `timeout` seconds, or the master does not respond.
        """
        copies, end = self._broker(broker), self.now + timeout
        admin = AdminClient(Host.current(), self.nameserver)
        while copies.replicas:
            try:
                missing = f"{', '.join(outside)} not in the set" if (outside := await copies.outside(admin)) else ""
            except LockstepError as error:
                missing = str(error)
            if not missing:
                return
            if self.now >= end:
                raise NotReachedError(f"broker {broker} is not replicated after {timeout:g} s: {missing}\n{self._situation()}")
            await asyncio.sleep(LOOK_S)

    # ------------------------------------------------------------------------------------------------- only in the simulator

    async def cut_power(self, name: str) -> None:
        """Switch the machine of a member off: its peers are not notified, and unsynced bytes are lost. `restart` boots it."""
        self._simulated("cut_power")
        member = self._member(name)
        assert isinstance(member, SimMember)
        self._note(f"cut the power of {name}")
        await member.cut_power()

    def partition(self, one: str, other: str | Iterable[str] | None = None, *, one_way: bool = False) -> None:
        """Block all traffic between `one` and `other` (several; None: all members) until `heal`. `one_way`: only from one to other."""
        stage = self._simulated("partition")
        others = self._others(one, other)
        self._note(f"partition {one} {'→' if one_way else '|'} {', '.join(others)}")
        for each in others:
            stage.network.block(self._address(one), self._address(each))
            if not one_way:
                stage.network.block(self._address(each), self._address(one))

    def slow_link(self, one: str, other: str | Iterable[str] | None = None, *, seconds: float) -> None:
        """Delay each segment between them by up to `seconds`, until `heal`."""
        stage = self._simulated("slow_link")
        others = self._others(one, other)
        self._note(f"slow link {one} – {', '.join(others)}: {seconds:g} s")
        for each in others:
            here, there = self._address(one), self._address(each)
            stage.network.slow[here, there] = stage.network.slow[there, here] = seconds

    def heal(self) -> None:
        """End all partitions and slow links."""
        stage = self._simulated("heal")
        if stage.network.blocked or stage.network.slow:
            self._note("heal the network")
        stage.network.heal()
        stage.network.slow.clear()

    def reset_connections(self, one: str, other: str | Iterable[str] | None = None) -> None:
        """Cut all connections between them, also within a frame; both ends may connect again at once."""
        stage = self._simulated("reset_connections")
        others = self._others(one, other)
        self._note(f"reset connections {one} – {', '.join(others)}")
        for each in others:
            for connection in stage.network.between(self._address(one), self._address(each)):
                stage.network.reset(connection)

    def set_noise(self, late_chance: float, chop: float) -> None:
        """Set the shares of segments that are lost and sent again 0.2 to 3.2 s later, and of writes that arrive in pieces; 0 at first.

        Without effect on real processes.
        """
        if isinstance(self._on, SimStage):
            self._on.network.late_chance, self._on.network.chop = late_chance, chop

    def slow_disk(self, name: str, *, seconds: float) -> None:
        """Let each sync of that machine's disk take up to `seconds`; 0: no time, as at first."""
        stage = self._simulated("slow_disk")
        self._note(f"slow disk of {name}: {seconds:g} s")
        stage.loop.machine(self._address(name)).disk.delays_s["sync"] = (seconds / 2, seconds)

    def set_wall_clock(self, name: str, *, ahead_seconds: float) -> None:
        """Set the wall clock of that machine: from now on it is `ahead_seconds` ahead of the true time (negative: behind)."""
        stage = self._simulated("set_wall_clock")
        self._note(f"wall clock of {name}: {ahead_seconds:+g} s")
        stage.loop.machine(self._address(name)).wall_offset_s = ahead_seconds

    def _simulated(self, what: str) -> SimStage:
        if not isinstance(self._on, SimStage):
            raise OnlySimulatedError(f"{what}() needs the simulator: real processes share this machine's network, power and clocks")
        return self._on

    def _others(self, one: str, other: str | Iterable[str] | None) -> Sequence[str]:
        if other is None:
            return [name for name in (*self._members(), TEST) if name != one]
        return [other] if isinstance(other, str) else list(other)

    def _address(self, name: str) -> str:
        """Return the address of its machine."""
        if name == TEST:
            return self._simulated("this").here
        member = self._member(name)
        assert isinstance(member, SimMember)
        return member.machine.name

    # --------------------------------------------------------------------------------------------------------------- parts

    @property
    def _on(self) -> Stage:
        if self._stage is None:
            raise StateError("the cluster is not started: async with TestCluster() as cluster")
        return self._stage

    def _servers(self) -> dict[str, ServerMember]:
        copies = {name: member for broker in self._brokers.values() for name, member in broker.members.items()}
        return {**self._nameservers, **self._witnesses, **copies}

    def _members(self) -> dict[str, Member]:
        return {**self._servers(), **self._workers}

    def _broker(self, name: str) -> BrokerCopies:
        if name not in self._brokers:
            raise StateError(f"there is no broker {name!r} in the cluster: known are {', '.join(self._brokers) or 'none'}")
        return self._brokers[name]

    def _member(self, name: str) -> Member:
        members = self._members()
        if name not in members:
            raise StateError(f"there is no {name!r} in the cluster: known are {', '.join(members)}")
        return members[name]

    def _note(self, text: str) -> None:
        self.happenings.append(Happening(self.now, text))

    def _situation(self) -> str:
        """Return the state of each member and the last actions, for error messages."""
        states = ", ".join(f"{name} {member.state}" for name, member in self._members().items())
        return "\n".join([states, *map(str, self.happenings[-HAPPENINGS_SHOWN_MAX:])])

"""The demo's processes: a nameserver, two brokers and their copies, producers, and consumers with the files that they write."""

import asyncio
import shutil
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from lockstep.cli.demo.order_events import TOPIC
from lockstep.cli.demo.proof import HandledEvent, parse_handled_event
from lockstep.operations.admin_client import AdminClient
from lockstep.operations.brokers.replicas import MASTER
from lockstep.operations.changes.replica_promote import ReplicaPromote
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.processes import ChildProcess, ProcessError, free_address

LOOK_S = 0.1
IN_SET_S = 30.0
"""How long a replica may take to copy all that its master has."""
ELECTED_S = 30.0


class ConsumerFile:
    """Reads the lines that one consumer has appended since the last read, except one that is still being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0

    def new_events(self) -> list[HandledEvent]:
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._position += len(complete)
        return [parse_handled_event(line) for line in complete.decode().splitlines()]


class DemoCluster:
    """Starts, kills and restarts the demo's processes. Ends them all when its context ends."""

    def __init__(self, folder: Path, topic: str = TOPIC) -> None:
        self.folder = folder
        self.topic = topic
        self.processes: dict[str, ChildProcess] = {}
        self.files: dict[str, ConsumerFile] = {}
        self.nameserver = ""
        self._register: list[str] = []
        """The options of brokers that name the register, if there is one."""
        self._addresses: dict[str, str] = {}
        self._tasks = Tasks()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "DemoCluster":
        self._stack.push_async_callback(self._tasks.cancel_all)
        self._stack.push_async_callback(self._kill_all)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def start_nameserver(self) -> None:
        process = await self._start("nameserver", ["-m", "lockstep.nameserver", "--listen", "127.0.0.1:0"])
        self.nameserver = str((await process.wait_for_event("nameserver.started"))["address"])

    async def start_register(self) -> None:
        """Start a witness, by which the copies of each broker that starts from now on elect their master."""
        options = ["--listen", "127.0.0.1:0", "--store", str(self._store("witness"))]
        process = await self._start("witness", ["-m", "lockstep.broker.witness", *options])
        self._register = ["--ha", f"witness://{(await process.wait_for_event('witness.started'))['address']}"]

    async def start_broker(self, machine: str, *more: str) -> None:
        """Start the broker named as its machine, on its previous port and store if it ran before."""
        address = self._addresses.get(machine) or (free_address() if self._register else "127.0.0.1:0")
        where = ["--listen", address, "--nameserver", self.nameserver, "--store", str(self._store(machine))]
        process = await self._start(machine, ["-m", "lockstep.broker", "--name", machine, *where, *self._register, *more])
        self._addresses[machine] = str((await process.wait_for_event("broker.started"))["address"])

    async def start_replica(self, machine: str, *, broker: str, master: str) -> None:
        """Start a replica of the broker whose master is on the machine `master`. Return when it is in the set."""
        await self.start_broker(machine, "--name", broker, *([] if self._register else ["--replica-of", self._addresses[master]]))
        admin = AdminClient(Host.current(), self.nameserver)
        for _ in range(round(IN_SET_S / LOOK_S)):
            standings = (await admin.copy_status(self._addresses[master])).replicas
            if any(each.in_set and each.address == self._addresses[machine] for each in standings):
                return
            await asyncio.sleep(LOOK_S)
        raise ProcessError(f"{machine} has not copied all of {master} within {IN_SET_S:.0f} s. Logs: {self.folder}")

    async def promote(self, machine: str) -> None:
        """Make the replica on a machine the master, as `lockstep replica promote HOST:PORT --yes` does. Return when it serves."""
        plan = await ReplicaPromote(address=self._addresses[machine], yes=True).plan(AdminClient(Host.current(), self.nameserver))
        outcome = await plan.carry_out()
        if outcome.failed is not None:
            raise ProcessError(outcome.failed)

    async def until_elected(self, machine: str) -> None:
        """Return when the copy on a machine has been elected, and serves as the master."""
        admin = AdminClient(Host.current(), self.nameserver)
        for _ in range(round(ELECTED_S / LOOK_S)):
            try:
                if (await admin.copy_status(self._addresses[machine])).role == MASTER:
                    return
            except LockstepError:
                pass  # it starts as the master
            await asyncio.sleep(LOOK_S)
        raise ProcessError(f"{machine} was not elected within {ELECTED_S:.0f} s. Logs: {self.folder}")

    async def lose(self, machine: str) -> None:
        """Kill the broker on a machine, and remove its store."""
        await self.kill(machine)
        shutil.rmtree(self._store(machine))

    def _store(self, machine: str) -> Path:
        return self.folder / f"store-{machine}"

    async def create_topic(self, queues: int) -> None:
        command = ["topic", "create", self.topic, "--queues", str(queues), "--nameserver", self.nameserver]
        process = await self._start("topic create", ["-m", "lockstep.cli.main", *command])
        if await process.wait() != 0:
            raise ProcessError(f"topic create failed: {process.stderr_tail()}")

    async def start_producer(self, share: int, *, of: int, orders: int, seconds: float) -> None:
        options = ["--share", str(share), "--of", str(of), "--orders", str(orders), "--seconds", str(seconds)]
        await self._start(f"producer-{share + 1}", ["-m", "lockstep.cli.demo.producer", "--nameserver", self.nameserver, *options])

    async def start_consumer(self, name: str, *more: str) -> None:
        path = self.folder / f"{name}.jsonl"
        options = ["--nameserver", self.nameserver, "--topic", self.topic, "--name", name, "--file", str(path), *more]
        process = await self._start(name, ["-m", "lockstep.cli.demo.consumer", *options])
        self.files[name] = ConsumerFile(path)
        await process.wait_for_event("consumer.started")

    async def spark_submit(self, name: str, script: Path, *options: str) -> ChildProcess:
        """Run a job of scripts/ with the spark-submit next to this Python interpreter."""
        submit = Path(sys.executable).with_name("spark-submit")
        if not submit.exists():
            raise ProcessError(f"{submit} is missing: install lockstep-mq[spark] into this environment")
        environment = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        return await self._start(name, [str(script), *options], program=str(submit), environment=environment)

    async def kill(self, name: str) -> None:
        await self.processes[name].kill()

    async def stop_consumers(self) -> None:
        await asyncio.gather(
            *(process.stop() for name, process in self.processes.items() if name.startswith("consumer") and process.exit_code is None)
        )

    def new_events(self) -> list[HandledEvent]:
        return [event for file in self.files.values() for event in file.new_events()]

    def check_producers(self) -> bool:
        """Return whether all producers have finished. Raise ProcessError if one failed."""
        producers = [process for name, process in self.processes.items() if name.startswith("producer")]
        for process in producers:
            if process.exit_code not in (None, 0):
                raise ProcessError(f"{process.name} failed with exit code {process.exit_code}.\n{process.stderr_tail()}")
        return all(process.exit_code == 0 for process in producers)

    async def _start(
        self, name: str, arguments: list[str], *, program: str = sys.executable, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        log = self.folder / f"{name.replace(' ', '-')}.log"
        process = await ChildProcess.start(name, arguments, log=log, tasks=self._tasks, program=program, environment=environment)
        self.processes[name] = process
        return process

    async def _kill_all(self) -> None:
        for process in reversed(self.processes.values()):
            if process.exit_code is None:
                await process.kill()

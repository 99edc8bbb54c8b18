"""A cluster of real processes for the end-to-end tests: start, kill, pause, restart, and judge what the consumers did."""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from lockstep.admin.demo.proof import Deed, Told, Verdict, parse_deed, prove
from lockstep.admin.processes import Process
from lockstep.runtime.daemon import Tasks

SUPPORT = Path(__file__).parent


class Cluster:
    """Nameservers, brokers, producers and consumers by name, in one folder."""

    def __init__(self, folder: Path, tasks: Tasks) -> None:
        self.folder = folder
        self.tasks = tasks
        self.processes: dict[str, Process] = {}
        self.addresses: dict[str, str] = {}
        self._commands: dict[str, tuple[list[str], str]] = {}
        self._runs: Counter[str] = Counter()
        self.told: dict[int, Told] = {}

    # -------------------------------------------------------------------------------------------------------------- processes

    async def start(self, name: str, arguments: list[str], ready: str = "") -> Process:
        """Runs this Python with `arguments`; waits for the event `ready`."""
        self._commands[name] = (arguments, ready)
        self._runs[name] += 1
        process = await Process.start(name, arguments, log=self.folder / f"{name}-{self._runs[name]}.log", tasks=self.tasks)
        self.processes[name] = process
        if ready:
            await process.event(ready)
        return process

    async def restart(self, name: str) -> Process:
        """Starts it again with the arguments it had; servers come back on the port they had."""
        arguments, ready = self._commands[name]
        return await self.start(name, arguments, ready)

    async def kill(self, *names: str) -> None:
        for name in names:
            self.processes[name].signal(signal.SIGKILL)
        await asyncio.gather(*(self.processes[name].wait() for name in names))

    async def stop(self, *names: str) -> list[int]:
        return list(await asyncio.gather(*(self.processes[name].stop() for name in names)))

    async def close(self) -> None:
        for process in self.processes.values():
            process.signal(signal.SIGCONT)
            process.signal(signal.SIGKILL)
        await asyncio.gather(*(process.wait() for process in self.processes.values()))

    async def nameserver(self, name: str = "nameserver", listen: str = "127.0.0.1:0") -> str:
        process = await self.start(name, ["-m", "lockstep.nameserver", "--listen", listen])
        address = str((await process.event("nameserver.started"))["address"])
        self.addresses[name] = address
        self._commands[name] = (["-m", "lockstep.nameserver", "--listen", address], "nameserver.started")
        return address

    @property
    def nameservers(self) -> str:
        return ";".join(address for name, address in self.addresses.items() if name.startswith("nameserver"))

    def broker_command(self, name: str, listen: str, *options: str) -> list[str]:
        store = str(self.folder / f"store-{name}")
        return ["-m", "lockstep.broker", "--name", name, "--listen", listen, "--nameserver", self.nameservers, "--store", store, *options]

    async def broker(self, name: str, *options: str, listen: str = "127.0.0.1:0") -> str:
        process = await self.start(name, self.broker_command(name, listen, *options))
        address = str((await process.event("broker.started"))["address"])
        self.addresses[name] = address
        self._commands[name] = (self.broker_command(name, address, *options), "broker.started")
        return address

    async def command(self, *arguments: str, code: int = 0) -> str:
        """Runs `lockstep …` to its end; its standard output."""
        child = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "lockstep.admin.cli", *arguments],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "LOCKSTEP_NAMESERVER": self.nameservers, "NO_COLOR": "1", "COLUMNS": "200"},
        )
        out, error = await asyncio.wait_for(child.communicate(), 30)
        assert child.returncode == code, (arguments, child.returncode, out.decode(), error.decode())
        return out.decode() if code == 0 else error.decode()

    async def topic(self, name: str = "orders", queues: int = 4) -> None:
        await self.command("topic", "create", name, "--queues", str(queues))

    async def consumer(self, name: str, *options: str) -> Process:
        file = str(self.folder / f"{name}.deeds")
        return await self.start(
            name,
            [str(SUPPORT / "worker_consumer.py"), "--nameserver", self.nameservers, "--name", name, "--file", file, *options],
            "consumer.started",
        )

    async def producer(self, name: str, *options: str) -> Process:
        file = str(self.folder / f"{name}.acks")
        return await self.start(
            name, [str(SUPPORT / "worker_producer.py"), "--nameserver", self.nameservers, "--file", file, *options], "producer.started"
        )

    async def finish_producer(self, name: str, *, stop: bool = True) -> dict[str, Any]:
        """What it told of its keys; kept for the proof."""
        process = self.processes[name]
        if stop:
            process.signal(signal.SIGTERM)
        finished = await process.event("producer.finished", timeout_s=60)
        await process.wait()
        for key, (acknowledged, tried) in finished["told"].items():
            self.told[int(key)] = Told(acknowledged, tried)
        return finished

    # ------------------------------------------------------------------------------------------------------------------ truth

    def deeds(self) -> list[Deed]:
        lines: list[Deed] = []
        for path in sorted(self.folder.glob("*.deeds")):
            data = path.read_bytes()
            lines += [parse_deed(line) for line in data[: data.rfind(b"\n") + 1].decode().splitlines()]
        return lines

    def acknowledged(self) -> int:
        return sum(told.acknowledged for told in self.told.values())

    async def until(self, what: str, true: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
        """Waits until it is true, looking at files that other processes write."""
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{self.last_words()}") from None

    async def until_handled(self, count: int, *, timeout_s: float = 60.0) -> None:
        """Waits for that many deeds in all."""
        await self.until(f"{count} deeds (have {len(self.deeds())})", lambda: len(self.deeds()) >= count, timeout_s=timeout_s)

    async def until_done(self, *, timeout_s: float = 60.0) -> None:
        """Waits until every acknowledged event was handled at least once."""

        def done() -> bool:
            return {(d.order, d.step) for d in self.deeds()} >= {(k, s) for k, told in self.told.items() for s in range(told.acknowledged)}

        await self.until("every acknowledged event is handled", done, timeout_s=timeout_s)

    def verdict(self) -> Verdict:
        return prove(self.deeds(), self.told)

    def last_words(self) -> str:
        return "\n".join(f"--- {name}: {process.last_words()[-600:]}" for name, process in self.processes.items())

    def acks(self) -> list[tuple[int, int, str, int]]:
        return [tuple(json.loads(line)) for path in self.folder.glob("*.acks") for line in path.read_text().splitlines()]


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """An empty cluster; all its processes are gone afterwards."""
    tasks = Tasks()
    it = Cluster(folder, tasks)
    try:
        yield it
    finally:
        await it.close()
        await tasks.cancel_all()

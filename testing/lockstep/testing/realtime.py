"""The real stage: servers are processes, users' programs are threads of the test's own process."""

import asyncio
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from lockstep.protocol.errors import StateError
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.host import Host
from lockstep.runtime.processes import ChildProcess, free_address
from lockstep.testing.stage import STOP_S, Main, StageSettings
from lockstep.testing.workers import RUNNING, ThreadWorker


class ProcessServer:
    """A nameserver or broker as a child process. A restart uses the same port and store."""

    def __init__(self, name: str, module: str, options: Callable[[], Sequence[str]], folder: Path, tasks: Tasks) -> None:
        """`options` is called at each start. What the server stores is in the directory of its name in `folder`."""
        self.name = name
        self.failure: BaseException | None = None
        self.address = ""
        """host:port, once it has started."""
        self._module = module
        self._options = options
        self._folder = folder
        self._tasks = tasks
        self._process: ChildProcess | None = None
        self._state = "new"
        self._lost = 0

    @property
    def state(self) -> str:
        if self._state == "running" and self._process is not None and self._process.exit_code is not None:
            return "failed"
        return self._state

    async def start(self) -> None:
        if self.state in ("running", "paused"):
            raise StateError(f"{self.name} is {self.state}")
        arguments = ["-m", self._module, "--listen", self.address or "127.0.0.1:0", *self._options()]
        log = self._folder / f"{self.name}.log"
        self._process = await ChildProcess.start(self.name, arguments, log=log, tasks=self._tasks)
        try:
            started = await self._process.wait_for_event(f"{self._module.rpartition('.')[2]}.started")
        except BaseException:  # re-raised
            await self._process.kill()
            raise
        self.address = str(started["address"])
        self._state = "running"

    async def stop(self) -> None:
        process = self._running()
        code = await process.stop(STOP_S)
        self._state = "stopped" if code == 0 else "failed"

    async def kill(self) -> None:
        if self._process is not None and self.state in ("running", "paused"):
            await self._process.kill()
            self._state = "killed"

    async def lose(self) -> None:
        await self.kill()
        store = self._folder / self.name
        if store.exists():
            self._lost += 1
            store.rename(self._folder / f"{self.name}-lost-{self._lost}")
        self._state = "lost"

    async def pause(self) -> None:
        self._running().signal(signal.SIGSTOP)
        self._state = "paused"

    async def resume(self) -> None:
        if self.state == "paused" and self._process is not None:
            self._process.signal(signal.SIGCONT)
            self._state = "running"

    def failure_text(self) -> str | None:
        """Return how it failed; None if it has not."""
        if self.state != "failed" or self._process is None:
            return None
        return f"{self.name} ended with exit code {self._process.exit_code}.\n{self._process.stderr_tail()}"

    def _running(self) -> ChildProcess:
        if self._process is None or self.state != "running":
            raise StateError(f"{self.name} is {self.state}, not running")
        return self._process


class RealStage:
    """Runs members as processes and threads; their stores and logs are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tasks = Tasks()
        self._threads = Host.real().threads
        self._servers: list[ProcessServer] = []
        self._workers: list[ThreadWorker] = []
        self._reported: set[str] = set()

    def nameserver(self, name: str) -> ProcessServer:
        return self._server(name, "lockstep.nameserver", list)

    def witness(self, name: str) -> ProcessServer:
        return self._server(name, "lockstep.broker.witness", lambda: ["--store", str(self._folder / name)])

    def broker(
        self, name: str, broker: str, nameserver: str, settings: StageSettings, replica_of: Callable[[], str | None]
    ) -> ProcessServer:
        options = ["--name", broker, "--nameserver", nameserver, "--store", str(self._folder / name), "--flush", settings.flush]
        options += ["--disconnect-grace-ms", str(settings.disconnect_grace_ms)]
        options += ["--session-timeout-ms", str(settings.session_timeout_ms)]
        options += ["--auto-create-topics"] if settings.auto_create_topics else []
        options += [] if settings.ha is None else ["--ha", settings.ha]

        def started_with() -> list[str]:
            master = replica_of()
            return options if master is None else [*options, "--replica-of", master]

        server = self._server(name, "lockstep.broker", started_with)
        if settings.ha is not None:
            server.address = free_address()  # the register has it
        return server

    def _server(self, name: str, module: str, options: Callable[[], Sequence[str]]) -> ProcessServer:
        server = ProcessServer(name, module, options, self._folder, self._tasks)
        self._servers.append(server)
        return server

    def worker(self, name: str, main: Main) -> ThreadWorker:
        worker = ThreadWorker(self._threads, name, main)
        self._workers.append(worker)
        return worker

    def running(self) -> str:
        return RUNNING.get()

    def owner(self, client_id: str) -> str:
        return client_id

    def errors(self) -> list[str]:
        found = [
            f"{worker.name} failed:\n{''.join(traceback.format_exception(worker.failure)).rstrip()}"
            for worker in self._workers
            if worker.failure is not None
        ]
        found += [failure for server in self._servers if (failure := server.failure_text()) is not None]
        new = [each for each in found if each not in self._reported]
        self._reported.update(new)
        return new

    async def close(self) -> None:
        for worker in self._workers:
            await worker.kill()
        await asyncio.gather(*(server.kill() for server in reversed(self._servers)))
        await self._tasks.cancel_all()

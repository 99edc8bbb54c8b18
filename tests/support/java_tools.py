"""RocketMQ's `mqadmin` and small Java programs of ours, with the libraries of RocketMQ's tools from Maven Central."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.java_programs import compiled

RUN_S = 120


@dataclass
class JavaProgram:
    """A running program, whose output is read line by line."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self.changed:
                self.lines.append(line.decode().rstrip())
                self.changed.notify_all()

    async def until(self, holds: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the output is as expected, and return it."""
        async with asyncio.timeout(RUN_S), self.changed:
            await self.changed.wait_for(lambda: holds(self.lines))
            return list(self.lines)

    async def end(self) -> None:
        """End the program in its order, by the end of its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(RUN_S):
            await self.process.wait()


@dataclass
class JavaTools:
    """The libraries of one version, and programs compiled against them."""

    version: str
    folder: Path
    options: tuple[str, ...]

    @classmethod
    def fetch(cls, version: str, folder: Path, *programs: str) -> "JavaTools":
        """Fetch the libraries and compile the programs of tests/interop/java. Skip the test where Java or Maven is missing."""
        class_path = compiled(version, folder, *programs, pom="tools.xml")
        logging = folder / "conf" / "logback_tools.xml"
        logging.parent.mkdir()
        logging.write_text("<configuration/>")
        quiet = (f"-Dlogback.configurationFile={logging}", f"-Drmq.logback.configurationFile={logging}", f"-Drocketmq.home.dir={folder}")
        return cls(version, folder, (*quiet, f"-Duser.home={folder}", "-cp", class_path))

    async def mqadmin(self, nameservers: str, command: str, *arguments: str) -> str:
        """Run a command of mqadmin. Return what it prints, errors too."""
        async with self.running("org.apache.rocketmq.tools.command.MQAdminStartup", command, "-n", nameservers, *arguments) as program:
            async with asyncio.timeout(RUN_S):
                await program.process.wait()
        return "\n".join(program.lines)

    @asynccontextmanager
    async def running(self, *command: str, form: str = "JSON") -> AsyncIterator[JavaProgram]:
        """Run a program. `form`: the form of its headers. It is killed at the end of the block, and its whole output is read then."""
        pipe = asyncio.subprocess.PIPE
        arguments = ("java", f"-Drocketmq.serialize.type={form}", *self.options, *command)
        process = await asyncio.create_subprocess_exec(*arguments, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
        program = JavaProgram(process)
        reading = asyncio.create_task(program.read())
        try:
            yield program
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
            await reading

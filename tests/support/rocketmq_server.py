"""RocketMQ's own nameserver and broker, and a program that uses its client. Their libraries come from Maven Central."""

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.broker.rocketmq_store.foreign_config import parse_fastjson
from support.ports import free_ports
from support.processes import completed

WAIT_S, LOOK_S = 150, 0.1
OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
BROKER_SETTINGS = """\
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1={host}
listenPort={port}
haListenPort={ha_port}
namesrvAddr={nameserver}
storePathRootDir={store}
storePathCommitLog={store}/commitlog
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=60000
maxMessageSize=262144
autoCreateTopicEnable=true
defaultTopicQueueNums=4
diskMaxUsedSpaceRatio=95
flushConsumerOffsetInterval=500
flushDelayOffsetInterval=500
"""


class RocketMQ:
    """The servers, with one store directory."""

    def __init__(self, folder: Path, class_path: str, store: Path, host: str = "127.0.0.1") -> None:
        self._folder = folder
        self._class_path = class_path
        self._store = store
        self._host = host
        self._running: list[Process] = []
        self._broker: Process | None = None
        self._runs = 0
        self.nameserver = ""

    async def start(self) -> None:
        """Start a nameserver and a broker."""
        nameserver_port, port, ha_port = free_ports(3)
        self.nameserver = f"127.0.0.1:{nameserver_port}"
        self._runs += 1
        names, broker = self._folder / f"names-{self._runs}.conf", self._folder / f"broker-{self._runs}.conf"
        names.write_text(f"listenPort={nameserver_port}\n")
        facts = {"host": self._host, "port": port, "ha_port": ha_port, "nameserver": self.nameserver, "store": self._store}
        broker.write_text(BROKER_SETTINGS.format(**facts))
        await self._serve("names", "org.apache.rocketmq.namesrv.NamesrvStartup", names, "64m")
        self._broker = await self._serve("broker", "org.apache.rocketmq.broker.BrokerStartup", broker, "256m")

    async def kill(self) -> None:
        """Kill the broker, and stop the nameserver."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stop both in order."""
        await self._end(signal.SIGTERM)

    async def close(self) -> None:
        await self._end(signal.SIGKILL)

    async def client(self, *arguments: str, nameserver: str = "") -> list[str]:
        """Run the program, and return the lines that it prints about messages."""
        action, *rest = arguments
        command = ["java", f"-Duser.home={self._folder}", "-cp", self._class_path, "StoreClient", action, nameserver or self.nameserver]
        code, said, errors = await completed(*command, *rest, limit_s=WAIT_S)
        assert code == 0, (arguments, said[-500:], errors[-2_000:])
        return [line.removeprefix("got ") for line in said.splitlines() if line.startswith("got ")]

    def config(self, name: str) -> Any:
        """Return the content of a file of config/, or {} while there is none."""
        path = self._store / "config" / name
        try:
            return parse_fastjson(path.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the broker has stored something."""
        async with asyncio.timeout(WAIT_S):
            while not condition():  # noqa: ASYNC110 another process changes it
                await asyncio.sleep(LOOK_S)

    async def _serve(self, name: str, main: str, settings: Path, memory: str) -> Process:
        log = self._folder / f"{name}-{self._runs}.log"
        command = ["java", f"-Duser.home={self._folder}", f"-Drocketmq.home.dir={self._folder}", *OPENED, f"-Xms{memory}", f"-Xmx{memory}"]
        with log.open("wb") as output:
            child = await asyncio.create_subprocess_exec(
                *command, "-cp", self._class_path, main, "-c", str(settings), stdout=output, stderr=output
            )
        self._running.append(child)
        await self.until(lambda: child.returncode is not None or "boot success" in log.read_text(errors="replace"))
        assert child.returncode is None, log.read_text(errors="replace")[-2_000:]
        return child

    async def _end(self, number: signal.Signals) -> None:
        for child in reversed(self._running):
            if child.returncode is None:
                child.send_signal(number)
            async with asyncio.timeout(WAIT_S):
                await child.wait()
        self._running = []


def offsets_of(rocketmq: RocketMQ, topic: str, group: str) -> int:
    """Return the sum of a group's stored offsets."""
    return sum(rocketmq.config("consumerOffset.json").get("offsetTable", {}).get(f"{topic}@{group}", {}).values())


def delivered_of(rocketmq: RocketMQ, level: int) -> int:
    """Return how many messages of a delay level are stored as delivered."""
    return int(rocketmq.config("delayOffset.json").get("offsetTable", {}).get(str(level), 0))

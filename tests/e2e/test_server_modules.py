"""A serving process has not imported what it does not need: memory that each server would hold until it ends."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.client import Client, ConsumeFromWhere, Message, Producer, PullConsumer
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.processes import ChildProcess

pytestmark = pytest.mark.e2e

REPORT = 'import atexit, json, sys; atexit.register(lambda: print(json.dumps({"event": "modules", "names": sorted(sys.modules)})))\n'
AS_COMMAND = REPORT + "from lockstep.cli.main import main; main(sys.argv[1:])"
AS_MODULE = REPORT + 'import runpy; runpy.run_module(f"lockstep.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)'
UNNEEDED = {
    "click",
    "email",
    "http",
    "multiprocessing",
    "prometheus_client",
    "pydantic",
    "pygments",
    "rich",
    "typer",
    "xml",
    "zipfile",
}


@pytest.mark.parametrize("program", [AS_COMMAND, AS_MODULE])
async def test_servers_have_no_module_of_the_commands_or_the_client(tmp_path: Path, program: str) -> None:
    tasks = Tasks()

    async def start(name: str, *flags: str) -> tuple[ChildProcess, dict[str, Any]]:
        command = ["-c", program, name, "--listen", "127.0.0.1:0", *flags]
        process = await ChildProcess.start(name, command, log=tmp_path / f"{name}.log", tasks=tasks)
        return process, await process.wait_for_event(f"{name}.started")

    nameserver, started = await start("nameserver")
    broker, _ = await start("broker", "--nameserver", started["address"], "--store", str(tmp_path / "store"), "--auto-create-topics")
    client = Client(started["address"])
    async with Producer("p", client=client) as producer:
        await producer.send(Message("orders", b"paid"))
        consumer = PullConsumer("g", client=client, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("orders")
        async with consumer:
            assert [message.body for message in await consumer.poll(timeout_ms=20_000)] == [b"paid"]
    for process in (broker, nameserver):
        assert await process.stop() == 0
        (report,) = (event for event in process.events if event["event"] == "modules")
        names = set(report["names"])
        assert "lockstep.runtime.connections.server" in names, "it lists what the server ran"
        needless = UNNEEDED & {name.partition(".")[0] for name in names}
        assert not needless
        assert not {"lockstep.client", "lockstep.cli.app"} & names
    await tasks.cancel_all()

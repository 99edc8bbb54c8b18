"""No value of any argument or option ends in a traceback: a command explains which value is invalid."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from lockstep.cli import app as application
from lockstep.cli import main as cli
from lockstep.nameserver.app import Nameserver
from lockstep.nameserver.config import NameserverConfig
from lockstep.protocol.codes import RequestCode
from lockstep.protocol.headers.offsets import UpdateConsumerOffsetHeader
from lockstep.protocol.headers.send import SendBackHeader
from lockstep.runtime.host import Host
from support.commands import every_command
from support.effort import SLOW
from support.whole_broker import TOPIC, dialled, frame, running, settings, stored

RUBBISH = (
    "",
    " ",
    "-1",
    "0.5",
    "nan",
    "-inf",
    "1e400",
    "99999999999999999999999",
    "9" * 4_301,
    "999999999999d",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "٣d",
    "日本",
    "\udcff",
    "\x00\x1b[31m",
    "a:" + "9" * 5_000,
    "x" * 70_000,
)
ARGUMENTS = {
    ("topic", "create"): ["orders"],
    ("topic", "list"): [],
    ("topic", "show"): ["orders"],
    ("topic", "alter"): ["orders", "--read-queues", "2", "--write-queues", "2"],
    ("topic", "purge"): ["orders", "--to", "end", "--dry-run"],
    ("topic", "delete"): ["nothing"],
    ("topic", "forget-deleted"): [],
    ("group", "list"): [],
    ("group", "show"): ["billing"],
    ("group", "create"): ["billing"],
    ("group", "update"): ["billing", "--consume"],
    ("group", "delete"): ["billing"],
    ("group", "forget"): ["billing", "--topic", "orders", "--dry-run"],
    ("group", "clone"): ["nothing", "billing", "--dry-run"],
    ("group", "history"): ["billing"],
    ("group", "export"): ["nothing"],
    ("group", "import"): ["nowhere.json", "--dry-run"],
    ("group", "reset-offset"): ["billing", "--to", "end", "--dry-run"],
    ("dlq", "ls"): ["billing"],
    ("dlq", "show"): ["billing", "7F00000100002A9F0000000000000000"],
    ("dlq", "replay"): ["billing", "--to", "topic", "--dry-run"],
    ("park", "ls"): ["billing"],
    ("park", "show"): ["billing", "order-7"],
    ("park", "replay"): ["billing", "order-7"],
    ("park", "drop"): ["billing", "order-7", "--to", "dlq"],
    ("message", "find"): ["--key", "order-1"],
    ("message", "show"): ["7F00000100002A9F0000000000000000"],
    ("cluster",): [],
    ("send",): ["orders", "body"],
    ("tail",): ["nothing", "--no-follow"],
    ("bench",): ["--count", "100", "--nameserver", "127.0.0.1:1"],
    ("doctor",): [],
    ("why",): ["billing", "orders:0"],
    ("delays",): [],
    ("timer", "ls"): ["orders"],
    ("timer", "recall"): ["--topic", "orders", "--key", "order-7", "--dry-run"],
    ("tx", "ls"): ["orders"],
    ("tx", "show"): ["0ddf15a9"],
    ("tx", "commit"): ["0ddf15a9", "--reason", "paid", "--dry-run"],
    ("tx", "rollback"): ["0ddf15a9", "--reason", "paid", "--dry-run"],
    ("top",): ["--once", "--interval", "0.5"],
    ("up",): [],
    ("store", "check"): ["nowhere"],
    ("store", "inspect"): ["nowhere"],
    ("store", "export"): ["nowhere"],
    ("store", "restore"): ["nowhere"],
    ("broker", "config", "get"): ["retention_hours"],
    ("broker", "config", "set"): ["retention_hours=72", "--broker", "broker-a"],
    ("broker", "drain"): ["nowhere"],
    ("broker", "remove"): ["nowhere"],
    ("ha", "show"): ["nowhere"],
    ("ha", "failover"): ["nowhere"],
    ("replica", "ls"): [],
    ("replica", "promote"): ["127.0.0.1:1"],
    ("replica", "forget"): ["nowhere", "0123456789abcdef"],
    ("security", "init"): ["certificates"],
    ("user", "add"): ["nobody", "--security", "users.toml"],
    ("user", "passwd"): ["nobody", "--security", "users.toml"],
    ("user", "rotate"): ["nobody", "--security", "users.toml"],
    ("user", "rm"): ["nobody", "--security", "users.toml"],
    ("user", "list"): ["--security", "users.toml"],
    ("acl", "list"): ["--security", "users.toml"],
    ("acl", "import"): ["plain_acl.yml", "--security", "users.toml"],
    ("acl", "test"): ["Pub topic:orders", "--user", "nobody", "--security", "users.toml"],
    ("login",): ["default", "--user", "nobody"],
    ("logout",): ["nothing"],
}
"""Arguments with which each command does something and ends."""
SERVERS = {("nameserver",), ("witness",), ("dashboard",)}
"""Their settings, and those of `lockstep broker`, are checked by a model: tests/unit/runtime/test_config.py."""
RUNS_ON = {("up", "--store"), ("bench", "--nameserver")}
"""Values that are valid and would start something."""


def commands(below: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], TyperCommand]]:
    if isinstance(below, TyperGroup):
        for name, each in below.commands.items():
            yield from commands(each, (*path, name))
    else:
        assert isinstance(below, TyperCommand)
        yield path, below


COMMANDS = {path: command for path, command in commands(every_command()) if path not in SERVERS}


async def serve(folder: Path, reported: "Future[tuple[str, Callable[[], object]]]") -> None:
    nameserver = Nameserver(NameserverConfig(listen=("127.0.0.1:0",)), Host.real())
    await nameserver.start()
    async with running(settings(folder, nameserver=nameserver.address)) as broker, dialled(broker) as client:
        await client.create()
        header, data, _ = frame(0, 1)
        await client.done(RequestCode.SEND_RECORDS, header, data)
        await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetHeader("billing", TOPIC, 0, 0))
        (record,) = await stored(client, TOPIC)
        await client.done(RequestCode.CONSUMER_SEND_MSG_BACK, SendBackHeader(record.physical_offset, "billing", -1))
        enough = asyncio.Event()
        loop = asyncio.get_running_loop()
        reported.set_result((nameserver.address, lambda: loop.call_soon_threadsafe(enough.set)))
        await enough.wait()
    await nameserver.stop()


@pytest.fixture(scope="module")
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a nameserver whose cluster runs in a thread, because commands need the main thread."""
    reported: Future[tuple[str, Callable[[], object]]] = Future()
    with ThreadPoolExecutor(1) as threads:
        serving = threads.submit(asyncio.run, serve(tmp_path_factory.mktemp("rubbish"), reported))
        address, stop = reported.result(20)
        yield address
        stop()
        serving.result(20)


def test_each_command_has_test_arguments() -> None:
    assert COMMANDS.keys() == ARGUMENTS.keys()


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_invalid_value_of_any_parameter_never_prints_a_traceback(
    path: tuple[str, ...], nameserver: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The usual run tests a third of the values for each parameter, different ones for each; the slow run tests all."""
    monkeypatch.setattr(application, "app", every_command())  # typer would build the tree again for each value
    monkeypatch.chdir(tmp_path)  # some values are names of files
    monkeypatch.setenv("LOCKSTEP_NAMESERVER", nameserver)
    monkeypatch.setenv("LOCKSTEP_CLIENT_FILE", str(tmp_path / "client.toml"))
    options = [each.opts[0] for each in COMMANDS[path].params if isinstance(each, TyperOption) and not each.is_flag]
    places = [place for place, _ in enumerate(each for each in COMMANDS[path].params if isinstance(each, TyperArgument))]
    for number, (name, value) in enumerate(product([*options, *places], RUBBISH)):
        if (path[0], name) in RUNS_ON or not (SLOW or number % (len(RUBBISH) + 1) % 3 == 0):
            continue
        arguments = list(ARGUMENTS[path])
        if isinstance(name, int):
            arguments[name] = value
        else:
            arguments.append(f"{name}={value}")
        with pytest.raises(SystemExit) as ended:
            cli.main([*path, *arguments])
        assert ended.value.code in (0, 1, 2), (name, value[:40])

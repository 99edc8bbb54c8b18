"""A cluster of real processes for the end-to-end tests: start, kill, pause, restart, and check the work of the consumers."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from lockstep.cli.demo.proof import HandledEvent, SentSteps, Verdict, parse_handled_event, prove
from lockstep.runtime.daemon import Tasks
from lockstep.runtime.processes import ChildProcess
from support.accepted import Accepted, accepted_twice, parse_accepted
from support.pauses import Pause, late_calls
from support.processes import LIMIT_S, completed

T = TypeVar("T")
MEASURED = "measured"
"""The property of a test that contains its measurements."""
Report = Callable[[str], None]
"""Record a measurement, which is reported at the end of the run (tests/conftest.py)."""

TESTS = Path(__file__).resolve().parents[1]
QUICK = ("--disconnect-grace-ms", "1000", "--session-timeout-ms", "2000")
"""Broker options with short timeouts."""
DEFAULTS = ("--disconnect-grace-ms", "3000", "--session-timeout-ms", "20000")
"""The default options."""
LOOK_S = 0.02
"""The interval at which files of other processes are polled."""
WAIT_S = LIMIT_S
"""The time limit of every wait. Durations are measured and reported, not asserted."""


def now_us() -> int:
    """Return the time of the clock that the workers' lines use."""
    return time.monotonic_ns() // 1000


class Lines(Generic[T]):
    """The parsed lines of all files with one suffix. Each complete line is parsed once."""

    def __init__(self, folder: Path, ending: str, parse: Callable[[str], T]) -> None:
        self._folder = folder
        self._ending = ending
        self._parse = parse
        self._positions: dict[Path, int] = {}
        self._found: list[T] = []

    def all(self) -> list[T]:
        for path in sorted(self._folder.glob(f"*.{self._ending}")):
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                data = file.read()
            complete = data[: data.rfind(b"\n") + 1]
            self._positions[path] = self._positions.get(path, 0) + len(complete)
            self._found += [self._parse(line) for line in complete.decode().splitlines()]
        return self._found


class Cluster:
    """Nameservers, brokers, producers and consumers by name, in one folder."""

    def __init__(self, folder: Path, tasks: Tasks) -> None:
        self.folder = folder
        self.processes: dict[str, ChildProcess] = {}
        self.addresses: dict[str, str] = {}
        self.reported: dict[int, SentSteps] = {}
        self.user = ""
        """The user as which brokers, clients and commands log in; empty: nobody does."""
        self.parameters = ""
        """Parameters of the address of the cluster, such as tls_ca=FILE; empty: connections are plain."""
        self.server_options: tuple[str, ...] = ()
        """Options of every nameserver and broker."""
        self.pauses: list[Pause] = []
        """The times between SIGSTOP and SIGCONT, when they are over."""
        self._paused: dict[str, int] = {}
        self._tasks = tasks
        self._commands: dict[str, tuple[list[str], str]] = {}
        self._options: dict[str, tuple[str, ...]] = {}
        self._runs: Counter[str] = Counter()
        self._handled_events = Lines(folder, "handled", parse_handled_event)
        self._accepted = Lines(folder, "accepted", parse_accepted)

    # -------------------------------------------------------------------------------------------------------------- processes

    async def start(self, name: str, arguments: list[str], ready: str = "", *, program: str = sys.executable) -> ChildProcess:
        """Run `program`, by default this Python, with `arguments` and wait for the event `ready`."""
        self._commands[name] = (arguments, ready)
        self._runs[name] += 1
        log = self.folder / f"{name}-{self._runs[name]}.log"
        environment = {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
        process = await ChildProcess.start(name, arguments, log=log, tasks=self._tasks, environment=environment, program=program)
        self.processes[name] = process
        if ready:
            await process.wait_for_event(ready)
        return process

    def command_of(self, name: str) -> list[str]:
        """Return the arguments with which a process was started."""
        return self._commands[name][0]

    async def restart(self, *names: str, beside: "Coroutine[Any, Any, ChildProcess] | None" = None) -> int:
        """Restart the processes at once with the same options and ports. Return the time (µs) when all had been started."""
        starting = [self.start(name, *self._commands[name]) for name in names]
        began = now_us()
        await asyncio.gather(*starting, *([] if beside is None else [beside]))
        return began

    async def kill(self, *names: str) -> None:
        """Send SIGKILL to all processes before any is reaped."""
        self.signal(signal.SIGKILL, *names)
        await asyncio.gather(*(self.processes[name].wait() for name in names))

    async def stop(self, *names: str) -> None:
        """Send SIGTERM, and check that each process exits with code 0."""
        codes = await asyncio.gather(*(self.processes[name].stop() for name in names))
        assert not any(codes), (dict(zip(names, codes, strict=True)), self.output_tails())

    def signal(self, number: signal.Signals, *names: str) -> int:
        """Send a signal. Return the time (µs)."""
        sent = now_us()
        for name in names:
            if number == signal.SIGSTOP:
                self._paused[name] = sent
            elif number == signal.SIGCONT and name in self._paused:
                self.pauses.append(Pause(name, self._paused.pop(name), sent))
            self.processes[name].signal(number)
        return sent

    async def close(self) -> None:
        self.signal(signal.SIGCONT, *self.processes)
        await self.kill(*self.processes)

    async def nameserver(self, name: str = "nameserver", listen: str = "127.0.0.1:0") -> str:
        process = await self.start(name, ["-m", "lockstep.nameserver", "--listen", listen, *self.server_options])
        address = str((await process.wait_for_event("nameserver.started"))["address"])
        self.addresses[name] = address
        self._commands[name] = (["-m", "lockstep.nameserver", "--listen", address, *self.server_options], "nameserver.started")
        return address

    @property
    def nameservers(self) -> str:
        addresses = [address for name, address in self.addresses.items() if name.startswith("nameserver")]
        if not (self.user or self.parameters):
            return ";".join(addresses)
        return f"lockstep://{self.user}{'@' if self.user else ''}{','.join(addresses)}/?{self.parameters}"

    async def broker(self, name: str, *options: str, listen: str = "127.0.0.1:0") -> str:
        """Start a broker. If it is started again under its name, it keeps its store and, without new options, its options."""
        options = self._options[name] = options or self._options.get(name, QUICK)
        process = await self.start(name, self._broker_command(name, listen, options))
        address = str((await process.wait_for_event("broker.started"))["address"])
        self.addresses[name] = address
        self._commands[name] = (self._broker_command(name, address, options), "broker.started")
        return address

    def _broker_command(self, name: str, listen: str, options: Iterable[str]) -> list[str]:
        store, options = str(self.folder / f"store-{name}"), (*self.server_options, *options)
        return ["-m", "lockstep.broker", "--name", name, "--listen", listen, "--nameserver", self.nameservers, "--store", store, *options]

    async def servers(self, *options: str, queues: int = 4, brokers: Iterable[str] = ("broker-a", "broker-b")) -> None:
        """Start a nameserver and brokers (`options`, default: QUICK). Create the topic `orders` with `queues` queues on each."""
        await self.nameserver()
        await asyncio.gather(*(self.broker(name, *options) for name in brokers))
        await self.command("topic", "create", "orders", "--queues", str(queues))

    async def consumer(self, name: str, *options: str) -> ChildProcess:
        files = ["--file", str(self.folder / f"{name}.handled"), "--accepted", str(self.folder / f"{name}.accepted")]
        command = ["-m", "support.worker_consumer", "--nameserver", self.nameservers, "--name", name, *files, *options]
        return await self.start(name, command, "worker.ready")

    async def producer(self, name: str = "producer", *options: str) -> ChildProcess:
        command = ["-m", "support.worker_producer", "--nameserver", self.nameservers, "--file", str(self.folder / f"{name}.acks"), *options]
        return await self.start(name, command, "worker.ready")

    async def command(self, *arguments: str, code: int = 0) -> str:
        """Run `lockstep …` to its end. Return its standard output, or its standard error for a non-zero exit code."""
        out, error = await self._ended(arguments, code)
        return out if code == 0 else error

    async def run_command(self, *arguments: str, code: int) -> str:
        """Run a command that exits with `code`. Return its standard output."""
        return (await self._ended(arguments, code))[0]

    async def command_stderr(self, *arguments: str) -> str:
        """Run a command that exits with 0. Return its standard error."""
        return (await self._ended(arguments, 0))[1]

    async def _ended(self, arguments: tuple[str, ...], code: int) -> tuple[str, str]:
        ended, out, error = await self.started_command(*arguments)
        assert ended == code, (arguments, ended, out, error)
        return out, error

    async def started_command(self, *arguments: str) -> tuple[int | None, str, str]:
        """Return (exit code, standard output, standard error) of a command."""
        environment = {**os.environ, "LOCKSTEP_NAMESERVER": self.nameservers, "NO_COLOR": "1", "COLUMNS": "200"}
        return await completed(sys.executable, "-m", "lockstep.cli.main", *arguments, environment=environment, limit_s=WAIT_S)

    # --------------------------------------------------------------------------------------------------------- reported events

    async def finish_producer(self, name: str = "producer", *, ordered: bool = True) -> dict[str, Any]:
        """Stop a producer. Its report about its keys is kept for `prove`."""
        process = self.processes[name]
        process.signal(signal.SIGTERM)
        finished = await process.wait_for_event("worker.finished", timeout_s=WAIT_S)
        await process.wait()
        if ordered:
            self.reported.update({int(key): SentSteps(acknowledged, tried) for key, (acknowledged, tried) in finished["reported"].items()})
        return finished

    def record_killed_producer(self, name: str = "producer") -> None:
        """Record a killed producer: the sends in its file are acknowledged, and one more per key may have been attempted."""
        for key, step, _, _ in self.acks(name):
            self.reported[key] = SentSteps(step + 1, step + 2)

    def acks(self, name: str = "producer") -> list[tuple[int, int, str, int]]:
        """Return (key, step, queue, offset) of each acknowledged send."""
        return [(key, step, queue, offset) for key, step, queue, offset, *_ in self._ack_lines(name)]

    def acknowledged_times(self, name: str = "producer") -> dict[str, list[int]]:
        """Return queue → when its sends by a worker_producer were acknowledged (µs), in the order of time."""
        times: dict[str, list[int]] = {}
        for _, _, queue, _, at_us in self._ack_lines(name):
            times.setdefault(queue, []).append(at_us)
        return times

    def _ack_lines(self, name: str) -> Iterator[list[Any]]:
        data = (self.folder / f"{name}.acks").read_text()
        return map(json.loads, data[: data.rfind("\n") + 1].splitlines())

    def acknowledged_queues(self, name: str = "producer") -> set[str]:
        """Return the queues in which messages were stored."""
        return {queue for _, _, queue, _ in self.acks(name)}

    # ---------------------------------------------------------------------------------------------------- consumed messages

    def handled_events(self, topic: str = "orders") -> list[HandledEvent]:
        return [each for each in self._handled_events.all() if each.queue.startswith(f"{topic}@")]

    def accepted_call(self, begun: dict[str, Any]) -> list[Accepted]:
        """Return the accepted commits of the call with the event `begun` (queue, epoch, offset). The response to an earlier SYNC does not
        count: a suspended process reads it later."""
        place = begun["queue"], begun["epoch"]
        return [each for each in self.accepted() if (each.queue, each.epoch) == place and each.end > begun["offset"]]

    def accepted(self, *, after_us: int = 0) -> list[Accepted]:
        """Return the commits that were accepted since `after_us`."""
        return [each for each in self._accepted.all() if each.at_us > after_us]

    def reported_events(self, process: str, event: str, *, after_us: int = 0, **facts: Any) -> list[dict[str, Any]]:
        """Return the events of a process with these fields."""
        said = [each for each in self.processes[process].events if each["event"] == event and each.get("at_us", 0) >= after_us]
        return [each for each in said if all(each.get(fact) == value for fact, value in facts.items())]

    def held(self, name: str) -> dict[str, int]:
        """Return queue → epoch by the consumer's own events."""
        held: dict[str, int] = {}
        for event in self.processes[name].events:
            if event["event"] == "consumer.QueueAssigned":
                held[event["queue"]] = event["epoch"]
            elif event["event"] == "consumer.QueueRevoked" and held.get(event["queue"]) == event["epoch"]:
                del held[event["queue"]]
        return held

    async def group(self, name: str = "billing") -> dict[str, Any]:
        """Return the output of `lockstep group show NAME --json`."""
        shown: dict[str, Any] = json.loads(await self.command("group", "show", name, "--json"))
        return shown

    async def epochs(self, name: str = "billing") -> dict[str, str]:
        """Return queue → epoch as reported by the brokers."""
        return {f"{line['topic']}@{line['broker']}:{line['queue_id']}": line["epoch"] for line in (await self.group(name))["queues"]}

    async def queues(self, topic: str = "orders") -> set[str]:
        """Return the queues of the topic."""
        shown: dict[str, Any] = json.loads(await self.command("topic", "show", topic, "--json"))
        return {f"{topic}@{each['broker']}:{each['queue_id']}" for each in shown["queues"]}

    # ----------------------------------------------------------------------------------------------------------------- waiting

    async def until(self, what: str, true: Callable[[], object], *, timeout_s: float = WAIT_S) -> None:
        """Wait until the condition is true, polling the files of other processes."""
        try:
            async with asyncio.timeout(timeout_s):
                while not true():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}\n{self.output_tails()}") from None

    async def until_heard(self, process: str, event: str, **facts: Any) -> dict[str, Any]:
        """Wait for the first such event of the process. Return it."""
        await self.until(f"{process} says {event} {facts}", lambda: self.reported_events(process, event, **facts))
        return self.reported_events(process, event, **facts)[0]

    async def until_handled(self, goal: int) -> None:
        """Wait for `goal` handled events in all: a producer of few messages may have ended before this is called."""
        await self.until(f"{goal} handled events", lambda: len(self.handled_events()) >= goal)

    async def until_handled_more(self, count: int) -> None:
        """Wait for `count` more handled events, while a producer goes on."""
        await self.until_handled(len(self.handled_events()) + count)

    async def until_held(self, count: int, *names: str) -> None:
        """Wait until the consumers hold that many queues together, each at least one."""

        def shared() -> bool:
            held = [self.held(name) for name in names]
            return all(held) and sum(map(len, held)) == count == len({queue for each in held for queue in each})

        await self.until(f"{names} share {count} queues", shared)

    async def until_accepted(self, queues: Iterable[str], *, after_us: int, then_us: int | None = None) -> dict[str, float]:
        """Wait until each queue has a commit that was accepted after `after_us`. Return queue → seconds from `then_us` to its first one."""
        wanted = set(queues)
        await self.until(
            f"an accepted result on each of {sorted(wanted)}",
            lambda: wanted <= {each.queue for each in self.accepted(after_us=after_us)},
        )
        first: dict[str, int] = {}
        for each in self.accepted(after_us=after_us):
            first[each.queue] = min(each.at_us, first.get(each.queue, each.at_us))
        base_us = after_us if then_us is None else then_us
        return {queue: (first[queue] - base_us) / 1e6 for queue in sorted(wanted)}

    async def until_lag(self, lag: int, group: str = "billing") -> None:
        """Wait until the brokers report at most that lag of the group."""
        async with asyncio.timeout(WAIT_S):
            while True:
                if (await self.group(group))["lag"] <= lag:
                    return
                await asyncio.sleep(LOOK_S)

    async def until_done(self) -> None:
        """Wait until every acknowledged event was handled at least once."""
        missing = {(key, step) for key, reported in self.reported.items() for step in range(reported.acknowledged)}

        def done() -> bool:
            missing.difference_update((each.order, each.step) for each in self.handled_events())
            return not missing

        await self.until("every acknowledged event is handled", done)

    async def prove(self, *consumers: str) -> Verdict:
        """Check that each acknowledged event was handled in order and no offset was accepted twice. Stops the consumers first.

        A call that a consumer was about to make, or in, when it was paused is not part of the order if it ended too late: its result was
        rejected.
        """
        await self.until_done()
        await self.stop(*consumers)
        events = self.handled_events()
        late = late_calls(events, self.pauses)
        verdict = prove((each for each in events if each not in late), self.reported)
        assert verdict.holds, (verdict.faults[:10], self.output_tails())
        assert accepted_twice(self.accepted()) == []
        return verdict

    def output_tails(self) -> str:
        return "\n".join(f"--- {name}: {process.events[-3:]} {process.stderr_tail()[-600:]}" for name, process in self.processes.items())


@asynccontextmanager
async def running_cluster(folder: Path) -> AsyncIterator[Cluster]:
    """Yield an empty cluster. All its processes are killed afterwards."""
    tasks = Tasks()
    made = Cluster(folder, tasks)
    try:
        yield made
    finally:
        await made.close()
        await tasks.cancel_all()

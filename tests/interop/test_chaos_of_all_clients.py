"""Random faults under the clients of all languages at once: Java 4.3.2 and 5.3.3, Go, C++, Node.js and lockstep's SDK.

Members of Java, Go and the SDK share an ordered and a concurrent group. C++ and Node.js, whose clients do not tell a message's broker, have
concurrent groups of their own. The faults last for a minute, or for as long as LOCKSTEP_TEST_CHAOS_S says; their seed is
LOCKSTEP_TEST_CHAOS_SEED, or a new one that is printed.
"""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from lockstep.client import Outcome
from lockstep.runtime.processes import ProcessError
from support.cluster import DEFAULTS, Cluster, Report, now_us, running_cluster
from support.interop import PROGRAMS, cpp_python, go_program, node_folder
from support.java_programs import compiled
from support.mixed_groups import (
    BROKERS,
    QUEUES_EACH,
    TAKEN_OVER_S,
    faults,
    java,
    java_member,
    repeats,
    until_every_queue_is_handled,
)
from support.pauses import late_calls
from support.ports import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECONDS = float(os.environ.get("LOCKSTEP_TEST_CHAOS_S", "60"))
SEED = int(os.environ.get("LOCKSTEP_TEST_CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
ORDERED, CONCURRENT = "orders", "mails"
SHARED = ("java4", "java5", "go", "native", "native", "crowd")
"""The members of the shared groups: `native` of the ordered one, `crowd` of the concurrent one, the others of both."""
OWN = ("cpp", "node")
GROUPS = {"mailing": ("java", "go", "crowd"), "mailing-cpp": ("cpp",), "mailing-node": ("node",)}
"""The concurrent groups, and how the names of their members begin."""
FIRST_KEYS = {"java": 1_000, "go": 2_000, "crowd": 3_000, "cpp": 10_000, "node": 20_000}
LAST_US = 45_000_000
"""How long before their end the faults spare the brokers. A broker's restart gives classic locks a new lease."""
KEYS = 16
"""Of each of the producers of Java and Go."""
DRAINED_S = 300
HELD_S, RECENT_US = 10, 5_000_000
"""How long a pause waits for a call to begin, and how recent the last call of a member must be for a pause to choose it."""
STARTS_MAX = 4
OPENED = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch")]
"""What Netty of 4.3.2 needs of a newer JDK."""


@dataclass(frozen=True)
class Programs:
    """What runs each client."""

    java4: list[str]
    java5: list[str]
    go: str
    cpp: str
    node: Path


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    def folder(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    java4 = compiled("4.3.2", folder("java4"), "OrderedMember")
    java5 = compiled("5.3.3", folder("java5"), "OrderedMember", "KeyedProducer")
    return Programs(
        java4=[*OPENED, "-cp", java4],
        java5=["-Drocketmq.serialize.type=ROCKETMQ", "-cp", java5],
        go=go_program(folder("go"), "./chaos"),
        cpp=cpp_python(folder("cpp")),
        node=node_folder(folder("node")),
    )


class Clients:
    """Starts members and producers by name: the kind of client, a dash, a number."""

    def __init__(self, cluster: Cluster, programs: Programs) -> None:
        self.cluster = cluster
        self.programs = programs

    async def servers(self) -> None:
        """Start a nameserver and brokers with a second listener, where Java 4.3.2 sends and commits, and create the topics."""
        cluster = self.cluster
        await cluster.nameserver()
        for broker, port in zip(BROKERS, free_ports(len(BROKERS)), strict=True):
            await cluster.broker(broker, *DEFAULTS, "--listen", f"vip=127.0.0.1:{port - 2}", listen=f"127.0.0.1:{port}")
        for topic in (ORDERED, CONCURRENT):
            await cluster.command("topic", "create", topic, "--queues", str(QUEUES_EACH))

    async def producers(self) -> None:
        cluster, nameservers = self.cluster, self.cluster.nameservers
        keys = [str(FIRST_KEYS["go"]), str(KEYS), "30", ",".join(BROKERS), str(QUEUES_EACH)]
        await asyncio.gather(
            cluster.producer("producer", "--keys", "10", "--pause-ms", "300", "--again"),
            cluster.producer(
                "crowd-producer",
                *("--topic", CONCURRENT, "--first", str(FIRST_KEYS["crowd"]), "--keys", "24", "--pause-ms", "1000", "--again"),
            ),
            java(cluster, self.programs.java5, "KeyedProducer", "java-producer", str(FIRST_KEYS["java"]), str(KEYS), "30"),
            cluster.start("go-producer", ["producer", nameservers, ORDERED, *keys], "worker.ready", program=self.programs.go),
        )

    async def finish_producers(self) -> None:
        for name in ("producer", "crowd-producer", "java-producer", "go-producer"):
            await self.cluster.finish_producer(name)
            failed = self.cluster.reported_events(name, "send.failed")
            assert [each for each in failed if each["outcome"] != Outcome.NOT_STORED.value] == []

    async def start(self, name: str) -> None:
        """Start a member, again if it ends at once, as a supervisor would: some clients do where there is no route yet."""
        for _ in range(STARTS_MAX - 1):
            try:
                return await self._start(name)
            except ProcessError as error:
                print(error)
                await self.cluster.kill(name)
        return await self._start(name)

    async def _start(self, name: str) -> None:
        cluster, kind, number = self.cluster, kind_of(name), int(name.rpartition("-")[2])
        handled = str(cluster.folder / f"{name}.handled")
        match kind:
            case "java4" | "java5":
                await java_member(cluster, getattr(self.programs, kind), name, CONCURRENT, "mailing")
            case "go":
                command = ["member", cluster.nameservers, ORDERED, "billing", name, handled, CONCURRENT, "mailing"]
                await cluster.start(name, command, "worker.ready", program=self.programs.go)
            case "native":
                await cluster.consumer(name)
            case "crowd":
                options = ["--nameserver", cluster.nameservers, "--file", handled, "--name", name, "--topic", CONCURRENT]
                await cluster.start(name, ["-m", "support.worker_concurrent", *options], "worker.ready")
            case _:
                key = str(FIRST_KEYS[kind] + number)
                command = [cluster.nameservers, name, str(cluster.folder), key, CONCURRENT, f"mailing-{kind}"]
                if kind == "node":
                    await cluster.start(name, [str(self.programs.node / "chaos.js"), *command], "worker.ready", program="node")
                else:
                    program = [f"HOME={cluster.folder}", self.programs.cpp, str(PROGRAMS / "cpp" / "chaos.py")]
                    await cluster.start(name, [*program, *command], "worker.ready", program="env")


def kind_of(name: str) -> str:
    return name.partition("-")[0]


class Nemesis:
    """Causes faults at random. Its sleeps are parts of the faults, and the test waits for nothing in them."""

    def __init__(self, clients: Clients, choose: random.Random) -> None:
        self.cluster = clients.cluster
        self.clients = clients
        self.choose = choose
        self.members: list[str] = []
        self.senders: set[str] = set()
        """All members so far that also send."""
        self.counts: dict[str, int] = {}
        self.asleep: tuple[str, set[str], int] | None = None
        """A Java member that is paused for longer than its lease, the queues of its calls, and when it was paused."""
        self.short: dict[str, int] = {}
        """A paused member → when it goes on."""
        self._started = 0

    async def join(self, *kinds: str) -> None:
        names = []
        for kind in kinds:
            self._started += 1
            names.append(f"{kind}-{self._started}")
        await asyncio.gather(*map(self.clients.start, names))
        self.members += names
        self.senders.update(name for name in names if kind_of(name) in OWN)

    async def strike(self, *, brokers: bool) -> None:
        await asyncio.sleep(self.choose.uniform(0.5, 3))
        self.wake()
        kinds: list[tuple[Callable[[], Awaitable[bool]], int]] = [
            *((self.kill, 6), (self.leave, 2), (self.pause_shortly, 3), (self.pause_for_long, 2), (self.kill_nameserver, 1)),
            (self.kill_broker, 2 if brokers else 0),
        ]
        actions, weights = zip(*kinds, strict=True)
        action = self.choose.choices(actions, weights)[0]
        if await action():
            self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1

    def awake(self, *kinds: str) -> list[str]:
        idle = {*self.short, *([self.asleep[0]] if self.asleep else [])}
        return [name for name in self.members if name not in idle and (not kinds or kind_of(name) in kinds)]

    def shared(self) -> list[str]:
        """Return the members of the groups that several clients share."""
        return [name for name in self.members if kind_of(name) not in OWN]

    async def kill(self) -> bool:
        name = self.choose.choice(self.awake())
        await self.cluster.kill(name)
        await asyncio.sleep(self.choose.choice([0, 0, 2]))
        if kind_of(name) in ("java4", "java5", "go") and self.choose.random() < 0.5:
            await self.clients.start(name)  # with the same client id, it has its locks at once
        else:
            self.members.remove(name)
            await self.join(kind_of(name))
        return True

    async def leave(self) -> bool:
        name = self.choose.choice(self.awake())
        self.members.remove(name)
        await self.cluster.stop(name)
        await self.join(kind_of(name))
        return True

    async def pause_shortly(self) -> bool:
        name = self.choose.choice(self.awake())
        self.short[name] = self.cluster.signal(signal.SIGSTOP, name) + int(self.choose.choice([0.5, 2, 5]) * 1e6)
        return True

    async def pause_for_long(self) -> bool:
        """Pause a Java member in the middle of its calls."""
        recent_us = now_us() - RECENT_US
        busy = {each.consumer for each in self.cluster.handled_events(ORDERED) if each.begun_us > recent_us}
        names = [name for name in self.awake("java4", "java5") if name in busy]
        if self.asleep or not names:
            return False
        name = self.choose.choice(names)
        hold = self.cluster.folder / f"{name}.handled.hold"
        process = self.cluster.processes[name]
        known = len(process.events)
        hold.touch()
        try:
            holding = await process.wait_for_event("worker.holding", after=known, timeout_s=HELD_S)
            self.asleep = name, {holding["queue"]}, self.cluster.signal(signal.SIGSTOP, name)
        except ProcessError:
            return False  # its queues have moved
        finally:
            hold.unlink()
        return True

    async def kill_broker(self) -> bool:
        names = self.choose.choice([BROKERS[:1], BROKERS[1:], BROKERS])
        await self.cluster.kill(*names)
        await asyncio.sleep(self.choose.choice([0, 0.5, 2]))
        await self.cluster.restart(*names)
        return True

    async def kill_nameserver(self) -> bool:
        await self.cluster.kill("nameserver")
        await asyncio.sleep(self.choose.choice([0, 1]))
        await self.cluster.restart("nameserver")
        return True

    def taken_over(self) -> bool:
        """Return whether other members have worked on the queues of the member that is paused for long."""
        if self.asleep is None:
            return True
        name, of, begun_us = self.asleep
        return of <= {each.queue for each in self.cluster.handled_events(ORDERED) if each.begun_us > begun_us and each.consumer != name}

    def wake(self, *, everyone: bool = False) -> None:
        for name, end_us in list(self.short.items()):
            if everyone or now_us() >= end_us:
                self.cluster.signal(signal.SIGCONT, name)
                del self.short[name]
        if self.asleep is not None and self.taken_over():
            self.cluster.signal(signal.SIGCONT, self.asleep[0])
            self.asleep = None

    async def calm(self) -> None:
        self.wake(everyone=True)
        await self.cluster.until("the queues of the paused Java member are taken over", self.taken_over, timeout_s=TAKEN_OVER_S)
        self.wake()


async def until_handled(cluster: Cluster) -> None:
    """Wait until each group has handled every event that was acknowledged."""
    groups = {"billing": ("java", "go", "native")} | GROUPS
    for group, names in groups.items():
        topic = ORDERED if group == "billing" else CONCURRENT
        sent = {key: each.acknowledged for key, each in cluster.reported.items() if (key < FIRST_KEYS["crowd"]) == (topic == ORDERED)}
        missing = {(key, step) for key, acknowledged in sent.items() for step in range(acknowledged)}
        assert missing, group
        await cluster.until(f"{group} has handled every event", partial(handled, cluster, topic, names, missing), timeout_s=DRAINED_S)


def handled(cluster: Cluster, topic: str, names: tuple[str, ...], missing: set[tuple[int, int]]) -> bool:
    """Take out of `missing` what these members have handled. Return whether nothing is left."""
    missing.difference_update((each.order, each.step) for each in cluster.handled_events(topic) if each.consumer.startswith(names))
    return not missing


async def test_order_holds_and_nothing_is_lost_under_random_faults_of_all_clients(
    programs: Programs, tmp_path: Path, report: Report
) -> None:
    print(f"LOCKSTEP_TEST_CHAOS_SEED={SEED} repeats these faults")
    async with running_cluster(tmp_path) as cluster:
        clients = Clients(cluster, programs)
        await clients.servers()
        nemesis = Nemesis(clients, random.Random(SEED))
        # Go comes last: its client keeps the locks of queues that it loses to others until their lease is over.
        await nemesis.join(*(kind for kind in SHARED if kind != "go"), *OWN)
        await clients.producers()
        await until_every_queue_is_handled(cluster, *nemesis.shared())
        await nemesis.join("go")
        begun_us = now_us()
        end_us = begun_us + int(SECONDS * 1e6)
        # The brokers' end closes the connections of the paused member, so the others divide its queues when its lease is over.
        assert await nemesis.pause_for_long()
        await cluster.kill(*BROKERS)
        await cluster.restart(*BROKERS)
        while now_us() < end_us:
            await nemesis.strike(brokers=now_us() < end_us - LAST_US)
        calm_us = now_us()
        await nemesis.calm()
        woken_us = now_us()
        for topic in (ORDERED, CONCURRENT):
            await until_every_queue_is_handled(cluster, *nemesis.shared(), topic=topic)
        went_on_s = (now_us() - woken_us) / 1e6
        await clients.finish_producers()
        for name in nemesis.awake(*OWN):
            cluster.signal(signal.SIGUSR2, name)
            await cluster.processes[name].wait_for_event("worker.sent")
        for name in sorted(nemesis.senders):
            cluster.record_killed_producer(name)
        await until_handled(cluster)
        await cluster.stop(*nemesis.awake())
        events = cluster.handled_events(ORDERED)
        late = late_calls(events, cluster.pauses)
        assert faults(each for each in events if each not in late) == []
        concurrent = cluster.handled_events(CONCURRENT)
        by_kind = Counter(kind_of(each.consumer) for each in events)
        assert by_kind.keys() == {*SHARED} - {"crowd"}
        assert {kind_of(each.consumer) for each in concurrent} == {*SHARED, *OWN} - {"native"}
    sent = sum(each.acknowledged for each in cluster.reported.values())
    report(
        f"seed {SEED}, {(calm_us - begun_us) / 1e6:.0f} s, faults {nemesis.counts}: {sent} events sent, {len(events)} handled in order "
        f"{dict(by_kind)} ({repeats(events)} repeats, {len(late)} late calls), {len(concurrent)} by the concurrent groups, 0 lost; "
        f"the paused member's queues were taken over {(woken_us - calm_us) / 1e6:.1f} s after calm, and all went on {went_on_s:.1f} s later"
    )

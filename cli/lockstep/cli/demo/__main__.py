"""Run the demo. Exit 0 if the proof holds, 1 if it does not or a process failed."""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from lockstep.cli.demo.demo_cluster import DemoCluster
from lockstep.cli.demo.order_events import STEPS
from lockstep.cli.demo.proof import HandledEvent, SentSteps, Verdict, parse_handled_event, prove
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.host import Host
from lockstep.runtime.processes import ProcessError

PRODUCERS = 3
QUEUES_PER_BROKER = 8
REPLICA = "broker-b-replica"
DemoFault = Callable[[DemoCluster], Awaitable[str]]
"""Injects a fault, and returns what it did."""
POLL_S = 0.25
STALL_S = 60.0
"""The demo fails if no event was handled for this long."""


def main() -> int:
    options = parser().parse_args()
    console = Console()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="lockstep-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    total = options.orders * len(STEPS)
    console.print(f"{total:,} events of {options.orders:,} orders; files and logs in {folder}")
    try:
        names = asyncio.run(run_demo(folder, console, options))
        events = [parse_handled_event(line) for name in names for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    except LockstepError as error:
        console.print(f"[bold red]failed:[/] {error}")
        return 1
    verdict = prove(events, {order: SentSteps(len(STEPS), len(STEPS)) for order in range(options.orders)})
    show(verdict, console, total)
    if (options.replica or options.ha) and verdict.holds:
        console.print("nothing that broker-b had acknowledged was lost with its machine: its replica had all of it")
    return 0 if verdict.holds else 1


async def run_demo(folder: Path, console: Console, options: argparse.Namespace) -> list[str]:
    """Run the demo to its end. Return the names of the consumers."""
    async with DemoCluster(folder) as cluster:
        await start_cluster(cluster, console, options)
        faults = HA_FAULTS if options.ha else REPLICA_FAULTS if options.replica else FAULTS
        await inject_faults(cluster, console, options.orders * len(STEPS), faults)
        await cluster.stop_consumers()
        return list(cluster.files)


async def start_cluster(cluster: DemoCluster, console: Console, options: argparse.Namespace) -> None:
    await cluster.start_nameserver()
    if options.ha:
        await cluster.start_register()
    await asyncio.gather(cluster.start_broker("broker-a"), cluster.start_broker("broker-b"))
    if options.replica or options.ha:
        await cluster.start_replica(REPLICA, broker="broker-b", master="broker-b")
    replica = " and its replica" if options.replica or options.ha else ""
    console.print(f"nameserver at {cluster.nameserver}, {'the witness, ' if options.ha else ''}broker-a, broker-b{replica}")
    await cluster.create_topic(QUEUES_PER_BROKER)
    await asyncio.gather(*(cluster.start_consumer(f"consumer-{number}") for number in (1, 2, 3)))
    console.print(f"three ordered consumers of one group, {PRODUCERS} producers")
    for share in range(PRODUCERS):
        await cluster.start_producer(share, of=PRODUCERS, orders=options.orders, seconds=options.seconds)


async def inject_faults(cluster: DemoCluster, console: Console, total: int, faults: Sequence[tuple[int, DemoFault]]) -> None:
    """Show the progress until all events are handled, and inject each fault at its percentage."""
    left = list(faults)
    done: set[tuple[int, int]] = set()
    stalled_s = 0.0
    bar = Progress(TextColumn("handled"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    with bar:
        task = bar.add_task("handled", total=total)
        while not (cluster.check_producers() and len(done) >= total):
            before = len(done)
            done.update(handled(cluster.new_events()))
            bar.update(task, completed=len(done))
            stalled_s = 0.0 if len(done) > before else stalled_s + POLL_S
            if stalled_s > STALL_S:
                raise ProcessError(
                    f"nothing was handled for {STALL_S:.0f} s: {len(done):,} of {total:,} events are done. Logs: {cluster.folder}"
                )
            if left and len(done) * 100 >= left[0][0] * total:
                percent, fault = left.pop(0)
                bar.console.print(f"  {percent} %  {await fault(cluster)}")
            await asyncio.sleep(POLL_S)


def handled(events: list[HandledEvent]) -> set[tuple[int, int]]:
    return {(event.order, event.step) for event in events}


async def kill_consumer(cluster: DemoCluster) -> str:
    await cluster.kill("consumer-2")
    return "kill -9 consumer-2"


async def restart_broker(cluster: DemoCluster) -> str:
    await cluster.kill("broker-b")
    await cluster.start_broker("broker-b")
    return "kill -9 broker-b, started again on its store"


async def lose_broker(cluster: DemoCluster) -> str:
    await cluster.lose("broker-b")
    await cluster.promote(REPLICA)
    return "kill -9 broker-b and its directory removed, as if its machine were lost; its replica is promoted"


async def lose_elected(cluster: DemoCluster) -> str:
    lost_ms = Host.current().clock.monotonic_ms()
    await cluster.lose("broker-b")
    await cluster.until_elected(REPLICA)
    seconds = (Host.current().clock.monotonic_ms() - lost_ms) / 1000
    return f"kill -9 broker-b and its directory removed, as if its machine were lost; its replica is elected by itself, in {seconds:.1f} s"


async def replace_machine(cluster: DemoCluster) -> str:
    started_ms = Host.current().clock.monotonic_ms()
    await cluster.start_replica("broker-b", broker="broker-b", master=REPLICA)
    seconds = (Host.current().clock.monotonic_ms() - started_ms) / 1000
    return f"an empty machine takes the place of the lost one, and has copied all after {seconds:.1f} s: the new master has a replica"


async def add_consumer(cluster: DemoCluster) -> str:
    await cluster.start_consumer("consumer-4")
    return "consumer-4 joins"


FAULTS: Sequence[tuple[int, DemoFault]] = ((20, kill_consumer), (40, restart_broker), (65, add_consumer))
REPLICA_FAULTS: Sequence[tuple[int, DemoFault]] = ((20, kill_consumer), (40, lose_broker), (60, replace_machine), (65, add_consumer))
HA_FAULTS: Sequence[tuple[int, DemoFault]] = ((20, kill_consumer), (40, lose_elected), (60, replace_machine), (65, add_consumer))


def show(verdict: Verdict, console: Console, total: int) -> None:
    table = Table(
        "queue",
        "from",
        "to",
        "handover (ms)",
        title="handovers: from the end of the old owner's last listener call to the start of the new one's first",
    )
    for handover in sorted(verdict.handovers, key=lambda each: each.idle_us):
        table.add_row(handover.queue, handover.old_owner, handover.new_owner, f"{handover.idle_us / 1000:,.1f}")
    console.print(table)
    if verdict.holds:
        console.print(
            f"[bold green]proved:[/] {total:,} events, every order's in order, none lost; {verdict.repeats:,} repeated after a fault"
        )
        return
    console.print(f"[bold red]NOT proved:[/] {len(verdict.faults):,} faults, the first:")
    for fault in verdict.faults[:10]:
        console.print(f"  {fault}", markup=False)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    options.add_argument("--orders", type=int, default=2000, help="number of orders, with 10 events each (default 2000)")
    options.add_argument("--seconds", type=float, default=20.0, help="how long sending takes when nothing fails (default 20 s)")
    lost = options.add_mutually_exclusive_group()
    lost.add_argument("--replica", action="store_true", help="lose the machine of a broker for good, and promote its replica")
    lost.add_argument("--ha", action="store_true", help="the same, and its other copy is elected by itself")
    options.add_argument("--folder", help="directory for stores, files and logs (default: a new one under the temporary directory)")
    return options


if __name__ == "__main__":
    sys.exit(main())

"""Run the Spark demo (`scripts/demo --spark`).

spark-submit loads rows at a given rate while ordered consumers run; a broker is killed and a Spark task fails meanwhile. Then the verifying
pipeline checks the rows in the topic, and the consumers' files are checked as in the other demo. Exit 0 if nothing is lost, stored twice or
out of order.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lockstep.cli.demo.__main__ import POLL_S, STALL_S
from lockstep.cli.demo.demo_cluster import DemoCluster
from lockstep.cli.demo.proof import SentSteps, parse_handled_event, prove
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.processes import ChildProcess, ProcessError

TOPIC = "demo-load"
KEYS = 200
QUEUES_PER_BROKER = 2
VERIFY_S = 300.0
SPARK_S = 120.0
"""Time limit of the first row: Spark takes ten seconds to start on an idle machine."""


def main() -> int:
    options = parser().parse_args()
    console = Console()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="lockstep-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"{options.rows:,} rows at {options.rate:,} a second; files and logs in {folder}")
    try:
        names, verdict = asyncio.run(run_demo(folder, console, options))
        events = [parse_handled_event(line) for name in names for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    except LockstepError as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    counts = [options.rows // KEYS + (key < options.rows % KEYS) for key in range(KEYS)]
    consumed = prove(events, {key: SentSteps(count, count) for key, count in enumerate(counts)})
    found = ", ".join(f"{verdict[name]:,} {label}" for name, label in VERDICT_LABELS)
    console.print(f"verify_load: {verdict['found']:,} of {verdict['expected']:,} rows are there: {found}")
    console.print(f"report: {folder / 'run' / 'report.html'}", highlight=False)
    if verdict["clean"] and consumed.holds:
        what = (
            f"{options.rows:,} rows, every key's in order, none lost, none stored twice; {consumed.repeats:,} handled again after a fault"
        )
        console.print(f"[bold green]proved:[/] {what}")
        return 0
    console.print(f"[bold red]NOT proved:[/] {len(consumed.faults):,} faults of consumption, the first:")
    for fault in consumed.faults[:10]:
        console.print(f"  {fault}", markup=False)
    return 1


VERDICT_LABELS = (("lost", "lost"), ("repeated", "repeated"), ("outOfOrder", "out of order"), ("corrupt", "corrupt"))


async def run_demo(folder: Path, console: Console, options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """Run the demo to its end. Return the names of the consumers, and the verdict of the pipeline."""
    scripts, run = Path(options.scripts), folder / "run"
    async with DemoCluster(folder, TOPIC) as cluster:
        await cluster.start_nameserver()
        await asyncio.gather(cluster.start_broker("broker-a"), cluster.start_broker("broker-b"))
        await cluster.create_topic(QUEUES_PER_BROKER)
        await asyncio.gather(*(cluster.start_consumer(name, "--load", "--work-ms", "0") for name in ("consumer-1", "consumer-2")))
        console.print(f"nameserver at {cluster.nameserver}, two brokers, two ordered consumers; spark-submit load_generator.py")
        where = ["--nameserver", cluster.nameserver]
        load = ["--topic", TOPIC, "--rows", str(options.rows), "--keys", str(KEYS), "--rate", str(options.rate), "--out", str(run)]
        faults = ["--master", "local[2,4]", "--fail-task", f"1:{options.rows // 4}"]
        loader = await cluster.spark_submit("load", scripts / "load_generator.py", *where, *load, *faults, "--json", "--progress")
        killed = await kill_broker_during_load(cluster, console, loader, options.rows)
        if not killed:
            console.print("[bold yellow]no broker was killed:[/] the load ended before 40 % of it was handled; use more --rows")
        await cluster.stop_consumers()
        summary = json.loads((run / "summary.json").read_text())
        again = describe_repeated_frames(summary["repeatedFrames"])
        waited = f"the longest wait for an acknowledgement: {summary['ackMs']['max'] / 1000:.1f} s"
        console.print(f"loaded: {summary['rows']:,} rows in {summary['sendingSeconds']} s; {waited}; {again}. spark-submit verify_load.py")
        judge = ["--manifest", str(run / "manifest.json"), "--json"]
        verifier = await cluster.spark_submit("verify", scripts / "verify_load.py", *where, *judge)
        code = await verifier.wait(VERIFY_S)
        if code not in (0, 1, 2):
            raise ProcessError(f"verify_load.py ended with exit code {code}.\n{verifier.stderr_tail()}")
        verdict: dict[str, Any] = json.loads((run / "verdict.json").read_text())
        return list(cluster.files), verdict


def describe_repeated_frames(frames: int) -> str:
    """Describe the frames that the failed task sent twice. The count excludes each queue's last frame, which the broker stores idempotently
    and acknowledges with its first position."""
    if not frames:
        return "no frame is known to have been sent again (a queue's last one is not counted)"
    return f"{frames:,} frames of the failed task were sent again and stored once"


async def kill_broker_during_load(cluster: DemoCluster, console: Console, loader: ChildProcess, total: int) -> bool:
    """Show the progress until all rows are handled, and kill a broker at 40 %. Return False if the load ended before that."""
    done: set[tuple[int, int]] = set()
    killed = False
    stalled_s = 0.0
    bar = Progress(TextColumn("handled"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    with bar:
        task = bar.add_task("handled", total=total)
        while loader.exit_code is None or len(done) < total:
            before = len(done)
            done.update((event.order, event.step) for event in cluster.new_events())
            bar.update(task, completed=len(done))
            stalled_s = 0.0 if len(done) > before else stalled_s + POLL_S
            if loader.exit_code not in (None, 0):
                raise ProcessError(f"load_generator.py ended with exit code {loader.exit_code}.\n{loader.stderr_tail()}")
            if stalled_s > (STALL_S if done else SPARK_S):
                what = f"nothing was handled for {stalled_s:.0f} s: {len(done):,} of {total:,} rows are done"
                raise ProcessError(f"{what}. Logs: {cluster.folder}")
            if not killed and loader.exit_code is None and len(done) >= 0.4 * total:
                killed = True
                await cluster.kill("broker-b")
                await cluster.start_broker("broker-b")
                bar.console.print("  40 %  kill -9 broker-b, started again on its store")
            await asyncio.sleep(POLL_S)
    return killed


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="scripts/demo --spark", description=__doc__)
    options.add_argument("--scripts", required=True, help="directory of load_generator.py and verify_load.py")
    options.add_argument("--rows", type=int, default=20_000, help="number of rows (default 20,000)")
    options.add_argument("--rate", type=int, default=1_000, help="rows per second (default 1,000)")
    options.add_argument("--folder", help="directory for stores, files and logs (default: a new one under the temporary directory)")
    return options


if __name__ == "__main__":
    sys.exit(main())

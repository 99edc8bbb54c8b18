"""`scripts/demo --spark`: a load by spark-submit at a rate, ordered consumers beside it, a broker killed and a task failed meanwhile; then
the verifying pipeline says what stands in the topic, and the consumers' own files what was done to it. Exit 0: nothing is lost, repeated
by the sink, or out of order.
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

from lockstep.admin.demo.__main__ import LOOK_S, STALL_S
from lockstep.admin.demo.proof import Told, parse_deed, prove
from lockstep.admin.demo.stage import DemoCluster
from lockstep.admin.processes import Process, ProcessError
from lockstep.protocol.errors import LockstepError

TOPIC = "demo-load"
KEYS = 200
QUEUES_PER_BROKER = 2
VERIFY_S = 300.0
SPARK_S = 120.0
"""Until the first row: Spark takes ten seconds to start on an idle machine."""


def main() -> int:
    options = parser().parse_args()
    console = Console()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="lockstep-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    console.print(f"{options.rows:,} rows at {options.rate:,} a second; files and logs in {folder}")
    try:
        names, verdict = asyncio.run(perform(folder, console, options))
        deeds = [parse_deed(line) for name in names for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    except LockstepError as error:
        console.print(f"[bold red]failed:[/] {error}", highlight=False)
        return 1
    counts = [options.rows // KEYS + (key < options.rows % KEYS) for key in range(KEYS)]
    consumed = prove(deeds, {key: Told(count, count) for key, count in enumerate(counts)})
    found = ", ".join(f"{verdict[name]:,} {words}" for name, words in WORDS)
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


WORDS = (("lost", "lost"), ("repeated", "repeated"), ("outOfOrder", "out of order"), ("corrupt", "corrupt"))


async def perform(folder: Path, console: Console, options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """Plays the whole; the names of the consumers, and what the pipeline found."""
    scripts, run = Path(options.scripts), folder / "run"
    async with DemoCluster(folder, TOPIC) as stage:
        await stage.start_nameserver()
        await asyncio.gather(stage.start_broker("broker-a"), stage.start_broker("broker-b"))
        await stage.create_topic(QUEUES_PER_BROKER)
        await asyncio.gather(*(stage.start_consumer(name, "--load", "--work-ms", "0") for name in ("consumer-1", "consumer-2")))
        console.print(f"nameserver at {stage.nameserver}, two brokers, two ordered consumers; spark-submit load_generator.py")
        where = ["--nameserver", stage.nameserver]
        load = ["--topic", TOPIC, "--rows", str(options.rows), "--keys", str(KEYS), "--rate", str(options.rate), "--out", str(run)]
        faults = ["--master", "local[2,4]", "--fail-task", f"1:{options.rows // 4}"]
        loader = await stage.spark_submit("load", scripts / "load_generator.py", *where, *load, *faults, "--json", "--progress")
        killed = await play(stage, console, loader, options.rows)
        if not killed:
            console.print("[bold yellow]no broker was killed:[/] the load was over before 40 % of it were handled; give more --rows")
        await stage.stop_consumers()
        summary = json.loads((run / "summary.json").read_text())
        again = sent_again(summary["repeatedFrames"])
        waited = f"the longest wait for an acknowledgement: {summary['ackMs']['max'] / 1000:.1f} s"
        console.print(f"loaded: {summary['rows']:,} rows in {summary['sendingSeconds']} s; {waited}; {again}. spark-submit verify_load.py")
        judge = ["--manifest", str(run / "manifest.json"), "--json"]
        verifier = await stage.spark_submit("verify", scripts / "verify_load.py", *where, *judge)
        code = await verifier.wait(VERIFY_S)
        if code not in (0, 1, 2):
            raise ProcessError(f"verify_load.py ended with exit code {code}.\n{verifier.last_words()}")
        verdict: dict[str, Any] = json.loads((run / "verdict.json").read_text())
        return list(stage.files), verdict


def sent_again(frames: int) -> str:
    """Of the task that was made to fail. The count has none of the last frames of queues: of those a broker knows the place again."""
    if not frames:
        return "no frame is known to have been sent again (a queue's last one can't be told)"
    return f"{frames:,} frames of the failed task were sent again and stored once"


async def play(stage: DemoCluster, console: Console, loader: Process, total: int) -> bool:
    """Watches the rows being handled; at 40 % a broker is killed, while the others are being sent. False: there was no time for that."""
    done: set[tuple[int, int]] = set()
    killed = False
    still_s = 0.0
    bar = Progress(TextColumn("handled"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console)
    with bar:
        task = bar.add_task("handled", total=total)
        while loader.exit_code is None or len(done) < total:
            before = len(done)
            done.update((deed.order, deed.step) for deed in stage.new_deeds())
            bar.update(task, completed=len(done))
            still_s = 0.0 if len(done) > before else still_s + LOOK_S
            if loader.exit_code not in (None, 0):
                raise ProcessError(f"load_generator.py ended with exit code {loader.exit_code}.\n{loader.last_words()}")
            if still_s > (STALL_S if done else SPARK_S):
                what = f"nothing was handled for {still_s:.0f} s: {len(done):,} of {total:,} rows are done"
                raise ProcessError(f"{what}. Logs: {stage.folder}")
            if not killed and loader.exit_code is None and len(done) >= 0.4 * total:
                killed = True
                await stage.kill("broker-b")
                await stage.start_broker("broker-b")
                bar.console.print("  40 %  kill -9 broker-b, started again on its store")
            await asyncio.sleep(LOOK_S)
    return killed


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="scripts/demo --spark", description=__doc__)
    options.add_argument("--scripts", required=True, help="the folder of load_generator.py and verify_load.py")
    options.add_argument("--rows", type=int, default=20_000)
    options.add_argument("--rate", type=int, default=1_000, help="rows a second (default 1,000)")
    options.add_argument("--folder", help="where stores, files and logs go (default: a new folder under the temporary directory)")
    return options


if __name__ == "__main__":
    sys.exit(main())

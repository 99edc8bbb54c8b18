"""lockstep bench."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from lockstep.cli.bench.figures import Figure
from lockstep.cli.bench.run import Bench, BenchPlan, cluster, workplace
from lockstep.cli.chosen_cluster import LOGIN_VARIABLE
from lockstep.cli.options import JsonOption, nameserver_option, print_error, run
from lockstep.cli.render import print_json, print_table
from lockstep.protocol.native import implementation
from lockstep.runtime.connections.cluster_address import NAMESERVER_VARIABLE, URL_VARIABLE, ClusterAddress

app = typer.Typer(add_completion=False)


@app.command("bench")
def bench_command(
    count: Annotated[int, typer.Option("--count", "-c", min=100, max=100_000_000, help="Number of messages per phase.")] = 100_000,
    size: Annotated[int, typer.Option("--size", "-s", min=20, max=1 << 20, help="Size of a message body in bytes.")] = 100,
    window: Annotated[int, typer.Option("--window", min=1, max=100_000, help="Number of sends in flight in the windowed phase.")] = 2_000,
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=100_000, help="Messages per second while the end-to-end latency is measured.")
    ] = 1_000,
    queues: Annotated[int, typer.Option("--queues", min=1, max=1_024, help="Number of queues of the topic on each broker.")] = 8,
    ordered: Annotated[bool, typer.Option("--ordered/--unordered", help="Send with sharding keys, or round robin to the queues.")] = True,
    delayed: Annotated[
        int,
        typer.Option(
            "--delayed",
            max=10_000_000,
            min=0,
            help="Measure also the lateness of a delay of 1 s with N messages pending that are due in 2 h. They remain in the cluster. "
            "0 disables it.",
        ),
    ] = 0,
    flush: Annotated[str, typer.Option("--flush", help="Flush mode of the broker that the benchmark starts: async or sync.")] = "async",
    nameserver: Annotated[
        ClusterAddress | None,
        nameserver_option(
            f"Measure this cluster. Default: that of {URL_VARIABLE}, {NAMESERVER_VARIABLE} or {LOGIN_VARIABLE}, else servers that the "
            "benchmark starts."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure one producer process and one consumer process: send rates and latencies, ordered and concurrent consumption."""
    if flush not in ("async", "sync"):
        print_error(f"--flush {flush}: expected async or sync")
        raise typer.Exit(2)
    run(_bench(lambda: BenchPlan(count, size, window, rate, queues, ordered, delayed=delayed), nameserver, flush, as_json))


async def _bench(plan: Callable[[], BenchPlan], nameserver: ClusterAddress | None, flush: str, as_json: bool) -> None:
    figures: list[Figure] = []
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), console=Console(file=sys.stderr))
    with bar:
        task = bar.add_task("starting", total=None)

        def show_progress(phase: str, done: int, total: int) -> None:
            bar.update(task, description=phase, completed=done, total=total)

        async with workplace() as (folder, tasks):
            if nameserver:
                figures = [figure async for figure in Bench(nameserver, plan(), folder, tasks, show_progress).run()]
            else:
                async with cluster(folder, tasks, flush) as own:
                    figures = [figure async for figure in Bench(ClusterAddress.parse(own), plan(), folder, tasks, show_progress).run()]
    if as_json:
        print_json([{**asdict(figure), "kernels": implementation()} for figure in figures])
        return
    rows = [(f.phase, f"{f.messages:,}", f.body_bytes, _number(f.rate), _number(f.p50_us), _number(f.p99_us)) for f in figures]
    print_table(["phase", ">messages", ">bytes", ">messages/s", ">p50 µs", ">p99 µs"], rows)
    print(f"with {implementation()}")


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"

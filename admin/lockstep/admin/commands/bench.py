"""lockstep bench."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from lockstep.admin.bench.figures import Figure
from lockstep.admin.bench.run import Bench, Plan, cluster, workplace
from lockstep.admin.options import complain, run
from lockstep.admin.render import print_json, print_table


def bench_command(
    count: Annotated[int, typer.Option("--count", "-c", min=100, max=100_000_000, help="Messages a phase.")] = 100_000,
    size: Annotated[int, typer.Option("--size", "-s", min=20, max=1 << 20, help="Bytes of a body.")] = 100,
    window: Annotated[int, typer.Option("--window", min=1, max=100_000, help="Awaited sends in flight.")] = 2_000,
    rate: Annotated[int, typer.Option("--rate", min=1, max=100_000, help="Messages a second for the end-to-end latency.")] = 1_000,
    queues: Annotated[int, typer.Option("--queues", min=1, max=1_024, help="Queues of the topic on each broker.")] = 8,
    ordered: Annotated[bool, typer.Option("--ordered/--unordered", help="Send by sharding key, or to the queues in turn.")] = True,
    delayed: Annotated[
        int,
        typer.Option(
            "--delayed",
            max=10_000_000,
            min=0,
            help="Measure too how late messages come that wait for 1 s, while so many others wait for 2 h (at the cluster too: they stay).",
        ),
    ] = 0,
    flush: Annotated[str, typer.Option("--flush", help="Of the broker that it starts: async or sync.")] = "async",
    nameserver: Annotated[
        str | None,
        typer.Option(
            "--nameserver",
            "-n",
            envvar="LOCKSTEP_NAMESERVER",
            help="Measure this cluster; without it, a nameserver and a broker of its own.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure one producer and one consumer process: rates of sending and of consuming in order and concurrently, latencies."""
    if flush not in ("async", "sync"):
        complain(f"--flush {flush}: expected async or sync")
        raise typer.Exit(2)
    run(_bench(lambda: Plan(count, size, window, rate, queues, ordered, delayed=delayed), nameserver, flush, as_json))


async def _bench(plan: Callable[[], Plan], nameserver: str | None, flush: str, as_json: bool) -> None:
    figures: list[Figure] = []
    bar = Progress(TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), console=Console(file=sys.stderr))
    with bar:
        task = bar.add_task("starting", total=None)

        def told(phase: str, done: int, total: int) -> None:
            bar.update(task, description=phase, completed=done, total=total)

        async with workplace() as (folder, tasks):
            if nameserver:
                figures = [figure async for figure in Bench(nameserver, plan(), folder, tasks, told).run()]
            else:
                async with cluster(folder, tasks, flush) as own:
                    figures = [figure async for figure in Bench(own, plan(), folder, tasks, told).run()]
    if as_json:
        print_json([asdict(figure) for figure in figures])
        return
    rows = [(f.phase, f"{f.messages:,}", f.body_bytes, _number(f.rate), _number(f.p50_us), _number(f.p99_us)) for f in figures]
    print_table(["phase", ">messages", ">bytes", ">messages/s", ">p50 µs", ">p99 µs"], rows)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"

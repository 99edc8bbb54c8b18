"""lockstep delays."""

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.brokers.delays import DelayLine, DelayReport, delays_json, due_name
from lockstep.operations.brokers.overviews import read_delays
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.text import format_short_duration
from lockstep.protocol.delays import format_delay
from lockstep.runtime.connections.cluster_address import ClusterAddress

app = typer.Typer(add_completion=False)


@app.command("delays")
def delays_command(nameserver: NameserverOption = DEFAULT_CLUSTER, as_json: JsonOption = False) -> None:
    """Show how many messages wait for their delay or for a retry, by delay and by when they are due."""
    run(_delays(nameserver, as_json))


async def _delays(nameserver: ClusterAddress, as_json: bool) -> None:
    report = await read_delays(admin_client(nameserver))
    if as_json:
        print_json(delays_json(report))
    else:
        _print(report)
    raise_if_incomplete(report.failed)


def _print(report: DelayReport) -> None:
    rows = [(format_delay(line.delay_ms), ", ".join(line.brokers), line.waiting, _next_due(line)) for line in report.lines]
    print_table(["delay", "brokers", ">waiting", "next due"], rows, empty="no message waits")
    if rows:
        print_line("due: " + ", ".join(f"{due_name(bucket)} {count}" for bucket, count in enumerate(report.due)))
    if report.untimed:
        print_line(f"times not known: {report.untimed}")


def _next_due(line: DelayLine) -> str | None:
    if line.first_due_ms is None:
        return None
    text = format_short_duration(abs(line.first_due_ms))
    return f"in {text}" if line.first_due_ms > 0 else f"overdue for {text}"

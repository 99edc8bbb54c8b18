"""lockstep store check."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.admin.options import JsonOption, print_error, run
from lockstep.admin.render import print_json, print_line, print_table

PROGRESS_BYTES = 1 << 30
EXIT_DAMAGED = 5

app = typer.Typer(no_args_is_help=True, help="Check the store of a stopped broker.")


@app.command("check")
def check_command(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The broker's store directory.")],
    as_json: JsonOption = False,
) -> None:
    """Read the whole store of a stopped broker and print the damaged places. Nothing is changed.

    Exit 0 if it is undamaged, 5 if it is damaged, 6 if a broker has it open."""
    run(_check(directory, as_json))


async def _check(directory: str, as_json: bool) -> None:
    # Only this command needs the broker's code.
    from lockstep.broker.store import StoreInUseError
    from lockstep.broker.store.check import check_store
    from lockstep.runtime.files import ReadOnlyFiles

    printed = 0

    def progress(position: int, end: int) -> None:
        nonlocal printed
        if position - printed >= PROGRESS_BYTES:
            printed = position
            print(f"read {position} of at most {end} bytes", file=sys.stderr, flush=True)

    try:
        report = await check_store(ReadOnlyFiles(), directory, progress)
    except StoreInUseError as error:
        print_error(error)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json({"whole": not report.problems, **asdict(report)})
    else:
        if report.problems:
            print_table(["kind", "where", "what"], [(each.kind, each.where, each.what) for each in report.problems])
        print_line(
            f"{report.record_count} records from log position {report.log_start} to {report.log_end}: {len(report.problems)} problems, "
            f"{report.damaged_bytes} bytes damaged, {report.lost_messages} messages lost, {report.wrong_entries} queue entries wrong"
        )
        if report.unsynced_tail_bytes:
            print_line(f"the bytes after {report.log_end} are an incomplete record that was never synced: the next start removes them")
    if report.problems:
        raise typer.Exit(EXIT_DAMAGED)

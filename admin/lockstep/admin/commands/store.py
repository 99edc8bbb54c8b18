"""lockstep store check: is a stopped broker's store what was written?"""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.admin.options import JsonOption, complain, run
from lockstep.admin.render import print_json, print_table, say

PROGRESS_BYTES = 1 << 30
DAMAGED = 5

app = typer.Typer(no_args_is_help=True, help="The store of a broker that does not run.")


@app.command("check")
def check_command(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The broker's store directory.")],
    as_json: JsonOption = False,
) -> None:
    """Read the whole store of a stopped broker and print what is damaged. Changes nothing. Exit 0: it is whole, 5: damaged, 6: open."""
    run(_check(directory, as_json))


async def _check(directory: str, as_json: bool) -> None:
    # Only this command needs the broker's code.
    from lockstep.broker.store import StoreInUseError
    from lockstep.broker.store.check import check_store
    from lockstep.runtime.files import ReadOnlyFiles

    told = 0

    def progress(position: int, end: int) -> None:
        nonlocal told
        if position - told >= PROGRESS_BYTES:
            told = position
            print(f"read to {position} of at most {end}", file=sys.stderr, flush=True)

    try:
        report = await check_store(ReadOnlyFiles(), directory, progress)
    except StoreInUseError as error:
        complain(error)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        print_json({"whole": not report.problems, **asdict(report)})
    else:
        if report.problems:
            print_table(["kind", "where", "what"], [(each.kind, each.where, each.what) for each in report.problems])
        say(
            f"{report.record_count} records from {report.log_start} to {report.log_end}: {len(report.problems)} problems, "
            f"{report.damaged_bytes} bytes damaged, {report.lost_messages} messages lost, {report.wrong_entries} queue entries wrong"
        )
        if report.unsynced_tail_bytes:
            say(f"behind {report.log_end} is an unfinished tail that was never synced: the next start cuts it")
    if report.problems:
        raise typer.Exit(DAMAGED)

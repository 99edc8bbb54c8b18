"""lockstep store check | inspect | export | restore."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from lockstep.cli.options import JsonOption, print_error, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.operations.errors import OperationError
from lockstep.operations.text import format_time

PROGRESS_BYTES = 1 << 30
EXIT_DAMAGED = 5

app = typer.Typer(no_args_is_help=True, help="Check, inspect or move the store of a stopped broker, or restore a backup of it.")


@app.command("check")
def check_command(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The broker's store directory.")],
    as_json: JsonOption = False,
) -> None:
    """Read the whole store of a stopped broker and print the damaged places. Nothing is changed.

    Exit 0 if it is undamaged, 5 if it is damaged, 6 if a broker has it open."""
    run(_check(directory, as_json))


@app.command("inspect")
def inspect_command(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A store directory, of lockstep or of Apache RocketMQ.")],
    as_json: JsonOption = False,
) -> None:
    """Read a store directory and print whose it is, what is in it, and what a start would do. Nothing is changed.

    Exit 0 if a broker would start on it (with --adopt, if the directory needs that), otherwise the exit code of the start."""
    run(_inspect(directory, as_json))


@app.command("export")
def export_command(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The broker's store directory.")],
    as_json: JsonOption = False,
) -> None:
    """Write topics, progress and delays of a stopped broker to config/*.json, so that Apache RocketMQ's broker can open the directory.

    The store must have been stopped in order. A later start of lockstep on the directory needs --adopt if RocketMQ's broker has run there.
    Exit 6 if a broker has it open."""
    run(_export(directory, as_json))


@app.command("restore")
def restore_command(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="The store directory with which the broker will be started.")],
    source: Annotated[
        str | None, typer.Option("--from", metavar="BACKUP", help="Copy this backup to DIR first, which must not exist or be empty.")
    ] = None,
) -> None:
    """Prepare a backup of a store for its first start, when the original is lost.

    What the original has stored and given out after the backup is gone. So the first start from DIR raises every generation and ends every
    grant: consumers that are ahead continue from the backup's progress, and are told (QueueGap). Nameservers accept it although they have
    accepted later starts of the original, and refuse the original from then on: do not start that again.

    The backup is only read. It must not contain symbolic links: what they name is not part of it. Exit 6 if a broker has one of the
    directories open.
    """
    run(_restore(directory, source))


async def _restore(directory: str, source: str | None) -> None:
    from lockstep.broker.store import StoreCorruptError, StoreInUseError
    from lockstep.cli.store_restore import restore

    def progress(copied: int, total: int) -> None:
        print(f"copied {copied >> 20} of {total >> 20} MiB", file=sys.stderr, flush=True)

    try:
        identity = restore(directory, source, progress)
    except StoreInUseError as error:
        print_error(error)
        raise typer.Exit(error.exit_code) from None
    except StoreCorruptError as error:
        raise OperationError(str(error)) from None
    name = identity.broker_name
    print_line(
        f"{directory} is a restored backup of broker {name}: check it with `lockstep store check {directory}`, and start it with "
        f"`lockstep broker --name {name} --store {directory}`. The original must stay stopped"
    )


def _print_progress(line: Callable[..., str]) -> Callable[..., None]:
    """Return a callback that prints a line of its arguments each time that the first one, a position, has risen by PROGRESS_BYTES."""
    printed = 0

    def progress(position: int, *rest: int) -> None:
        nonlocal printed
        if position - printed >= PROGRESS_BYTES:
            printed = position
            print(line(position, *rest), file=sys.stderr, flush=True)

    return progress


@contextmanager
def _exit_if_in_use() -> Iterator[None]:
    """End the command with the exit code of a start if a broker has the store open."""
    from lockstep.broker.store import StoreInUseError

    try:
        yield
    except StoreInUseError as error:
        print_error(error)
        raise typer.Exit(error.exit_code) from None


async def _inspect(directory: str, as_json: bool) -> None:
    from lockstep.broker.offline.inspect_store import inspect_store
    from lockstep.runtime.files import ReadOnlyFiles

    with _exit_if_in_use():
        found = await inspect_store(ReadOnlyFiles(), directory, _print_progress(lambda position: f"read up to log position {position}"))
    if as_json:
        print_json(asdict(found))
    else:
        owner = {"both": "lockstep, and RocketMQ's broker has run on it since", "rocketmq": "Apache RocketMQ"}.get(found.owner, found.owner)
        broker = f" (broker {found.broker or 'unknown'} of {found.cluster or 'unknown'})" if found.broker or found.cluster else ""
        print_line(f"store of: {owner}{broker}")
        print_line(f"log: {found.log_files} files of {found.log_file_bytes} bytes, {found.records} records")
        print_line(f"log positions: {found.log_start} to {found.log_end}")
        if found.records:
            print_line(f"oldest record: {format_time(found.oldest_ms)} (a broker removes files by --retention-hours, 72 by default)")
        print_line(f"config files: {', '.join(found.config_files) or 'none'}")
        if found.topics:
            rows = [(each.topic, each.queues, each.messages, "yes" if each.known else "no") for each in found.topics]
            print_table(["topic", "queues with messages", "messages", "readable"], rows)
        if found.groups:
            print_table(
                ["group", "topic", "queues", "behind"], [(each.group, each.topic, each.queues, each.behind) for each in found.groups]
            )
        print_line(f"delayed messages that wait: {found.delayed_messages}")
        for each in found.unfinished:
            print_line(f"not continued here ({each.kind}): {each.what}")
        print_line(f"a start: {found.start}")
    if found.exit_code:
        raise typer.Exit(found.exit_code)


async def _export(directory: str, as_json: bool) -> None:
    from lockstep.broker.rocketmq_store.export import export_store
    from lockstep.protocol.errors import StoreError
    from lockstep.runtime.host import Host

    try:
        with _exit_if_in_use():
            found = await export_store(Host.real(), directory)
    except StoreError as error:
        raise OperationError(str(error)) from None
    if as_json:
        print_json(asdict(found))
        return
    print_line(
        f"wrote {directory}/config: {found.topics} topics, progress of {found.groups} groups in {found.queues} queues, "
        f"{found.delayed_messages} delayed messages wait"
    )
    print_line("RocketMQ's broker opens the directory with these settings in its file:")
    for name, value in found.settings.items():
        print_line(f"{name}={value}")


async def _check(directory: str, as_json: bool) -> None:
    # Only this command needs the broker's code.
    from lockstep.broker.offline.closed_state import closed_state
    from lockstep.broker.store.health.check import check_store
    from lockstep.runtime.files import ReadOnlyFiles

    with _exit_if_in_use():
        report = await check_store(
            ReadOnlyFiles(), directory, _print_progress(lambda position, end: f"read {position} of at most {end} bytes"), closed_state
        )
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

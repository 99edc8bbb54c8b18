"""lockstep why."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleDimensions
from rich.text import Text

from lockstep.cli import live
from lockstep.cli.options import DEFAULT_CLUSTER, GroupArgument, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line
from lockstep.cli.reporter import admin_client
from lockstep.operations.admin_client import AdminClient, failure_summary
from lockstep.operations.errors import raise_if_incomplete
from lockstep.operations.explain.why_query import Diagnosis, diagnosis_json
from lockstep.operations.explain.why_question import Examine, ask
from lockstep.operations.explain.why_text import answer_of, diagnosis_lines
from lockstep.operations.text import format_time, json_text, without_durations
from lockstep.protocol.errors import LockstepError
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.logs.safe_text import printable

app = typer.Typer(add_completion=False)


@app.command("why")
def why_command(
    group: GroupArgument,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPIC[@BROKER]:QUEUE | MSGID]",
            help="A queue (orders:3, or orders@broker-a:3), or the id of a message. By default all queues of the group.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The queue of this sharding key.")] = None,
    topic: Annotated[
        str | None, typer.Option("--topic", help="The topic of --key, if the group subscribes to several; or all queues of one topic.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Examine again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.5, max=60, help="Seconds between two examinations, with --watch.")
    ] = 2.0,
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    as_json: JsonOption = False,
) -> None:
    """Explain why a group makes no progress: the cause first, then what adds to it, then the next step.

    The facts come from the brokers, which are looked at twice a second apart, and from the member that holds the queue, which its broker
    asks: what its listener is doing, and where. A member that does not respond within 3 s is itself the finding.

    With --watch, a terminal is redrawn. Other output gets the answer with its time whenever it has changed, apart from ages, rates and
    the numbers of messages that wait; with --json, every answer on a line of its own.

    Exit 0 if every queue moves, has nothing to do, or is explained; otherwise 1. With --watch, the last answer counts.
    """
    run(_why(group, target, key, topic, nameserver, as_json, interval if watch else None))


async def _why(
    group: str,
    target: str | None,
    key: str | None,
    topic: str | None,
    nameserver: ClusterAddress,
    as_json: bool,
    interval_s: float | None = None,
) -> None:
    """Examine once, or every `interval_s` seconds."""
    admin = admin_client(nameserver)
    async with admin.keep_connections():
        examine = await ask(admin, group, target, key, topic)
        found = await examine()
    if interval_s is not None:
        await _Watch(admin, group, examine, found).show(interval_s, as_json)
        return
    if as_json:
        print_json(diagnosis_json(group, found))
    else:
        for line in diagnosis_lines(group, found):
            print_line(line)
    raise_if_incomplete(found.failed)
    if not found.explained:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Examination:
    """The result of one examination of several."""

    group: str
    at_ms: int
    """When it ended, by the wall clock."""
    found: Diagnosis
    """The last one that there is."""
    error: str | None = None
    """Why there is no newer one."""

    @property
    def exit_code(self) -> int:
        return 0 if self.error is None and not self.found.failed and self.found.explained else 1

    @property
    def answer(self) -> object:
        """Return the part of the result that must differ for it to be printed again."""
        return answer_of(self.found) if self.error is None else without_durations(self.error)

    def as_json(self) -> dict[str, Any]:
        time = {"time": format_time(self.at_ms), "error": self.error}
        return time | ({"group": self.group} if self.error is not None else diagnosis_json(self.group, self.found))

    def lines(self) -> Iterator[str]:
        """Yield the lines of a block in a file: the time, and what is known now."""
        yield format_time(self.at_ms)
        if self.error is not None:
            yield f"not known: {self.error}"
            return
        yield from diagnosis_lines(self.group, self.found)
        if (incomplete := failure_summary(self.found.failed)) is not None:
            yield incomplete

    def screen(self, interval_s: float, size: ConsoleDimensions) -> Text:
        """Return the screen of a terminal: the age of the result, then the result, as far as there is room."""
        every = f"every {interval_s:g} s; Ctrl-C ends it"
        note = failure_summary(self.found.failed) if self.error is None else f"this answer is old: {self.error}"
        head = Text(printable(f"{format_time(self.at_ms)}  {every if note is None else f'{note}; {every}'}"), style="dim")
        body = [Text(printable(line)) for line in diagnosis_lines(self.group, self.found)]
        lines = [part for text in (head, *body) for part in text.wrap(Console(), size.width)]
        if (left := len(lines) - size.height) > 0:
            lines[size.height - 1 :] = [Text(f"… {left + 1} more lines", style="dim")]
        return Text("\n").join(lines)


class _Watch:
    """Examines again and again. An examination that fails is printed, and does not end it."""

    def __init__(self, admin: AdminClient, group: str, examine: Examine, first: Diagnosis) -> None:
        self._admin = admin
        self._examine = examine
        self._last = Examination(group, admin.host.clock.wall_ms(), first)

    async def show(self, interval_s: float, as_json: bool) -> None:
        """Show each examination until it is interrupted, then exit as the last one says."""
        try:
            if as_json:
                async for each in self._examinations(interval_s):
                    print(json_text(each.as_json()), flush=True)
            elif sys.stdout.isatty():
                await live.show(self._screens(interval_s))
            else:
                await self._print_changes(interval_s)
        except asyncio.CancelledError:
            raise typer.Exit(self._last.exit_code) from None

    async def _examinations(self, interval_s: float) -> AsyncIterator[Examination]:
        while True:
            yield self._last
            await asyncio.sleep(interval_s)
            found, error = self._last.found, None
            try:
                async with self._admin.keep_connections():  # of this examination: a broker that was away is dialled again
                    found = await self._examine()
            except (LockstepError, OSError) as failed:
                error = " ".join(str(failed).split()) or type(failed).__name__
            self._last = Examination(self._last.group, self._admin.host.clock.wall_ms(), found, error)

    async def _screens(self, interval_s: float) -> AsyncIterator[live.Screen]:
        async for each in self._examinations(interval_s):
            yield partial(each.screen, interval_s)

    async def _print_changes(self, interval_s: float) -> None:
        answer: object = None
        async for each in self._examinations(interval_s):
            if each.answer != answer:
                answer = each.answer
                print("\n".join(map(printable, each.lines())), end="\n\n", flush=True)

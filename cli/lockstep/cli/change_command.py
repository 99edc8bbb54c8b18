"""Commands from declared changes: their options and help, `--dry-run`, `--json`, and the output (operations/changes/operation.py)."""

import inspect
import os
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.changes.operation import Declared, Operation, Option, Plan
from lockstep.operations.errors import OperationError
from lockstep.runtime.connections.cluster_address import ClusterAddress

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print what would change and change nothing.")]
UNDO_SHOWN = 32
"""Commands to undo a change that are printed; --json has them all."""


def add_changes(app: typer.Typer, changes: Iterable[type[Operation]]) -> None:
    """Add the command of each change under the last of its words."""
    for change in changes:
        app.command(change.words[-1])(command_of(change))


def command_of(change: type[Operation]) -> Callable[..., None]:
    """Return the function of the command, as typer takes it."""
    declared = list(change.declared())

    def command(*, nameserver: ClusterAddress, as_json: bool, dry_run: bool, **given: Any) -> None:
        operation = change(**{each.name: _value(each, given[each.name]) for each in declared})
        run(carry_out(operation, nameserver, as_json=as_json, dry_run=dry_run))

    shared = [("dry_run", DryRunOption, False), ("nameserver", NameserverOption, DEFAULT_CLUSTER), ("as_json", JsonOption, False)]
    parameters = [_parameter(each) for each in declared]
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value) for name, kind, value in shared]
    command.__doc__ = change.__doc__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(declared: Declared) -> inspect.Parameter:
    parameter, kind = declared.parameter, declared.type
    if declared.several:
        kind = list[str] if declared.required else list[str] | None
    elif kind is bytes:
        kind = str
    if isinstance(parameter, Option):
        info = typer.Option(*parameter.flags, help=parameter.help, metavar=parameter.metavar, min=parameter.least, max=parameter.most)
    else:
        info = typer.Argument(help=parameter.help, metavar=parameter.metavar, min=parameter.least, max=parameter.most)
    default = inspect.Parameter.empty if declared.required else None if declared.several else declared.default
    return inspect.Parameter(declared.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, info], default=default)


def _value(declared: Declared, given: Any) -> Any:
    if declared.several:
        return tuple(given or ())
    if declared.type is bytes:
        return sys.stdin.buffer.read() if given == "-" else os.fsencode(given)
    return given


async def carry_out(operation: Operation, nameserver: ClusterAddress, *, as_json: bool = False, dry_run: bool = False) -> None:
    """Plan the change, carry it out and print it, or with `dry_run` print what it would do."""
    plan = await operation.plan(admin_client(nameserver))
    await finish(plan, as_json=as_json, dry_run=dry_run)


async def finish(plan: Plan, *, as_json: bool, dry_run: bool) -> None:
    """Carry a plan out and print the outcome, or with `dry_run` print the plan. Raise OperationError if a part of it was not done."""
    if dry_run:
        _print_plan(plan, as_json=as_json)
        return
    outcome = await plan.carry_out()
    if as_json:
        print_json(outcome.json)
    else:
        if outcome.table is not None:
            print_table(outcome.table.columns, outcome.table.rows)
        for line in outcome.lines:
            print_line(line)
        for command in outcome.undo[:UNDO_SHOWN]:
            print_line(f"undo: {command}")
        if len(outcome.undo) > UNDO_SHOWN:
            print_line(f"undo: {len(outcome.undo) - UNDO_SHOWN} more commands, by the old offsets above")
    if outcome.failed is not None:
        raise OperationError(outcome.failed)


def _print_plan(plan: Plan, *, as_json: bool) -> None:
    if as_json:
        print_json({"done": False, "effect": list(plan.effect)} if plan.json is None else plan.json)
    else:
        if plan.table is not None:
            print_table(plan.table.columns, plan.table.rows)
        for sentence in [plan.nothing] if plan.nothing is not None else plan.effect:
            print_line(sentence)
        print_line("nothing was changed (--dry-run)")
    if plan.incomplete is not None:
        raise OperationError(plan.incomplete)

"""lockstep doctor."""

from typing import Annotated

import typer

from lockstep.cli.options import DEFAULT_CLUSTER, JsonOption, NameserverOption, run
from lockstep.cli.render import print_json, print_line, print_table
from lockstep.cli.reporter import admin_client
from lockstep.operations.brokers.diagnosis import Finding, findings_json
from lockstep.operations.brokers.doctor_query import examine
from lockstep.runtime.connections.cluster_address import ClusterAddress
from lockstep.runtime.security.users import read_users

app = typer.Typer(add_completion=False)


@app.command("doctor")
def doctor_command(
    nameserver: NameserverOption = DEFAULT_CLUSTER,
    security: Annotated[str | None, typer.Option(metavar="FILE", help="A file of users to check too.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the cluster from this machine: nameservers, addresses, clocks, disks, broker names, copies of logs and their
    registers, group members, certificates, users.

    Each problem is printed with the next step. Exit 1 if there is any."""
    run(_doctor(nameserver, security, as_json))


async def _doctor(nameserver: ClusterAddress, security: str | None, as_json: bool) -> None:
    users = None if security is None else (security, read_users(security))
    findings = await examine(admin_client(nameserver), users)
    problems = [finding for finding in findings if finding.problem is not None]
    if as_json:
        print_json(findings_json(findings))
    else:
        print_table(["check", "where", "result", "what to do"], [_row(finding) for finding in findings])
        print_line(f"checks: {len(findings)}, problems: {len(problems)}")
    if problems:
        raise typer.Exit(1)


def _row(finding: Finding) -> tuple[object, ...]:
    return finding.check, finding.where, finding.problem or "ok", finding.step or None

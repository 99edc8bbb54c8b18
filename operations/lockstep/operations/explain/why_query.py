"""Collect what `lockstep why` explains: two looks at the group at its brokers, and one question to the members that matter."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from typing import Any

from lockstep.operations.admin_client import AdminClient, by_name, gather_results
from lockstep.operations.brokers.replica_query import find_unserved
from lockstep.operations.errors import OperationError
from lockstep.operations.explain.why import Explanation, Facts, MemberReport, QueueState, asked_member, explain, has_progress, state_of
from lockstep.operations.explain.why_filter import find_unmatched
from lockstep.operations.groups.group_query import read_group, unknown_group
from lockstep.operations.groups.group_report import GroupReport, QueueLine
from lockstep.operations.groups.parked import Parked, list_parked
from lockstep.protocol.bodies import BrokerAddress, BrokerStatus
from lockstep.protocol.errors import LockstepError, MemberTimeoutError, SystemBusyError
from lockstep.protocol.headers.tools import RunningInfoHeader
from lockstep.protocol.topics.queue import MessageQueue

LOOKS_APART_MS = 1_000
"""The time between the two looks: ten times what a commit of a running consumer takes."""
ASKED_MAX = 16
"""Queues about which members are asked. Those that are stalled come first."""
BUSY_MS_MAX = 3_500
"""For how long a question is repeated to a member that others ask: somewhat longer than a question to a silent member takes."""
BUSY_PAUSE_MS = 50


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why the queues of a group move or not."""

    explanations: tuple[Explanation, ...]
    """Of the queues that were examined in detail: those that are stalled come first."""
    states: Mapping[MessageQueue, QueueState]
    """Of all queues."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Broker → why its request failed."""
    note: str | None = None
    """The message or key in question, as far as it is known."""

    @property
    def explained(self) -> bool:
        """Return whether it is known of every queue why it does not move, or it need not be."""
        return all(each.explained for each in self.explanations)


def diagnosis_json(group: str, found: Diagnosis) -> dict[str, Any]:
    """Return what `lockstep why --json` prints."""
    queues = [{**asdict(each), "state": each.state.value, "facts": facts_json(each.facts)} for each in found.explanations]
    counts = Counter(state.value for state in found.states.values())
    return {"group": group, "note": found.note, "queues": queues, "counts": dict(counts), "failed": dict(found.failed)}


def facts_json(facts: Facts | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {**asdict(facts), "parked": [{**asdict(row), "state": row.state.value} for row in facts.parked]}


async def diagnose(admin: AdminClient, group: str, wanted: Callable[[QueueLine], bool]) -> Diagnosis:
    """Look at the group twice, a third time if a member could not be asked, and explain its `wanted` queues.

    Raise TransportError if no nameserver responds, UnknownGroupError if no broker knows the group, and OperationError if none responds.
    """
    async with admin.keep_connections():
        first, first_results = await read_group(admin, group)
        if first is None:
            raise await _unknown(admin, group, first_results.failed)
        clock = admin.host.clock
        began_ms = clock.monotonic_ms()
        await asyncio.sleep(LOOKS_APART_MS / 1000)
        second, results = await read_group(admin, group)
        between_ms = clock.monotonic_ms() - began_ms
        if second is None:
            raise await _unknown(admin, group, results.failed)
        brokers = by_name(await admin.brokers())
        earlier = {line.queue: line for line in first.queues if has_progress(line)}
        lines = [line for line in second.queues if wanted(line)]
        states = {line.queue: state_of(line, earlier.get(line.queue)) for line in lines}
        chosen = _choose(lines, states)
        answers = await _ask(admin, second, chosen, brokers, states)
        members = await _ask_all(admin, second, chosen, brokers) if second.broadcasting else {}
        if any(answer.failed is not None for answer in (*answers.values(), *members.values())):
            # A member that could not be asked may have lost its connection since the second look.
            third, newest = await read_group(admin, group)
            if third is not None:
                second, results, between_ms = third, newest, clock.monotonic_ms() - began_ms
                newer = {line.queue: line for line in third.queues}
                chosen = [newer[line.queue] for line in chosen if line.queue in newer]
                states |= {line.queue: state_of(line, earlier.get(line.queue)) for line in chosen}
        parked, statuses, unmatched = await asyncio.gather(
            _parked(admin, group, chosen), _statuses(admin, chosen, brokers), find_unmatched(admin, results.values, chosen, brokers)
        )
        unserved = await find_unserved(admin, brokers.values(), results.failed)
    explanations = [
        explain(
            second,
            Facts(
                line=line,
                before=earlier.get(line.queue),
                between_ms=between_ms,
                granted=second.grants.get(line.broker, 0) - first.grants.get(line.broker, second.grants.get(line.broker, 0)),
                info=answers[line.queue].info,
                silent=answers[line.queue].silent,
                no_info=answers[line.queue].failed,
                members=members,
                parked=tuple(each.row for each in parked if each.queue == line.queue),
                unmatched=unmatched.get(line.queue),
                unserved=unserved.get(line.broker),
                disk_refusal=statuses[line.broker].disk_refusal if line.broker in statuses else None,
            ),
        )
        for line in chosen
    ]
    missed = {name: f"it did not respond to the first of two looks: {why}" for name, why in first_results.failed.items()}
    return Diagnosis(tuple(explanations), states, {**missed, **results.failed})


async def _unknown(admin: AdminClient, group: str, failed: Mapping[str, str]) -> OperationError:
    """Return the error for a group that no broker has reported, some because they do not serve."""
    unserved = await find_unserved(admin, await admin.brokers(), failed)
    return unknown_group(group, {**failed, **{name: f"{finding.problem}. Next: {finding.step}" for name, finding in unserved.items()}})


def _choose(lines: Sequence[QueueLine], states: Mapping[MessageQueue, QueueState]) -> list[QueueLine]:
    """Return the queues that are examined in detail: those that are stalled come first, and of these those without a commit for the
    longest time. Of the others those with parked keys are added."""
    urgency = [QueueState.STALLED, QueueState.UNKNOWN, QueueState.PROGRESSING, QueueState.LEFT, QueueState.IDLE]

    def rank(line: QueueLine) -> tuple[int, float]:
        return urgency.index(states[line.queue]), -inf if line.committed_ago_ms is None else -line.committed_ago_ms

    ordered = sorted(lines, key=rank)
    return ordered[:ASKED_MAX] + [line for line in ordered[ASKED_MAX:] if line.parked][:ASKED_MAX]


async def _ask(
    admin: AdminClient,
    report: GroupReport,
    lines: Sequence[QueueLine],
    brokers: Mapping[str, BrokerAddress],
    states: Mapping[MessageQueue, QueueState],
) -> dict[MessageQueue, MemberReport]:
    """Ask the member of each stalled queue. A member is asked about one queue after another, and about no further one if it is
    silent."""
    by_member: dict[tuple[str, str], list[QueueLine]] = {}
    answers: dict[MessageQueue, MemberReport] = {}
    for line in lines:
        member = asked_member(report, line) if states[line.queue] is QueueState.STALLED else None
        if member is None or line.broker not in brokers:
            answers[line.queue] = MemberReport()
        else:
            by_member.setdefault((member, line.broker), []).append(line)

    async def ask(member: str, queues: Sequence[QueueLine]) -> None:
        answer = MemberReport()
        for line in queues:
            if not answer.silent:
                header = RunningInfoHeader(report.group, member, True, line.topic, line.queue_id)
                answer = await _answer(admin, brokers[line.broker], header)
            answers[line.queue] = answer

    await asyncio.gather(*(ask(member, queues) for (member, _), queues in by_member.items()))
    return answers


async def _ask_all(
    admin: AdminClient, report: GroupReport, lines: Sequence[QueueLine], brokers: Mapping[str, BrokerAddress]
) -> dict[str, MemberReport]:
    """Ask the first members of a broadcasting group, each of which consumes every queue, about the call that has run longest."""
    reached = [brokers[name] for name in dict.fromkeys(line.broker for line in lines if line.reached) if name in brokers]
    asked: dict[str, BrokerAddress] = {}
    for member in report.members:
        broker = next((each for each in reached if each.name not in member.missing_at), None)
        if member.session is not None and broker is not None and len(asked) < ASKED_MAX:
            asked[member.client_id] = broker
    answers = await asyncio.gather(*(_answer(admin, at, RunningInfoHeader(report.group, name, True)) for name, at in asked.items()))
    return dict(zip(asked, answers, strict=True))


async def _answer(admin: AdminClient, broker: BrokerAddress, header: RunningInfoHeader) -> MemberReport:
    """Ask a member. One that other operators ask is asked again until it is free: it responds to them at once, or the question ends in 3 s.

    If it is never free for longer than that, each of their questions waits in vain, as this one would.
    """
    clock = admin.host.clock
    give_up_ms = clock.monotonic_ms() + BUSY_MS_MAX
    while True:
        try:
            return MemberReport(info=await admin.running_info(broker, header))
        except MemberTimeoutError:
            return MemberReport(silent=True)
        except SystemBusyError:
            if clock.monotonic_ms() >= give_up_ms:
                return MemberReport(silent=True)
        except LockstepError as error:
            return MemberReport(failed=" ".join(str(error).split()))
        await asyncio.sleep(BUSY_PAUSE_MS / 1000)


async def _parked(admin: AdminClient, group: str, lines: Sequence[QueueLine]) -> Sequence[Parked]:
    """Return the group's parked keys, if any of the queues has some."""
    return (await list_parked(admin, group)).keys if any(line.parked for line in lines) else ()


async def _statuses(admin: AdminClient, lines: Sequence[QueueLine], brokers: Mapping[str, BrokerAddress]) -> Mapping[str, BrokerStatus]:
    names = dict.fromkeys(line.broker for line in lines if line.reached and line.broker in brokers)
    return (await gather_results({name: admin.broker_status(brokers[name]) for name in names})).values

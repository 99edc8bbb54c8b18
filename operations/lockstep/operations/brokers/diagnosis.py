"""Turn what `lockstep doctor` observed of a cluster into findings, each with the next step. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.operations.groups.group_report import GroupReport
from lockstep.protocol.bodies import BrokerAddress, BrokerStatus, GroupStatusReply, HalfRow
from lockstep.protocol.codes import ResponseCode

CLOCK_MS_MAX = 2_000
"""Store times that are off by more mislead operators, resets by time and start policies by time; nothing else depends on the clock."""
DESCRIPTORS_MIN = 4_096
"""A lower limit leaves room for fewer than 3,328 connections."""
FREE_PERCENT_MIN = 10
"""Free space below this is a finding, long before sends are refused."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `problem` is None if the check passed."""

    check: str
    where: str
    problem: str | None = None
    step: str = ""
    """The operator's next step."""


def findings_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what `lockstep doctor --json` prints."""
    healthy = all(finding.problem is None for finding in findings)
    return {"healthy": healthy, "findings": [asdict(finding) for finding in findings]}


START = "start it, or read its log: the events `registration.…` contain the reason."


def check_nameserver(address: str, brokers: tuple[BrokerAddress, ...] | None, reason: str = "") -> Finding:
    """Check one nameserver. `brokers`: the brokers it knows, or None if it did not respond, for `reason`."""
    if brokers is None and any(word in reason for word in ("UNAUTHENTICATED", "NO_PERMISSION", "TLS", "certificate")):
        step = "correct the user, the password or the settings of TLS of --nameserver (docs/security.md, Errors)"
        return Finding("nameserver", address, f"can't be used with these settings: {reason}", step)
    if brokers is None:
        step = f"start one there (`lockstep nameserver --listen {address}`), or pass another --nameserver"
        return Finding("nameserver", address, f"does not respond: {reason}", step)
    if not any(broker.registered for broker in brokers):
        return Finding("nameserver", address, "knows no registered broker", "start a broker with --nameserver " + address)
    return Finding("nameserver", address)


def check_agreement(brokers_by_nameserver: Mapping[str, tuple[BrokerAddress, ...]]) -> list[Finding]:
    """Find names that nameservers list with different terms or addresses: two brokers have registered under such a name."""
    seen: dict[str, dict[str, list[str]]] = {}
    for address, brokers in brokers_by_nameserver.items():
        for broker in brokers:
            if broker.registered:
                seen.setdefault(broker.name, {}).setdefault(f"{broker.address} term {broker.term}", []).append(address)
    return [
        Finding(
            "unique broker name",
            name,
            "two brokers: " + "; ".join(f"{broker} at nameserver {', '.join(at)}" for broker, at in versions.items()),
            "stop the wrong one, or give it a name and a store of its own",
        )
        for name, versions in sorted(seen.items())
        if len(versions) > 1
    ]


def check_broker(
    address: BrokerAddress, status: BrokerStatus | None, reason: str, now_ms: int, took_ms: int, topic_count: int
) -> list[Finding]:
    """Run every check of one broker. `status` is None if it did not respond at its advertised address, for `reason`.

    `took_ms`: how long the request took, by which the broker's clock may seem to be off. `topic_count`: of how many topics it has queues;
    one that is not registered and has none was drained or removed, which is no problem.
    """
    where = f"{address.name} {address.address}"
    if not address.registered and not topic_count:
        return [Finding("broker gone", where)]
    if not address.registered:
        problem = f"is not registered now, and {topic_count} topics have queues there"
        return [Finding("broker registered", where, problem, f"{START} {_removal(address.name)}")]
    if status is None and reason.startswith(ResponseCode.NO_PERMISSION.name):
        return [
            Finding("broker reached", where, f"does not tell its status: {reason}", "use a user who may Get cluster, as the role viewer")
        ]
    if status is None:
        step = "start the broker with --advertise [NAME=]HOST:PORT that can be dialled from here, or use another listener of the nameserver"
        return [Finding("broker reached", where, f"can't be reached from here: {reason}", step)]
    if status.broker_name != address.name:
        step = "give each broker an --advertise of its own"
        return [Finding("broker reached", where, f"{status.broker_name} responds there: two brokers advertise one address", step)]
    return [
        Finding("broker reached", where),
        _clock(where, status, now_ms, took_ms),
        _disk(where, status),
        _descriptors(where, status),
        _damage(where, status),
        _deletions(where, status),
        _held_log(where, status),
        *_timers(where, status),
        *_registrations(where, status),
    ]


def check_unknown_broker(name: str, topic_count: int) -> Finding:
    """Return the finding for a broker that layouts name and no nameserver knows."""
    problem = f"no nameserver knows its address, and {topic_count} topics have queues there"
    return Finding("broker registered", name, problem, f"{START} {_removal(name)}")


def check_transactions(halves: Iterable[HalfRow]) -> list[Finding]:
    """Find half messages about which no producer is asked any more. `halves`: those that are too old."""
    counts = Counter((half.topic, half.producer_group) for half in halves)
    step = "look into the producers' database, then `lockstep tx ls --expired`, `lockstep tx commit` and `lockstep tx rollback`"
    return [
        Finding(
            "transactions decided", topic, f"{count} messages of transactions of producer group {group} are too old to be asked about", step
        )
        for (topic, group), count in sorted(counts.items())
    ]


def _removal(name: str) -> str:
    return f"If it is lost for good: `lockstep replica promote` if it has a replica, else `lockstep broker remove {name}`"


def _clock(where: str, status: BrokerStatus, now_ms: int, took_ms: int) -> Finding:
    apart_ms = status.wall_ms - now_ms
    if abs(apart_ms) <= CLOCK_MS_MAX + took_ms:
        return Finding("clock", where)
    ahead = "ahead of" if apart_ms > 0 else "behind"
    problem = f"its clock is {abs(apart_ms) / 1000:.1f} s {ahead} this machine's"
    return Finding("clock", where, problem, "synchronize both with a time server (NTP)")


def _disk(where: str, status: BrokerStatus) -> Finding:
    free, total, reserve = status.disk_free_bytes, status.disk_total_bytes, status.disk_reserve_bytes
    space = f"{_mib(free)} free of {_mib(total)}"
    if status.disk_refusal is not None or free < reserve:
        step = "free some space, or let retention remove more; sends then resume without a restart"
        why = status.disk_refusal or f"{space}, {_mib(reserve)} are reserved"
        return Finding("store writable", where, f"sends are refused: {why}", step)
    if free * 100 < total * FREE_PERCENT_MIN:
        step = f"free some space: sends are refused below {_mib(reserve)}"
        return Finding("store writable", where, f"the disk is nearly full: {space}", step)
    return Finding("store writable", where)


def _descriptors(where: str, status: BrokerStatus) -> Finding:
    limit = status.descriptor_limit
    if limit >= DESCRIPTORS_MIN:
        return Finding("file descriptors", where)
    problem = f"its limit of {limit} file descriptors leaves room for few connections"
    return Finding("file descriptors", where, problem, f"start it with a limit of {DESCRIPTORS_MIN} or more (ulimit -n, LimitNOFILE)")


def _damage(where: str, status: BrokerStatus) -> Finding:
    if not status.damaged_messages and not status.damaged_bytes:
        return Finding("store whole", where)
    problem = f"damage of the log has destroyed {status.damaged_messages} messages; {status.damaged_bytes} bytes are unreadable"
    step = "find the damaged places in the broker's log (`store.damaged`), check the disk, and see docs/operations.md, Damage and repair"
    return Finding("store whole", where, problem, step)


def _deletions(where: str, status: BrokerStatus) -> Finding:
    count, limit = status.topics_deleted, status.topics_deleted_max
    if count * 2 < limit:
        return Finding("deleted topics", where)
    problem = f"it remembers {count} deleted topics; from {limit} on, topics with new names can't be created"
    step = "use the same names again, or see `lockstep topic forget-deleted` (docs/operations.md, Limits of topics)"
    return Finding("deleted topics", where, problem, step)


def _held_log(where: str, status: BrokerStatus) -> Finding:
    if status.held_log is None:
        return Finding("old files removed", where)
    problem = f"old files of its log are not removed: {status.held_log}"
    return Finding("old files removed", where, problem, "free some space: it tries again every 10 s (`waiting.not_carried` in its log)")


def _timers(where: str, status: BrokerStatus) -> Iterable[Finding]:
    """Find messages that are due and can't be delivered now."""
    if not status.deferred_timers:
        yield Finding("timers delivered", where)
    for topic, count in sorted(status.deferred_timers.items()):
        if topic:
            problem = f"{count} messages to topic {topic} are due and can't be delivered now: they are tried again each second"
            step = (
                f"find `delay.refused` in the broker's log, which says why: the writes of {topic} are held while its queues are moved, the "
                f"disk is full, or there are too many topics. `lockstep timer ls {topic}` lists them"
            )
        else:
            problem = f"{count} messages are due and can't be read: they are tried again each second"
            step = (
                "find `timer.unreadable` or `timer.failed` in the broker's log, and check its disk (docs/operations.md, Damage and repair)"
            )
        yield Finding("timers delivered", where, problem, step)


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"


COPIES_STEP = "delete neither store; run only the one that clients have used last (docs/operations.md, One store, two copies)"


def _registrations(where: str, status: BrokerStatus) -> Iterable[Finding]:
    for each in status.nameservers:
        place = f"{where} at nameserver {each.address}"
        if each.standing == "refused":
            copies = "the same store" in each.remark
            step = COPIES_STEP if copies else "stop the other broker of that name, or give this one another name and a store of its own"
            yield Finding("unique broker name", place, f"was refused: {each.remark}", step)
        elif each.standing == "contested":
            step = "wait: the nameserver probes the broker that is registered under this name, and decides within seconds"
            yield Finding("unique broker name", place, f"is contested: {each.remark}", step)
        elif each.standing == "superseded":
            step = "wait: another copy of its log is the master, which this one learns from its register; check that it reaches that"
            yield Finding("unique broker name", place, f"was replaced: {each.remark}", step)
        elif each.standing != "accepted":
            step = "start that nameserver, or remove it from the broker's --nameserver"
            yield Finding("broker registered", place, f"is {each.standing}", step)
        else:
            yield Finding("broker registered", place)


def groups_to_check(replies: Mapping[str, GroupStatusReply]) -> list[str]:
    """Return the groups that `check_group` may find something about, sorted: those with members or settings at some broker.

    `replies`: broker name → its reply to a request for the summaries of all groups.
    """
    summaries = [each for reply in replies.values() for each in reply.summaries or ()]
    return sorted({each.group for each in summaries if each.members or each.has_settings})


def check_group(report: GroupReport) -> list[Finding]:
    """Find members that a broker does not list, which get none of its queues, and brokers that disagree about contract or settings."""
    found = [
        Finding(
            "members complete",
            f"{report.group} {member.client_id}",
            f"is missing at {', '.join(member.missing_at)}",
            "its machine must reach every broker's advertised address: run `lockstep doctor` there",
        )
        for member in report.members
        if member.missing_at
    ]
    found += [
        Finding("one contract", report.group, conflict, "stop the members with the older settings, then start them with the new ones")
        for conflict in report.conflicts
    ]
    step = f"run `{report.update_command}`: it gives every broker the settings of the first one that has any"
    found += [Finding("one contract", report.group, difference, step) for difference in report.unequal_settings]
    return found or ([Finding("members complete", report.group)] if report.members else [])

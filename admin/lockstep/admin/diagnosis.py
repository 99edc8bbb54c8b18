"""What may be wrong with a cluster. Pure: what was seen from here → findings, each with the next step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lockstep.admin.group_report import GroupReport
from lockstep.protocol.bodies import BrokerAddress, BrokerStatus

CLOCK_MS_MAX = 2_000
"""Store times that differ by more mislead operators, resets by time and start policies by time; nothing else depends on the clock."""
DESCRIPTORS_MIN = 4_096
"""Below it there is room for less than 3,328 connections."""
FREE_PERCENT_MIN = 10
"""Below it, somebody should look, long before sends are refused."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check. `problem` None: all is well."""

    check: str
    where: str
    problem: str | None = None
    step: str = ""
    """What to do about it."""


def nameserver(address: str, brokers: tuple[BrokerAddress, ...] | None, reason: str = "") -> Finding:
    """`brokers` None: it does not answer, for `reason`."""
    if brokers is None:
        step = f"start one there (`lockstep nameserver --listen {address}`), or say --nameserver"
        return Finding("nameserver", address, f"does not answer: {reason}", step)
    if not any(broker.registered for broker in brokers):
        return Finding("nameserver", address, "knows no registered broker", "start a broker with --nameserver " + address)
    return Finding("nameserver", address)


def disagreements(told: Mapping[str, tuple[BrokerAddress, ...]]) -> list[Finding]:
    """Nameserver → what it tells. Two that name one broker with different terms or addresses have heard two brokers."""
    seen: dict[str, dict[str, list[str]]] = {}
    for address, brokers in told.items():
        for broker in brokers:
            if broker.registered:
                seen.setdefault(broker.name, {}).setdefault(f"{broker.address} term {broker.term}", []).append(address)
    return [
        Finding(
            "one broker a name",
            name,
            "two brokers: " + "; ".join(f"{who} at nameserver {', '.join(at)}" for who, at in places.items()),
            "stop the wrong one, or give it a name and a store of its own",
        )
        for name, places in sorted(seen.items())
        if len(places) > 1
    ]


def broker(address: BrokerAddress, status: BrokerStatus | None, reason: str, now_ms: int, took_ms: int) -> list[Finding]:
    """Every check of one broker; `status` None: it does not answer at the address that is advertised to us, for `reason`."""
    where = f"{address.name} {address.address}"
    if not address.registered:
        return [Finding("broker registered", where, "is not registered now", "start it, or look at its log: `registration.…` says why")]
    if status is None:
        step = "start the broker with --advertise [NAME=]HOST:PORT that can be dialled from here, or ask another listener of the nameserver"
        return [Finding("broker reached", where, f"does not answer from here: {reason}", step)]
    if status.broker_name != address.name:
        step = "give each broker an --advertise of its own"
        return [Finding("broker reached", where, f"is answered by {status.broker_name}: two advertise one address", step)]
    return [
        Finding("broker reached", where),
        _clock(where, status, now_ms, took_ms),
        _disk(where, status),
        *_descriptors(where, status),
        _damage(where, status),
        *_deletions(where, status),
        *_standings(where, status),
    ]


def _clock(where: str, status: BrokerStatus, now_ms: int, took_ms: int) -> Finding:
    apart_ms = status.wall_ms - now_ms
    if abs(apart_ms) <= CLOCK_MS_MAX + took_ms:
        return Finding("clock", where)
    ahead = "ahead of" if apart_ms > 0 else "behind"
    return Finding("clock", where, f"its clock is {abs(apart_ms) / 1000:.1f} s {ahead} the one here", "let both follow a time server (NTP)")


def _disk(where: str, status: BrokerStatus) -> Finding:
    free, total, reserve = status.disk_free_bytes, status.disk_total_bytes, status.disk_reserve_bytes
    told = f"{_mib(free)} free of {_mib(total)}"
    if free < reserve:
        step = "free some space, or let retention remove more: sends resume by themselves"
        return Finding("store writable", where, f"sends are refused: {told}, {_mib(reserve)} are reserved", step)
    if free * 100 < total * FREE_PERCENT_MIN:
        return Finding(
            "store writable", where, f"the disk is nearly full: {told}", f"sends are refused below {_mib(reserve)}: free some space"
        )
    return Finding("store writable", where)


def _descriptors(where: str, status: BrokerStatus) -> Iterable[Finding]:
    limit = status.descriptor_limit
    if limit is None:
        return  # an older broker does not say
    if limit >= DESCRIPTORS_MIN:
        yield Finding("file descriptors", where)
        return
    problem = f"it may have {limit} file descriptors: room for few connections"
    yield Finding("file descriptors", where, problem, f"start it with a limit of {DESCRIPTORS_MIN} or more (ulimit -n, LimitNOFILE)")


def _damage(where: str, status: BrokerStatus) -> Finding:
    if not status.damaged_messages and not status.damaged_bytes:
        return Finding("store whole", where)
    what = f"{status.damaged_messages} messages are lost to damage of the log, {status.damaged_bytes} bytes of it are no records"
    step = "the broker's log names the places (`store.damaged`); look at the disk, and at docs/operations.md, Damage and repair"
    return Finding("store whole", where, what, step)


def _deletions(where: str, status: BrokerStatus) -> Iterable[Finding]:
    count, limit = status.topics_deleted, status.topics_deleted_max
    if not limit:
        return  # an older broker does not say
    if count * 2 < limit:
        yield Finding("deleted topics", where)
        return
    what = f"it remembers {count} deleted topics; with {limit} no topic of a new name is created"
    step = "use the same names again, or see `lockstep topic forget-deleted` (docs/operations.md, Limits of topics)"
    yield Finding("deleted topics", where, what, step)


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"


COPIES_STEP = "delete neither store; run only the one that clients have used last (docs/operations.md: one store, two copies)"


def _standings(where: str, status: BrokerStatus) -> Iterable[Finding]:
    for each in status.nameservers:
        what = f"{where} at nameserver {each.address}"
        if each.standing == "refused":
            copies = "the same store" in each.remark
            step = COPIES_STEP if copies else "stop the other broker of that name, or give this one another name and a store of its own"
            yield Finding("one broker a name", what, f"was refused: {each.remark}", step)
        elif each.standing == "contested":
            step = "wait: the nameserver asks the broker that is registered under this name, and decides within seconds"
            yield Finding("one broker a name", what, f"is contested: {each.remark}", step)
        elif each.standing != "accepted":
            yield Finding(
                "broker registered", what, f"is {each.standing}", "start that nameserver, or leave it out of the broker's --nameserver"
            )
        else:
            yield Finding("broker registered", what)


def group(report: GroupReport) -> list[Finding]:
    """A member that is missing at a broker gets none of its queues; brokers that disagree about a contract."""
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
    step = f"`{report.update_command}` gives all of them the settings of the first that has some"
    found += [Finding("one contract", report.group, unequal, step) for unequal in report.unequal_settings]
    return found or ([Finding("members complete", report.group)] if report.members else [])

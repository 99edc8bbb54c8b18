"""Why a queue of a consumer group does not move: from facts of its broker and of its member to the cause that explains it. Pure.

The causes are looked for in the order in which each makes the later ones irrelevant: whoever may not consume holds no queue, whoever holds
no queue calls no listener. The first one explains the queue; further ones may contribute.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from shlex import quote

from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.explain.why_filter import Unmatched
from lockstep.operations.groups.group_report import GroupReport, MemberLine, QueueLine, forget_command
from lockstep.operations.text import format_duration
from lockstep.protocol.bodies import ParkedKey, ParkState, RunningCall, RunningInfo, RunningQueue
from lockstep.protocol.done_ranges import count
from lockstep.protocol.topics.queue import MessageQueue

SETTLED_GRANTS_MAX = 2
"""Grants of one broker between two looks. More of them mean that queues are granted again and again."""
GROUP_WIDE = frozenset(
    {"consumption_disabled", "filter_matches_nothing", "member_missing", "member_refused", "not_settled", "sends_refused"}
)
"""Names of causes that concern more than their queue: each is reported once."""
TOLD_ALWAYS = GROUP_WIDE | {"messages_lost", "parked"}
"""Names of causes that are reported even if their queue needs no explanation."""
LOSS_TOLD_MS = 24 * 3_600_000
"""For how long lost messages are reported. `lockstep group show` reports them as long as they are known."""
PULL_SOON_MS = 1_000
"""A younger pull is still expected to get its response, and the next one to follow."""
LONG_CALL_MS = 5_000
"""The age from which a call of a broadcasting group's listener is reported: such a group has no progress that shows which call hangs."""
UNBLOCK = "look for a call that blocks the loop: `await` it, or declare the listener as a plain `def`, which runs in a thread"
ONE_MORE_CALL = "remove the cause, then restart the consumer or call consumer.resume(): each allows one more call"


class QueueState(Enum):
    """Whether a group makes progress in a queue."""

    IDLE = "idle"
    """No message waits that the group's subscription matches."""
    PROGRESSING = "progressing"
    """Its progress has risen between two looks."""
    STALLED = "stalled"
    """Its progress has not risen, or it is not known from where."""
    LEFT = "left"
    """The group has left the topic: no member consumes it."""
    UNKNOWN = "unknown"
    """Its broker could not be reached, or does not know the progress."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason why a queue does not move."""

    name: str
    """A word for programs."""
    text: str
    """A sentence without a full stop."""
    step: str | None = None
    """The next step of the operator."""
    stack: tuple[str, ...] = ()
    """Where the call of the listener is, the innermost place last."""


@dataclass(frozen=True, slots=True)
class MemberReport:
    """A member's report, or why there is none."""

    info: RunningInfo | None = None
    silent: bool = False
    """It has not responded in time."""
    failed: str | None = None
    """Why it was not asked, or refused to respond."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one queue of a group."""

    line: QueueLine
    """The queue now."""
    before: QueueLine | None = None
    """The queue at an earlier look that found its progress."""
    between_ms: int = 0
    """The time between the looks."""
    granted: int = 0
    """Grants of the group at the queue's broker between the looks."""
    info: RunningInfo | None = None
    """The report of the member that holds the queue or is to hold it."""
    silent: bool = False
    """That member has not responded in time."""
    no_info: str | None = None
    """Why it was not asked, or refused to respond."""
    members: Mapping[str, MemberReport] = field(default_factory=dict)
    """The reports of all members of a broadcasting group, each of which consumes the queue."""
    parked: tuple[ParkedKey, ...] = ()
    """The parked keys of the queue, or the one that was asked about."""
    disk_refusal: str | None = None
    """Why the broker refuses sends; None if it does not."""
    unmatched: Unmatched | None = None
    """The subscription of the queue's topic, if it matches none of the last messages."""
    unserved: Finding | None = None
    """Why no copy of the broker serves; None if one does, or none says."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a queue moves or not."""

    topic: str
    broker: str
    queue_id: int
    state: QueueState
    offset: int | None
    """The group's progress, or the first offset of a parked key; None if it is not known."""
    summary: str
    because: Cause | None
    also: tuple[Cause, ...]
    facts: Facts | None = None
    """From what it was found; None for a parked key, whose row says all."""

    @property
    def explained(self) -> bool:
        """Return whether it is known why the queue does not move, or it need not be."""
        return self.because is not None or self.state in (QueueState.IDLE, QueueState.PROGRESSING, QueueState.LEFT)


def asked_member(report: GroupReport, line: QueueLine) -> str | None:
    """Return the member that holds the queue, or to which the list gives it, if it is connected and can be asked; otherwise None."""
    for name in (line.owner, line.listed_owner):
        member = _member(report, name)
        if member is not None and member.session is not None and line.broker not in member.missing_at:
            return None if name == line.owner and line.owner_grace_ms is not None else name
    return None


def has_progress(line: QueueLine) -> bool:
    """Return whether a look at the queue has found its progress, so that a later one may be compared with it."""
    return line.reached and line.committed_offset is not None


def state_of(line: QueueLine, before: QueueLine | None) -> QueueState:
    """Return the state of a queue from two looks at it. `before`: None if the first one has not found its progress."""
    if line.left:
        return QueueState.LEFT
    if not line.reached or line.lag is None:
        return QueueState.UNKNOWN
    if line.lag == 0:
        return QueueState.IDLE
    return QueueState.PROGRESSING if before is not None and _finished(line) > _finished(before) else QueueState.STALLED


def explain(report: GroupReport, facts: Facts) -> Explanation:
    """Return why the queue does not move."""
    line = facts.line
    state = state_of(line, facts.before)
    if state is QueueState.STALLED and _only_filtered(facts):
        state = QueueState.IDLE
    causes = [*_unknown(report, facts)] if state is QueueState.UNKNOWN else [*_obstacles(report, facts)]
    if state in (QueueState.IDLE, QueueState.PROGRESSING):
        causes = []
    if state is QueueState.LEFT:
        causes = [_left(report, line)]
    remarks = tuple(_remarks(report, facts, state))
    summary = f"{line.queue} of group {report.group} {_summary(facts, state)}"
    because = causes[0] if causes else None
    return Explanation(
        line.topic, line.broker, line.queue_id, state, line.committed_offset, summary, because, (*causes[1:], *remarks), facts
    )


def _summary(facts: Facts, state: QueueState) -> str:
    line, waiting = facts.line, f"{facts.line.lag or 0:,} messages"
    match state:
        case QueueState.UNKNOWN:
            return "is not known" if not line.reached else "has no progress at the broker"
        case QueueState.IDLE:
            rest = f", except {line.lag:,} that its subscription does not match, which a commit will pass" if line.lag else ""
            return f"has nothing to do: all messages below offset {line.max_offset:,} are consumed{rest}"
        case QueueState.LEFT:
            behind = (line.max_offset or 0) - _finished(line)
            return f"is not consumed any more: the {behind:,} messages after offset {line.committed_offset or 0:,} don't count as its lag"
        case QueueState.PROGRESSING:
            done = _finished(line) - (0 if facts.before is None else _finished(facts.before))
            rate = done * 1000 / max(1, facts.between_ms)
            return f"is being consumed: {rate:,.0f} messages/s during the examination; {waiting} wait, {_gone(facts, rate)}"
        case QueueState.STALLED:
            since = "" if line.committed_ago_ms is None else f"; the last commit was {format_duration(line.committed_ago_ms)} ago"
            if facts.before is None:
                if line.committed_offset is None:
                    return f"has no offset yet: {waiting} wait"
                return f"is at offset {line.committed_offset:,}: {waiting} wait{since}; its offset a second earlier is not known"
            return f"is stalled at offset {line.committed_offset or 0:,}: {waiting} wait{since}"


def _gone(facts: Facts, rate: float) -> str:
    """Return when the lag will be gone, if the rates stay as they are."""
    before, line = facts.before, facts.line
    stored = 0 if before is None else (line.max_offset or 0) - (before.max_offset or 0)
    left = rate - stored * 1000 / max(1, facts.between_ms)
    if left <= 0:
        return "and as many or more arrive"
    return f"which are consumed in {format_duration(int((line.lag or 0) * 1000 / left))} at this rate"


def _only_filtered(facts: Facts) -> bool:
    """Return whether none of the messages that wait matches the subscription: a pull has passed over them, and the member has none."""
    line, queue = facts.line, None if facts.info is None else facts.info.queue
    if queue is None or queue.state != "held" or queue.fetched or queue.uncommitted or line.held_offset is None:
        return False  # the pull that is held may be that of an owner that was not asked
    return line.held_offset >= (line.max_offset or 0)


def _finished(line: QueueLine) -> int:
    return (line.committed_offset or 0) + count(line.done)


def _left(report: GroupReport, line: QueueLine) -> Cause:
    return Cause(
        "topic_left",
        f"no contract in force of group {report.group} subscribes to {line.topic}: the group has left that topic",
        f"subscribe to {line.topic} in its consumers, or end its progress there with `{forget_command(report.group, line.topic)}`",
    )


def _member(report: GroupReport, client_id: str | None) -> MemberLine | None:
    return next((member for member in report.members if member.client_id == client_id), None)


def _unknown(report: GroupReport, facts: Facts) -> Iterator[Cause]:
    line = facts.line
    if facts.unserved is not None:
        yield Cause("broker_unserved", f"broker {line.broker} {facts.unserved.problem}", facts.unserved.step)
    elif not line.reached:
        yield Cause("broker_unreached", f"broker {line.broker} can't be reached from here", "run `lockstep doctor`: it says why")
    else:
        yield Cause(
            "broadcasting", "the group is broadcasting: each member consumes every queue and keeps its own progress, which no broker knows"
        )
        for name, answer in facts.members.items():
            yield from _of_member(report, name, answer)


def _of_member(report: GroupReport, name: str, answer: MemberReport) -> Iterator[Cause]:
    """Yield what holds up one member of a broadcasting group."""
    info = answer.info
    if answer.silent:
        yield _silent(name, _member(report, name))
    elif answer.failed is not None:
        yield Cause("member_not_asked", f"{name} could not be asked: {answer.failed}")
    elif info is not None:
        if info.paused:
            yield _paused(info)
        if info.oldest is not None and info.oldest.ran_ms >= LONG_CALL_MS:
            yield _running(info, info.oldest, f" on offset {info.oldest.offset:,} of {info.oldest_queue}")
        if info.loop_blocked_ms:
            yield _loop_blocked(info, info.loop_blocked_ms)


def _silent(name: str, member: MemberLine | None) -> Cause:
    heard = "" if member is None else f"; the broker last received something from it {format_duration(member.heard_ago_ms)} ago"
    return Cause(
        "member_silent",
        f"the event loop of {name} is blocked, or its process is stopped: it did not respond within 3 s{heard}",
        UNBLOCK,
    )


def _paused(info: RunningInfo) -> Cause:
    return Cause("paused", f"{info.client_id} is paused by its application", "call consumer.resume() in that program")


def _obstacles(report: GroupReport, facts: Facts) -> Iterator[Cause]:
    """Yield what keeps the queue from moving, the most fundamental cause first."""
    line = facts.line
    yield from _switched_off(report)
    if not report.members:
        yield from _nobody(report)
        return
    if (left_ms := report.suspended_ms.get(line.broker)) is not None and line.owner is None:
        yield Cause(
            "grants_suspended",
            f"broker {line.broker} grants no queue for another {format_duration(left_ms)}: it was started after a crash that may have lost "
            "grants, and members of that time may still be working",
        )
        return
    yield from _responsible(report, facts)
    if facts.silent:
        name = asked_member(report, line) or "its member"
        yield _silent(name, _member(report, name))
    elif facts.info is not None:
        yield from _at_the_member(facts, facts.info)
    if line.failing_ms is not None and (facts.info is None or facts.info.queue is None):
        yield Cause("failing", _failing(line), "remove the cause of the error: the listener is called again until it succeeds")
    if facts.no_info is not None:
        yield Cause("member_not_asked", f"its member could not be asked: {facts.no_info}")


def _switched_off(report: GroupReport) -> Iterator[Cause]:
    if report.settings is not None and not report.settings.consume_enable:
        yield Cause(
            "consumption_disabled",
            f"consumption of group {report.group} is switched off by an operator",
            f"allow it with `lockstep group update {quote(report.group)} --consume`",
        )


def _nobody(report: GroupReport) -> Iterator[Cause]:
    for refusal in report.refusals[:1]:
        yield _refused(refusal.client_id, refusal.ago_ms, refusal.remark)
    yield Cause("no_member", f"group {report.group} has no member", "start a consumer of this group")


def _refused(client_id: str, ago_ms: int, remark: str) -> Cause:
    return Cause(
        "member_refused",
        f"{client_id} was not admitted {format_duration(ago_ms)} ago: {remark}",
        "give all members of the group the same settings, or announce the change with a higher contract_version",
    )


def _responsible(report: GroupReport, facts: Facts) -> Iterator[Cause]:
    """Yield the faults of the member that holds the queue, or is to hold it."""
    line = facts.line
    name = line.owner or line.listed_owner
    if line.owner is None and not any(line.topic in member.topics for member in report.members):
        yield Cause("not_subscribed", f"no member of the group subscribes to {line.topic}", f"subscribe to {line.topic} in its consumers")
        return
    if line.classic_lease_left_ms is not None:
        yield Cause(
            "classic_owner",
            f"it is held by {line.owner}, a client of RocketMQ, whose lease ends in {format_duration(line.classic_lease_left_ms)}",
            f"ask it by `mqadmin consumerStatus -g {quote(report.group)}`",
        )
        return
    if name is None:
        yield from _unassigned(report, line)
        return
    member = _member(report, name)
    if line.owner_grace_ms is not None:
        then = "is free" if line.listed_owner in (None, line.owner) else f"goes to {line.listed_owner}"
        yield Cause(
            "owner_in_grace",
            f"its owner {line.owner} has lost its connection; it keeps the queue for another {format_duration(line.owner_grace_ms)}, "
            f"then the queue {then}",
        )
    elif line.owner is not None and member is None:
        yield Cause("owner_left", f"its owner {line.owner} has left the group, and finishes a running call before it releases the queue")
    elif member is not None and line.broker in member.missing_at:
        yield _missing(member, line.broker)
    elif line.owner is None and member is not None and member.grace_left_ms is not None:
        yield Cause(
            "listed_in_grace",
            f"the member list assigns it to {name}, which has lost its connection and may reconnect within "
            f"{format_duration(member.grace_left_ms)}",
        )
    elif line.owner is not None and line.listed_owner not in (None, line.owner):
        yield _drains(facts)


def _unassigned(report: GroupReport, line: QueueLine) -> Iterator[Cause]:
    subscribed = [member for member in report.members if line.topic in member.topics]
    if all(line.broker in member.missing_at for member in subscribed):
        yield _missing(subscribed[0], line.broker)


def _missing(member: MemberLine, broker: str) -> Cause:
    return Cause(
        "member_missing",
        f"{member.client_id} is connected to other brokers, but not to broker {broker}",
        f"its machine must reach the advertised address of {broker}: run `lockstep doctor` there",
    )


def _drains(facts: Facts) -> Cause:
    line, queue = facts.line, None if facts.info is None else facts.info.queue
    limit = "" if queue is None or queue.drain_ms is None else f", for at most another {format_duration(queue.drain_ms)}"
    return Cause("draining", f"its owner {line.owner} has to release it to {line.listed_owner}, and finishes a running call first{limit}")


def _at_the_member(facts: Facts, info: RunningInfo) -> Iterator[Cause]:
    """Yield the causes that the member itself reports."""
    line, queue, call = facts.line, info.queue, info.oldest
    if info.paused:
        yield _paused(info)
    if queue is None:
        yield Cause("not_wanted", f"{info.client_id} has not requested the queue: its member list or layout differs from the broker's")
        return
    if queue.blocked:
        yield Cause(
            "blocked",
            f"the listener {info.listener} is not called any more: {_failing(line)}",
            ONE_MORE_CALL,
        )
    if queue.blocked_keys:
        keys = ", ".join("messages without a key" if key is None else key for key in queue.blocked_keys)
        yield Cause(
            "key_blocked",
            f"the listener {info.listener} is not called any more for: {keys}; their attempts are exhausted",
            ONE_MORE_CALL,
        )
    if call is not None:
        yield from _called_or_blocked(line, info, call)
    elif queue.again_ms is not None and line.failing_ms is not None:
        yield Cause(
            "backoff", f"{_failing(line)}. It is called again in {format_duration(queue.again_ms)}", "remove the cause of the error"
        )
    elif queue.again_ms is not None:
        yield Cause("backoff", f"a failed call is repeated in {format_duration(queue.again_ms)}")
    elif queue.uncommitted:
        yield _uncommitted(info, queue)
    if call is None and info.loop_blocked_ms:
        yield _loop_blocked(info, info.loop_blocked_ms)
    if queue.full and not queue.uncommitted:
        yield _full(queue)
    if call is None:
        yield from _unpulled(line, info, queue)
    if info.proof_left_ms == 0:
        yield Cause("not_proven", f"no call may start at {info.client_id}: the broker has not confirmed within the grace that it is alive")
    if line.owner is None and line.listed_owner == info.client_id and queue.state != "held":
        yield Cause("not_acquired", f"the member list assigns it to {info.client_id}, where its state is: {queue.state}")


def _full(queue: RunningQueue) -> Cause:
    if queue.keys is None:
        text = f"no more messages are fetched: {queue.fetched:,} fetched messages are unfinished and fill a limit of the queue"
        return Cause("span_full", f"{text} (queue_count_max, queue_bytes_max or queue_span_max)")
    oldest = "a message without a key" if queue.oldest_key is None else f"key {queue.oldest_key}"
    return Cause(
        "span_full",
        f"no more messages are fetched: {oldest} at offset {queue.committed_offset:,} is unfinished, and the messages after it fill "
        "the limit (queue_span_max)",
    )


def _called_or_blocked(line: QueueLine, info: RunningInfo, call: RunningCall) -> Iterator[Cause]:
    """Yield a running call, and that calls block the loop: that first if the running one has taken less time, so that calls do end."""
    causes = [_called(line, info, call)]
    if info.loop_blocked_ms:
        causes.insert(0 if call.ran_ms <= info.loop_blocked_ms else 1, _loop_blocked(info, info.loop_blocked_ms))
    yield from causes


def _loop_blocked(info: RunningInfo, blocked_ms: int) -> Cause:
    return Cause(
        "loop_blocked",
        f"the listener {info.listener} blocked the event loop of {info.client_id} for {format_duration(blocked_ms)} within the last "
        "minute: nothing else runs there meanwhile",
        UNBLOCK,
    )


def _unpulled(line: QueueLine, info: RunningInfo, queue: RunningQueue) -> Iterator[Cause]:
    """Yield why a member that holds the queue, and has none of its messages, gets none."""
    if queue.pulling is None or queue.state != "held" or queue.fetched or info.paused:
        return
    if line.disk_pulls:
        yield Cause(
            "pull_waits_for_disk",
            f"{line.disk_pulls} pulls of the group wait for the disk of broker {line.broker}, which reads older messages from it",
            "look at the load of that disk",
        )
        return
    if queue.pulled_ms is None:
        yield Cause("not_pulling", f"{info.client_id} holds the queue and has not pulled from it yet")
    elif queue.pulled_ms >= PULL_SOON_MS:
        what = "has no response to its pull" if queue.pulling else "does not pull: its last pull was"
        ago = format_duration(queue.pulled_ms)
        text = f"{info.client_id} holds the queue and {what} from offset {queue.pull_offset or 0:,}, sent to {line.broker} {ago} ago"
        yield Cause("pull_unanswered" if queue.pulling else "not_pulling", text)


def _called(line: QueueLine, info: RunningInfo, call: RunningCall) -> Cause:
    if info.oldest_queue == str(line.queue):
        key = "" if call.key is None else f" (key {call.key})"
        return _running(info, call, f" on offset {call.offset:,}{key}" if call.offset >= 0 else " under an earlier grant")
    ran = format_duration(call.ran_ms)
    text = f"all {info.calls} calls that {info.client_id} may make at a time are running; the oldest, on {info.oldest_queue}, for {ran}"
    return Cause("all_calls_busy", text + _place(call), "raise `concurrency`, add members, or make the listener faster", call.stack)


def _running(info: RunningInfo, call: RunningCall, where: str) -> Cause:
    text = f"the listener {info.listener} has been running for {format_duration(call.ran_ms)}{where} in {info.client_id}{_place(call)}"
    step = f"look at {call.own_frame or call.stack[-1]}" if call.stack else "look at what the listener waits for"
    return Cause("listener_runs", text, step, call.stack)


def _place(call: RunningCall) -> str:
    """Return where the call is: in the application's own code, and, in brackets, in what that calls."""
    if not call.stack:
        return ""
    innermost = call.stack[-1]
    own = call.own_frame or innermost
    return f", at {own}" if own == innermost else f", at {own} (now in {innermost})"


def _uncommitted(info: RunningInfo, queue: RunningQueue) -> Cause:
    if queue.polled_ms is not None:
        ago = format_duration(queue.polled_ms)
        text = f"poll() returned {queue.uncommitted:,} messages {ago} ago; {info.client_id} has neither committed them nor polled again"
        return Cause("polled", text, "look at what the application does between two polls")
    full = ", and fill the limit of the queue, so no more are fetched" if queue.full else ""
    text = f"{queue.uncommitted:,} messages were passed to the listener {info.listener} without a COMMIT (auto_commit=False){full}"
    return Cause("uncommitted", text, "let the listener return COMMIT from time to time")


def _failing(line: QueueLine) -> str:
    since = "" if line.failing_ms is None else f" for {format_duration(line.failing_ms)}"
    return f"offset {line.committed_offset or 0:,} has failed {line.attempts or 0} times{since}: {line.error or 'why was not reported'}"


def _remarks(report: GroupReport, facts: Facts, state: QueueState) -> Iterator[Cause]:
    """Yield the notes that matter whether the queue moves or not."""
    line = facts.line
    if state in (QueueState.IDLE, QueueState.PROGRESSING):
        yield from _switched_off(report)
    elif line.owner is not None and line.classic_lease_left_ms is None and line.owner_grace_ms is None:
        owner = _member(report, line.owner)
        heard = "" if owner is None else f", from which something was received {format_duration(owner.heard_ago_ms)} ago"
        yield Cause("held", f"the queue is held under epoch {line.epoch} by {line.owner}{heard}")
    if facts.parked:
        keys = ", ".join(row.key for row in facts.parked[:8])
        more = f" and {len(facts.parked) - 8} more" if len(facts.parked) > 8 else ""
        yield Cause("parked", f"parked keys, whose messages wait: {keys}{more}", f"run `lockstep park ls {quote(report.group)}`")
    if line.loss is not None and (line.gap_ago_ms or 0) <= LOSS_TOLD_MS:
        yield Cause("messages_lost", line.loss, "add members or make the listener faster, or raise `retention_hours` of the broker")
    if facts.unmatched is not None:
        yield _matches_nothing(facts.unmatched)
    if facts.granted > SETTLED_GRANTS_MAX:
        yield Cause(
            "not_settled",
            f"broker {line.broker} has granted queues of the group {facts.granted} times in {format_duration(facts.between_ms)}: members "
            "come and go, or lose their grants",
            "look for members that restart in a loop",
        )
    for member in report.members:
        for broker in member.missing_at:
            if broker != line.broker:
                yield _missing(member, broker)
    if report.members:
        for refusal in report.refusals[:1]:
            yield _refused(refusal.client_id, refusal.ago_ms, refusal.remark)
    if state is QueueState.IDLE and facts.disk_refusal is not None:
        yield Cause("sends_refused", f"nothing new arrives: {line.broker} refuses sends: {facts.disk_refusal}", "run `lockstep doctor`")


def _matches_nothing(found: Unmatched) -> Cause:
    tags = ", ".join("no tag" if tag is None else tag for tag in found.tags)
    text = f"the subscription {found.expression} to {found.topic} matches none of the last {found.count:,} messages"
    return Cause(
        "filter_matches_nothing",
        text if not tags else f"{text}; tags seen last: {tags}",
        f"compare the subscription with what the producers of {found.topic} send",
    )


def key_explanation(group: str, queue: MessageQueue, rows: Sequence[ParkedKey]) -> Explanation | None:
    """Return why the messages of one key wait although its queue may move, or None if the key is not parked.

    `rows`: the row of the key, or none.
    """
    row = next((row for row in rows if row.state is not ParkState.ENDED), None)
    if row is None:
        return None
    key = row.key
    summary = f"{queue} of group {group}: key {key} is {row.state.value} at offset {row.next:,}"
    again = f"lockstep park replay {quote(group)} {quote(key)}"
    because = Cause("key_parked", f"its message failed {row.attempts} times: {row.error}", f"remove the cause, then run `{again}`")
    return Explanation(queue.topic, queue.broker_name, queue.queue_id, QueueState.STALLED, row.next, summary, because, ())

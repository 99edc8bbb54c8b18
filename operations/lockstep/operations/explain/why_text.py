"""The output of `lockstep why`: a diagnosis as lines of text. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from shlex import quote

from lockstep.operations.explain.why import GROUP_WIDE, TOLD_ALWAYS, Cause, Explanation, Facts, QueueState
from lockstep.operations.explain.why_query import Diagnosis
from lockstep.operations.groups.group_report import QueueLine
from lockstep.operations.text import format_duration, without_durations
from lockstep.protocol.bodies import RunningCall, RunningInfo, RunningQueue

_COUNTED = {
    QueueState.STALLED: "stalled queues",
    QueueState.UNKNOWN: "queues of which nothing is known",
    QueueState.PROGRESSING: "queues that make progress",
    QueueState.LEFT: "queues of topics that it has left",
    QueueState.IDLE: "queues with nothing to do",
}
_STANDING = (QueueState.STALLED, QueueState.UNKNOWN)
_SHOWN = (*_STANDING, QueueState.LEFT)


def diagnosis_lines(group: str, found: Diagnosis) -> Iterator[str]:
    """Yield the facts about the key or message, the numbers of queues, the explanation of each queue that needs one, and what else has
    to be reported of the group."""
    if found.note is not None:
        yield found.note
    if len(found.states) > 1:
        counts = Counter(found.states.values())
        yield f"group {group}: {', '.join(f'{name}: {counts[state]}' for state, name in _COUNTED.items() if counts[state])}"
    reported: set[str] = set()
    for each, alike in _by_cause(_shown(found)):
        yield from _explanation_lines(each, alike, reported)
    for cause, queues in _not_shown(found):
        if cause.text not in reported:
            yield from _cause_lines("also", cause, "" if cause.name in GROUP_WIDE else f" ({_queue_names(queues)})")
            yield from _step_lines([cause])
    left = sum(state in _STANDING for state in found.states.values()) - sum(each.state in _STANDING for each in found.explanations)
    if left > 0:
        yield f"{left} more queues are stalled and were not examined: name one, as in `lockstep why {quote(group)} TOPIC@BROKER:QUEUE`"


def answer_of(found: Diagnosis) -> object:
    """Return a diagnosis without ages, rates and the numbers of waiting messages, so that two of them can be compared."""
    explained = tuple(
        (
            (each.topic, each.broker, each.queue_id, each.state),
            each.offset if each.state in _SHOWN else None,
            tuple(without_durations(cause.text) for cause in (each.because, *each.also) if cause is not None),
        )
        for each in _shown(found)
    )
    others = tuple((without_durations(cause.text), _queue_names(queues)) for cause, queues in _not_shown(found))
    failed = {name: without_durations(why) for name, why in found.failed.items()}
    return found.note, Counter(found.states.values()), explained, others, failed


def _shown(found: Diagnosis) -> list[Explanation]:
    """Return the explanations that are shown: that of a single queue, otherwise those of queues that need one."""
    return [each for each in found.explanations if len(found.states) == 1 or each.state in _SHOWN]


def _by_cause(found: Iterable[Explanation]) -> list[tuple[Explanation, list[Explanation]]]:
    """Return one explanation of each cause, and the further ones of the same."""
    by_cause: dict[object, list[Explanation]] = {}
    for each in found:
        by_cause.setdefault((each.topic, each.broker, each.queue_id) if each.because is None else each.because, []).append(each)
    return [(first, alike) for first, *alike in by_cause.values()]


def _not_shown(found: Diagnosis) -> list[tuple[Cause, list[Explanation]]]:
    """Return what is always reported, with its queues, of those whose explanation is not shown or is shown for another queue."""
    shown = [first for first, _ in _by_cause(_shown(found))]
    causes: dict[Cause, list[Explanation]] = {}
    for each in found.explanations:
        for cause in () if each in shown else each.also:
            if cause.name in TOLD_ALWAYS:
                causes.setdefault(cause, []).append(each)
    return list(causes.items())


def _queue_names(found: Iterable[Explanation]) -> str:
    return ", ".join(f"{each.topic}@{each.broker}:{each.queue_id}" for each in found)


def _explanation_lines(found: Explanation, alike: Sequence[Explanation], reported: set[str]) -> Iterator[str]:
    """Yield one explanation. `reported`: the texts of causes that concern the group, each of which is reported once."""
    yield found.summary
    if alike:
        yield f"  {'and so':8} {_queue_names(alike)}"
    if found.because is not None:
        yield from _cause_lines("because", found.because)
    elif not found.explained:
        yield "  because  unknown: nothing of what the brokers and the member report explains it"
        yield from _fact_lines(found.facts)
    also = [cause for cause in found.also if cause.text not in reported]
    for cause in also:
        yield from _cause_lines("also", cause)
    causes = also if found.because is None else [found.because, *also]
    yield from _step_lines(causes)
    reported |= {cause.text for cause in causes if cause.name in GROUP_WIDE}


def _fact_lines(facts: Facts | None) -> Iterator[str]:
    """Yield everything that is known of a queue, for the report of a defect."""
    if facts is None:
        return
    sources: list[tuple[str, Facts | QueueLine | RunningInfo | RunningQueue | RunningCall | None]] = [
        ("broker", facts.line),
        ("a second before", facts.before),
        ("the looks", facts),
    ]
    if facts.info is not None:
        sources += [("member", facts.info), ("its queue", facts.info.queue), ("its call", facts.info.oldest)]
    for name, source in sources:
        known = {} if source is None else {each.name: getattr(source, each.name) for each in fields(source)}
        words = [_fact(key, value) for key, value in known.items() if value not in (None, "", (), {}) and not is_dataclass(value)]
        if words:
            yield f"  {'fact':8} {name}: {', '.join(words)}"


def _fact(name: str, value: object) -> str:
    if name.endswith("_ms") and isinstance(value, int):
        return f"{name.removesuffix('_ms')} {format_duration(value)}"
    return f"{name} {value}"


def _step_lines(causes: Iterable[Cause]) -> Iterator[str]:
    for step in dict.fromkeys(cause.step for cause in causes if cause.step is not None):
        yield f"  {'next':8} {step}"


def _cause_lines(word: str, cause: Cause, where: str = "") -> Iterator[str]:
    yield f"  {word:8} {cause.text}{where}"
    for place in reversed(cause.stack):
        yield f"  {'':8} at {place}"

"""The contents of pages, from the known state of the cluster. Pure: no page waits for a broker here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from lockstep.client.producer.machines.routing import queue_of_key
from lockstep.dashboard.charts import chart, latency, trend
from lockstep.dashboard.lanes import group_lanes
from lockstep.dashboard.queues import HIGHEST_SHOWN, ShownGroup, group_queues, heat, lags
from lockstep.operations.brokers.delays import delay_report, due_name
from lockstep.operations.brokers.diagnosis import Finding
from lockstep.operations.brokers.ha_report import sentences
from lockstep.operations.brokers.rates import GroupRates, TopicRates, groups_of_topic
from lockstep.operations.brokers.replicas import LogCopy, of_broker
from lockstep.operations.brokers.settings_query import ClusterSettings
from lockstep.operations.groups.group_history import hand_overs, summary
from lockstep.operations.pictures.due import due_picture
from lockstep.operations.pictures.heat import highest
from lockstep.operations.watch.cache import CachedResult
from lockstep.operations.watch.topic_query import TopicReport
from lockstep.operations.watch.watch import INTERVAL_MS, Watch
from lockstep.protocol.bodies import Overview
from lockstep.protocol.delays import format_delay
from lockstep.protocol.errors import TopicNotExistError
from lockstep.protocol.names import group_of_topic
from lockstep.runtime.clock import Clock

ROWS = 100
"""Rows of one page of a list, and of the groups that need attention."""
OLD_MS = 15_000
"""Figures of this age are shown with the time when they were read."""
FAILING_SHOWN = 20
WINDOWS_MIN = (1, 5, 15, 60)
CLOCK_MS = 200
"""A larger difference of a broker's clock is shown: its log has other times than the page."""
EVENTS_SHOWN = 200


def frame(watch: Watch, clock: Clock) -> dict[str, Any]:
    """Return what every page shows: how old its figures are, and what keeps them from being newer."""
    age_ms = None if watch.looked_ms is None else clock.monotonic_ms() - watch.looked_ms
    return {
        "problem": watch.problem,
        "absent": watch.absent,
        "left_out": ", ".join(watch.rates.left_out),
        "begun": watch.looked_ms is not None,
        "stale_ms": watch.looked_wall_ms if age_ms is not None and age_ms > OLD_MS else None,
        "nameservers": ", ".join(watch.admin.nameservers),
        "any_broker": bool(watch.brokers),
    }


def age(answer: CachedResult[Any], now_ms: int) -> dict[str, int | None]:
    """Return when a result was read, if that is a while ago. `now_ms`: ms since 1970.

    The age itself would change with each look, and with it the part of the page, though nothing else in it does.
    """
    return {"read_ms": answer.read_ms if answer.read_ms is not None and now_ms - answer.read_ms > OLD_MS else None}


def cluster(watch: Watch, answer: CachedResult[list[Finding]], copies: CachedResult[list[LogCopy]]) -> dict[str, Any]:
    found = watch.rates
    addresses = {name: broker.address for name, broker in watch.brokers.items()}
    overviews = {name: look for name, look in watch.looks.items() if isinstance(look, Overview)}
    attention = [(each, words) for each in found.groups if (words := each.remarks)]
    return {
        "brokers": found.brokers,
        "addresses": addresses,
        "overviews": overviews,
        "copies": copies.value or [],
        "registers": registers(copies.value or []),
        "tiles": [
            _tile(watch, "Stored", "messages per second, last hour", "in", found.total(lambda each: each.stored_s)),
            _tile(watch, "Consumed", "messages per second, last hour", "out", found.total(lambda each: each.given_s)),
            _tile(watch, "Behind", "messages, of all groups, last hour", "lag", found.total(lambda each: each.lag)),
            _tile(watch, "Hand-overs", "queues granted per minute, last hour", "moves", found.grants_min),
        ],
        "latency": lambda: [latency(watch, each.broker) for each in found.brokers],
        "attention": attention[:ROWS],
        "attention_left": max(0, len(attention) - ROWS),
        **doctor(answer),
    }


def registers(copies: Sequence[LogCopy]) -> dict[str, list[str]]:
    """Return broker → what its register says in sentences, of those that have one."""
    names = dict.fromkeys(each.broker for each in copies if each.has_register)
    return {name: sentences(name, of_broker(copies, name)) for name in names}


def topics(watch: Watch, names: CachedResult[tuple[str, ...]], query: Mapping[str, str]) -> dict[str, Any]:
    keys: dict[str, Callable[[TopicRates], Any]] = {
        "name": lambda each: each.topic,
        "rate": lambda each: -(each.stored_s or 0),
        "behind": lambda each: -(each.lag or 0),
        "stored": lambda each: -each.messages,
    }
    everything = query.get("all") == "1"
    rows = [each for each in watch.topics if everything or group_of_topic(each.topic) is None]
    chosen, listing = _listing(rows, query, keys, lambda each: each.topic)
    trends = {each.topic: trend(watch, f"topic/{each.topic}/in", f"{each.topic}: stored per second") for each in chosen}
    stored = {each.topic for each in watch.topics}
    wanted = listing["q"].lower()
    empty = [each for each in names.value or () if each not in stored and group_of_topic(each) is None and wanted in each.lower()]
    return {
        "rows": chosen,
        "trends": trends,
        "everything": everything,
        "empty": empty[:ROWS],
        "empty_left": max(0, len(empty) - ROWS),
        **listing,
    }


def topic(
    watch: Watch, name: str, answer: CachedResult[TopicReport], of: tuple[str, CachedResult[ShownGroup]] | None, query: Mapping[str, str]
) -> dict[str, Any]:
    """`of`: the group whose lag the picture of all queues shows, and its answer; None: the picture shows what is stored."""
    report = answer.value
    queues = []
    if report is not None:
        for broker in report.layout.brokers:
            offsets = {each.queue_id: each for each in report.offsets.get(broker, ())}
            queues += [(each, offsets.get(each.queue_id)) for each in report.layout.queues_of(broker)]
    if of is None:
        title = f"{name}: messages that each queue stores"
        cells = [(each.broker_name, each.queue_id, None if at is None else at.max_offset - at.min_offset) for each, at in queues]
    else:
        group, found = of
        title = f"{name}: messages behind of {group}, of each queue"
        behind = {} if found.value is None else lags(name, found.value.look.report)
        cells = [(each.broker_name, each.queue_id, behind.get((each.broker_name, each.queue_id))) for each, _ in queues]
    rate = next((each for each in watch.topics if each.topic == name), None)
    key = query.get("key", "")
    return {
        "topic": name,
        "report": report,
        "key": key,
        "queue_of_key": queue_of_key(report.layout, key) if key and report is not None and report.layout.write_queues else None,
        "error": None if answer.error is None else str(answer.error),
        "deleted": report is not None and isinstance(answer.error, TopicNotExistError),
        **_paged(queues, query),
        "of": None if of is None else of[0],
        "heat": heat([(broker, figure) for broker, _, figure in cells], title),
        "highest": highest([(f"{broker}:{queue_id}", figure) for broker, queue_id, figure in cells], HIGHEST_SHOWN),
        "groups": groups_of_topic(watch.looks, name),
        "rate": rate,
        "course": chart(watch, f"topic/{name}/in", f"{name}: messages stored per second"),
    }


def groups(watch: Watch, query: Mapping[str, str]) -> dict[str, Any]:
    keys: dict[str, Callable[[GroupRates], Any]] = {
        "behind": lambda each: -(each.lag or 0),
        "name": lambda each: each.group,
        "rate": lambda each: -(each.given_s or 0),
        "moves": lambda each: -(each.grants_min or 0),
    }
    chosen, listing = _listing(watch.rates.groups, query, keys, lambda each: each.group)
    trends = {each.group: trend(watch, f"group/{each.group}/lag", f"{each.group}: messages behind") for each in chosen}
    return {"rows": [(each, each.remarks) for each in chosen], "trends": trends, **listing}


def group(watch: Watch, name: str, answer: CachedResult[ShownGroup], now_ms: int, query: Mapping[str, str]) -> dict[str, Any]:
    look, queues = (None, group_queues(name, None)) if answer.value is None else (answer.value.look, answer.value.queues)
    report = None if look is None else look.report
    window_min = int(query["window"]) if query.get("window", "") in map(str, WINDOWS_MIN) else 5
    events = sorted(watch.events.of(name), key=lambda each: each.event.wall_ms)
    until_ms = watch.events.known_until(now_ms, 2 * INTERVAL_MS)
    period = until_ms - window_min * 60_000, until_ms
    recent = [each for each in events if period[0] <= each.event.wall_ms]
    moved = [each for each in hand_overs(events) if each.at_ms >= period[0]]
    return {
        "group": name,
        "report": report,
        "unknown": look is not None and report is None and not look.failed,
        "error": None if answer.error is None else str(answer.error),
        "failed": {} if look is None else look.failed,
        "rate": next((each for each in watch.rates.groups if each.group == name), None),
        **group_lanes(watch, name, look, events, period, summary(moved)),
        "clocks": {broker: round(ahead_ms, -2) for broker, ahead_ms in watch.events.clock_differences(CLOCK_MS).items()},
        "windows": WINDOWS_MIN,
        "window": window_min,
        **_paged(queues.lines, query),
        "held": queues.held,
        "heat": queues.heat,
        "highest": queues.highest,
        "failing": queues.failing[:FAILING_SHOWN],
        "failing_left": max(0, len(queues.failing) - FAILING_SHOWN),
        "events": [(each.broker, each.event) for each in reversed(recent[-EVENTS_SHOWN:])],
        "chart_lag": chart(watch, f"group/{name}/lag", f"{name}: messages behind"),
        "chart_out": chart(watch, f"group/{name}/out", f"{name}: messages consumed per second"),
        "chart_oldest": chart(watch, f"group/{name}/oldest", f"{name}: age of the oldest message that waits", milliseconds=True),
    }


def doctor(answer: CachedResult[list[Finding]]) -> dict[str, Any]:
    found = answer.value or []
    return {
        "answered": answer.value is not None,
        "error": None if answer.error is None else str(answer.error),
        "problems": [each for each in found if each.problem is not None],
        "passed": [each for each in found if each.problem is None],
    }


def delays(watch: Watch) -> dict[str, Any]:
    report = delay_report(watch.looks)
    periods = [(due_name(bucket), count) for bucket, count in enumerate(report.due)]
    return {
        "report": report,
        "picture": Markup(due_picture(periods, "When waiting messages are due")) if any(report.due) else Markup(),
        "lines": [(format_delay(line.delay_ms), line) for line in report.lines],
    }


def settings(answer: CachedResult[ClusterSettings], query: Mapping[str, str]) -> dict[str, Any]:
    found, wanted = answer.value, query.get("q", "").strip()
    rows = () if found is None else found.rows
    return {
        "found": found,
        "error": None if answer.error is None else str(answer.error),
        "q": wanted,
        "rows": [row for row in rows if wanted.lower().replace("-", "_") in row.name],
        "differing": [row.name for row in rows if row.differs],
    }


def _listing(
    rows: Iterable[Any], query: Mapping[str, str], keys: Mapping[str, Callable[[Any], Any]], name: Callable[[Any], str]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Return the rows of one page of a list, sorted and filtered as the query says, and what the page needs to offer the others."""
    wanted = query.get("q", "")
    sort = query["sort"] if query.get("sort") in keys else next(iter(keys))
    found = sorted([row for row in rows if wanted.lower() in name(row).lower()], key=lambda row: (keys[sort](row), name(row)))
    chosen, page, pages = _page_of(found, query)
    return chosen, {"q": wanted, "sort": sort, "page": page, "pages": pages, "count": len(found)}


def _paged(queues: Sequence[Any], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the queues of one page of a table, and what the page needs to offer the others."""
    chosen, page, pages = _page_of(queues, query)
    return {"queues": chosen, "queue_count": len(queues), "page": page, "pages": pages}


def _page_of(rows: Sequence[Any], query: Mapping[str, str]) -> tuple[Sequence[Any], int, int]:
    """Return the rows of the page that the query names, its number and the number of pages."""
    pages = max(1, -(-len(rows) // ROWS))
    number = int(query["page"]) if query.get("page", "").isascii() and query.get("page", "").isdigit() and len(query["page"]) < 7 else 1
    page = min(max(1, number), pages)
    return rows[(page - 1) * ROWS : page * ROWS], page, pages


def _tile(watch: Watch, title: str, unit: str, series: str, value: float | None) -> dict[str, Any]:
    return {
        "title": title,
        "unit": unit,
        "value": value,
        "whole": series == "lag",
        "chart": chart(watch, series, f"{title}: {unit}"),
    }

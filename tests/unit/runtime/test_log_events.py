"""Each log event of a server that a peer or a fault can repeat is limited (`log_limited`). The others are listed with the reason."""

import ast
from collections.abc import Iterator

import pytest

from lockstep.runtime.daemon import call_isolated
from lockstep.runtime.logs.log_limit import EVENTS_MAX
from support.server_sources import server_sources

LEVELS = {"info", "warning", "error", "exception", "critical"}
"""`debug` is omitted: it is off unless an operator enables it."""

ONCE_A_START = "once a start or stop of the process"
ON_A_TIMER = "at most once in a period of the broker's own, whatever peers do"
BY_AN_OPERATOR = "a change that was asked for and carried out: who did it must be in the log"
A_TERM = "at most once in a term, which begins with a change of the register"
ONCE_A_PLACE = "once for each place of the log that is damaged: damage is never left out"

UNLIMITED = {
    "broker.started": ONCE_A_START,
    "broker.stopped": ONCE_A_START,
    "daemon.failed": ONCE_A_START,
    "delay.outlives_retention": "once a start, and once for each change of retention_hours",
    "log.recovered": ONCE_A_START,
    "nameserver.started": ONCE_A_START,
    "queues.rebuilding": ONCE_A_START,
    "registration.awaited": ONCE_A_START,
    "settings.insecure": ONCE_A_START,
    "settings.unknown_variable": ONCE_A_START,
    "signal.received": ONCE_A_START,
    "snapshot.damaged": ONCE_A_START,
    "stop.abandoned": ONCE_A_START,
    "stop.failed": ONCE_A_START,
    "witness.started": ONCE_A_START,
    "store.adopted": ONCE_A_START,
    "store.incomplete": ONCE_A_START,
    "store.recovering": ONCE_A_START,
    "store.restored": ONCE_A_START,
    "store.set_aside": ONCE_A_START,
    "accept.paused": "at most once a second: it says that nothing is accepted for a second",
    "broker.waits_for_replicas": ONCE_A_START,
    "clock.followed": ON_A_TIMER,
    "clock.jumped": ON_A_TIMER,
    "events.left_out": ON_A_TIMER,
    "group.forgotten": "once for each group that is forgotten, a day's groups after a day: at most as many as may be known",
    "office.damaged": ONCE_A_START,
    "office.elected": A_TERM,
    "office.hands_over": A_TERM,
    "office.left": A_TERM,
    "office.not_handed_over": A_TERM,
    "office.resumed": "once for each time that the register or the set is reached again, after seconds of silence",
    "office.suspended": "once for each time that neither the register nor the set is reached, for seconds",
    "office.waits": ONCE_A_START,
    "registration.later": A_TERM,
    "replica.begins_log": ONCE_A_START,
    "replica.installed": "once for each copy of a whole log",
    "replica.installing": ON_A_TIMER,
    "replica.is_master": ONCE_A_START,
    "replica.promoted": "an operator promotes a replica once",
    "replica.refetched": "once for each damaged file of a replica, at most twice in 30 s",
    "replica.truncated": "once for each term of another master, or each start that finds a cut unfinished",
    "retention.removed": ON_A_TIMER,
    "scrub.failed": ON_A_TIMER,
    "scrub.passed": ON_A_TIMER,
    "waiting.carried": ON_A_TIMER,
    "security.copy_failed": "at most once for each change of the file of users",
    "security.last_good": ONCE_A_START,
    "security.reload_failed": "at most once in 5 s, for another reason each time, and for each reload that was asked for",
    "security.reloaded": "at most once in 5 s, and for each reload that was asked for",
    "deletions.forgotten": BY_AN_OPERATOR,
    "group.configured": BY_AN_OPERATOR,
    "group.deleted": BY_AN_OPERATOR,
    "log.level_changed": BY_AN_OPERATOR,
    "parked_keys.changed": BY_AN_OPERATOR,
    "topic.purged": BY_AN_OPERATOR,
    "progress.forgotten": BY_AN_OPERATOR,
    "progress.reset": BY_AN_OPERATOR,
    "setting.changed": BY_AN_OPERATOR,
    "store.damaged": ONCE_A_PLACE,
    "scrub.damage_found": ONCE_A_PLACE,
}


def events(source: str) -> Iterator[str]:
    """Yield the events that a module logs without a limit. A computed name is given as its expression."""
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and call.args and _is_unlimited(call.func):
            event = call.args[0]
            yield event.value if isinstance(event, ast.Constant) and isinstance(event.value, str) else ast.unparse(event)


def _is_unlimited(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        is_log = isinstance(function.value, ast.Name) and function.value.id in ("log", "logger")
        return (is_log and function.attr in LEVELS) or function.attr == "announce"
    return isinstance(function, ast.Name) and function.id == "announce"


def test_unlimited_log_events_are_exactly_the_listed_ones() -> None:
    found = {event for path in server_sources() for event in events(path.read_text("utf-8"))}
    assert found == set(UNLIMITED)


def test_events_finds_the_unlimited_events_of_a_module() -> None:
    source = """
log.info("a", x=1)
log_limited(log, "error", "b")
log.debug("c")
announce("d")
logging.announce("e")
log.error(name, y=2)
"""
    assert list(events(source)) == ["a", "d", "e", "name"]


@pytest.mark.parametrize("event", ["callback.failed", "effect.failed", "close.failed", "arrival.failed"])
async def test_repeatedly_failing_callback_is_logged_ten_times(event: str, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise KeyError("missing")

    for _ in range(3 * EVENTS_MAX):
        call_isolated(event, fails)
    assert [record.getMessage().split()[0] for record in caplog.records] == [event] * EVENTS_MAX

"""Logging: events `noun.past_verb` with facts as keys, by structlog, through the standard library's `logging` tree "lockstep".

A library does not configure its user's logging: the SDK's events go to the loggers `lockstep.*` as `event key=value …`, and the application
decides how they appear. lockstep's programs call `configure` once: it writes JSON lines, or coloured lines if stdout is a terminal. In all
forms, control characters and line breaks in facts are escaped, so that text from a peer can neither begin a line nor move the cursor.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO, cast

import structlog
from structlog.typing import FilteringBoundLogger

from lockstep.protocol.object_text import text_of, traceback_object, traceback_of
from lockstep.runtime.host import running_host
from lockstep.runtime.logs.safe_text import printable, printable_lines

ROOT = "lockstep"
LEVELS = ("debug", "info", "warning", "error")
_ANNOUNCER = f"{ROOT}.announce"
_AUDIT = f"{ROOT}.audit"

Logger = FilteringBoundLogger


def _to_record(logger: object, method: str, facts: MutableMapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the arguments for the standard logger: readable text for any handler, the facts for lockstep's.

    The message is the event, and the facts are its argument: error trackers (Sentry) group records by the message.
    """
    event = str(facts.pop("event"))
    extra: dict[str, Any] = {"extra": {"event": event, "facts": facts}}
    if (error := facts.pop("exc_info", None)) is not None:
        extra["exc_info"] = (type(error), error, traceback_object(error)) if isinstance(error, BaseException) else error
    if not facts:
        return (event,), extra
    return (f"{event} %s", " ".join(f"{key}={printable(str(value))}" for key, value in facts.items())), extra


class _Logger(structlog.stdlib.BoundLogger):
    """Logs an error without its traceback if the handlers can't show that: it may be a user's, and so may its attributes."""

    def _proxy_to_logger(self, method_name: str, event: str | None = None, *event_args: str, **event_kw: Any) -> Any:
        try:
            return super()._proxy_to_logger(method_name, event, *event_args, **event_kw)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failed:  # listener: what is logged must not end what logs it
            if event_kw.pop("exc_info", None) is None:
                raise
            event_kw["traceback_not_shown"] = text_of(failed)
            return super()._proxy_to_logger(method_name, event, *event_args, **event_kw)


def get_logger(name: str) -> Logger:
    """Return a logger below "lockstep": `get_logger("broker.store").info("segment.opened", path=…)`."""
    return cast(
        Logger,
        structlog.wrap_logger(
            logging.getLogger(name if name == ROOT or name.startswith(f"{ROOT}.") else f"{ROOT}.{name}"),
            processors=[structlog.stdlib.filter_by_level, _to_record],
            wrapper_class=_Logger,
            context_class=dict,
        ),
    )


class _Lines(logging.Formatter):
    """Renders a record: time, level, event, logger, facts."""

    def __init__(self, *, json: bool, colors: bool) -> None:
        super().__init__()
        self._render: Any = structlog.processors.JSONRenderer(default=str) if json else structlog.dev.ConsoleRenderer(colors=colors)
        self._json = json

    def format(self, record: logging.LogRecord) -> str:
        host = running_host()  # a simulated loop has a time of its own
        created = record.created if host is None else host.clock.wall_ms() / 1000
        stamp = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")
        facts: Mapping[str, Any] = getattr(record, "facts", {})
        line = {
            "event": getattr(record, "event", None) or record.getMessage(),
            "level": record.levelname.lower(),
            "timestamp": stamp,
            "logger": record.name,
            **(facts if self._json else {key: printable(value) if isinstance(value, str) else value for key, value in facts.items()}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            trace = traceback_of(record.exc_info[1])
            line["exception"] = trace if self._json else printable_lines(trace)
        return cast(str, self._render(None, record.levelname.lower(), line))


def configure(level: str = "info", *, stream: TextIO | None = None, announcing: bool = True) -> None:
    """Set up the process's logging. A program calls it once. `level` is one of LEVELS; `stream` is stdout by default.

    If `announcing` is False, the level applies to announcements too, because no process waits for them.
    """
    out = sys.stdout if stream is None else stream
    terminal = out.isatty()
    handler = logging.StreamHandler(out)
    handler.setFormatter(_Lines(json=not terminal, colors=terminal))
    root = logging.getLogger(ROOT)
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
    logging.getLogger(_ANNOUNCER).setLevel(logging.INFO if announcing else logging.NOTSET)


def audit_logger() -> Logger:
    """Return the logger `lockstep.audit`, which no level of the program silences."""
    logging.getLogger(_AUDIT).setLevel(logging.INFO)
    return get_logger(_AUDIT)


def level() -> str:
    """Return the lowest level that is logged: one of LEVELS."""
    return logging.getLevelName(logging.getLogger(ROOT).getEffectiveLevel()).lower()


def set_level(level: str) -> None:
    """Log from this level on: one of LEVELS."""
    logging.getLogger(ROOT).setLevel(level.upper())


def announce(event: str, **facts: object) -> None:
    """Log an event that other processes wait for (`broker.started`), whatever the level, unless `configure` disabled that."""
    get_logger(_ANNOUNCER).info(event, **facts)

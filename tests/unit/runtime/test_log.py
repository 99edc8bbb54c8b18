"""Events as JSON lines or coloured text for programs, through the application's own logging for a library."""

import io
import json
import logging
from collections.abc import Callable

import pytest

from lockstep.runtime.logs import log
from support.bad_objects import ERRORS

pytestmark = pytest.mark.usefixtures("logging_as_it_was")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_program_log_has_one_json_object_per_line() -> None:
    stream = io.StringIO()
    log.configure("info", stream=stream)
    log.get_logger("broker.store").info("segment.opened", path="/x", bytes=5)
    (line,) = lines(stream)
    assert next(iter(line)) == "event"
    assert line.pop("timestamp").endswith("+00:00")  # type: ignore[attr-defined]
    assert line == {"event": "segment.opened", "level": "info", "logger": "lockstep.broker.store", "path": "/x", "bytes": 5}


def test_log_on_a_terminal_is_human_readable_text() -> None:
    stream = Terminal()
    log.configure(stream=stream)
    log.get_logger("x").info("segment.opened", path="/x")
    assert "segment.opened" in stream.getvalue()
    assert "/x" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_log_level_filters_events_but_not_announcements() -> None:
    stream = io.StringIO()
    log.configure("error", stream=stream)
    log.get_logger("x").warning("thing.happened")
    log.announce("broker.started", address="127.0.0.1:1", name="broker-a")
    (line,) = lines(stream)
    assert (line["event"], line["address"], line["name"]) == ("broker.started", "127.0.0.1:1", "broker-a")


def test_log_level_filters_announcements_if_announcing_is_off() -> None:
    stream = io.StringIO()
    log.configure("warning", stream=stream, announcing=False)
    log.announce("up.started")
    assert lines(stream) == []
    log.configure("info", stream=stream, announcing=False)
    log.announce("up.started")
    assert [line["event"] for line in lines(stream)] == ["up.started"]


@pytest.mark.parametrize("key", ["name", "args", "message", "module", "level", "created"])
def test_log_field_may_have_any_name(key: str) -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    log.get_logger("x").info("thing.happened", **{key: 7})
    (line,) = lines(stream)
    assert line[key] == 7
    assert line["event"] == "thing.happened"


def test_logged_error_has_its_traceback() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    try:
        raise ValueError("odd")
    except ValueError as error:
        log.get_logger("x").error("thing.failed", error=repr(error), exc_info=error)
    (line,) = lines(stream)
    assert "Traceback" in str(line["exception"])
    assert "ValueError: odd" in str(line["exception"])


def test_values_without_a_json_type_and_percent_signs_are_logged_as_text() -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    log.get_logger("x").info("thing.happened", share="100%s", error=ValueError("x"), raw=b"\x00")
    (line,) = lines(stream)
    assert (line["share"], line["error"]) == ("100%s", "x")


class Particular(logging.Handler):
    """A handler of an application that can't show some errors."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            raise RecursionError("too many groups of errors")
        self.shown.append(record.getMessage())


def test_error_that_a_handler_can_not_show_is_logged_without_its_traceback() -> None:
    handler = Particular()
    logging.getLogger("lockstep").addHandler(handler)
    log.get_logger("x").error("thing.failed", error="odd", exc_info=ValueError("odd"))
    assert handler.shown == ["thing.failed error=odd traceback_not_shown=RecursionError: too many groups of errors"]


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
def test_error_of_any_kind_is_logged_with_a_traceback(make: Callable[[], BaseException]) -> None:
    stream = io.StringIO()
    log.configure(stream=stream)
    try:
        raise make()
    except BaseException as error:
        log.get_logger("x").error("thing.failed", exc_info=error)
    (line,) = lines(stream)
    assert line["event"] == "thing.failed"
    assert line["exception"]


def test_second_configure_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.configure(stream=first)
    log.configure(stream=second)
    log.get_logger("x").info("thing.happened")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_library_logs_through_the_applications_logging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="lockstep")
    log.get_logger("client.producer").info("route.changed", topic="orders", queues=8)
    (record,) = caplog.records
    assert record.name == "lockstep.client.producer"
    assert record.getMessage() == "route.changed topic=orders queues=8"
    assert record.msg == "route.changed %s", "one message for every topic: error trackers group by it"


def test_percent_signs_and_events_without_facts_are_logged_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="lockstep")
    log.get_logger("x").info("thing.happened", share="100%s", rate="5%")
    log.get_logger("x").info("100%s.done")
    assert [record.getMessage() for record in caplog.records] == ["thing.happened share=100%s rate=5%", "100%s.done"]


def test_filtered_event_is_not_rendered() -> None:
    class Loud:
        def __str__(self) -> str:
            raise AssertionError("rendered")

    logging.getLogger("lockstep").setLevel(logging.WARNING)
    log.get_logger("x").debug("thing.happened", value=Loud())


def test_program_log_is_not_propagated_to_the_root_logger() -> None:
    again = io.StringIO()
    handler = logging.StreamHandler(again)
    logging.getLogger().addHandler(handler)
    try:
        log.configure(stream=io.StringIO())
        log.get_logger("x").info("thing.happened")
    finally:
        logging.getLogger().removeHandler(handler)
    assert again.getvalue() == ""

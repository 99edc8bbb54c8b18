"""No control character, ESC or line break from a peer reaches a log line, an error or a terminal."""

import io
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.cli.options import print_error
from lockstep.cli.render import print_line, print_table
from lockstep.operations.text import json_text
from lockstep.protocol.codes import ResponseCode
from lockstep.protocol.command import RESPONSE_FLAG, Command
from lockstep.protocol.errors import broker_error
from lockstep.protocol.frame import encode_frame
from lockstep.runtime.logs import log
from lockstep.runtime.logs.safe_text import printable
from support.recorder import record

pytestmark = pytest.mark.usefixtures("logging_as_it_was")

EVIL = "no\r\n2026-01-01 [info] broker.started\x1b[2J\x9b31m\x00\x7f\u2028\u202e\u200b\ud800"
remarks = st.text(st.characters(codec="utf-8")) | st.sampled_from([EVIL.replace("\ud800", ""), "plain words"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def is_clean(text: str) -> bool:
    """Return whether the text is one line of printable characters."""
    return text.removesuffix("\n").isprintable()


@given(st.text() | st.just(EVIL))
def test_printable_text_is_unchanged_and_other_characters_are_escaped_once(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    assert shown.encode() is not None
    if text.isprintable():
        assert shown == text


async def response_with(remark: str) -> Command:
    """Return the response that the caller of an endpoint gets."""
    endpoint, _ = record(None)
    requested = endpoint.request(11, timeout_ms=1_000)
    endpoint.data_received(encode_frame(Command(ResponseCode.SYSTEM_ERROR, 1, RESPONSE_FLAG, remark=remark)))
    response = requested.result()
    endpoint.abort("done")
    return response


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(remarks)
async def test_remark_of_a_peer_is_escaped_in_logs_errors_and_on_terminals(capsys: pytest.CaptureFixture[str], remark: str) -> None:
    response = await response_with(remark)
    error = broker_error(response.code, response.remark)
    assert is_clean(str(error))
    assert is_clean(error.remark)
    print_error(error)
    assert is_clean(capsys.readouterr().err)


@given(st.text() | st.just(EVIL))
def test_text_of_a_log_field_is_escaped(text: str) -> None:
    terminal, plain, library = Terminal(), io.StringIO(), list[str]()
    log.configure(stream=terminal)
    log.get_logger("x").info("thing.happened", remark=text, several=[text])
    (line, end) = terminal.getvalue().split("\n")
    assert end == ""
    for colour in ("\x1b[0m", "\x1b[1m", "\x1b[2m", *(f"\x1b[{number}m" for number in range(30, 38))):
        line = line.replace(colour, "")
    assert is_clean(line)
    log.configure(stream=plain)
    log.get_logger("x").info("thing.happened", remark=text)
    assert json.loads(plain.getvalue())["remark"] == text
    assert is_clean(plain.getvalue())

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            library.append(record.getMessage())

    root, kept = logging.getLogger(log.ROOT), Kept()
    root.addHandler(kept)
    log.get_logger("x").info("thing.happened", remark=text)
    root.removeHandler(kept)
    assert library == [f"thing.happened remark={printable(text)}"]


def test_error_message_in_a_logged_traceback_has_no_control_characters() -> None:
    terminal = Terminal()
    log.configure(stream=terminal)
    try:
        raise ValueError(EVIL)
    except ValueError as error:
        log.get_logger("x").error("thing.failed", exc_info=error)
    written = terminal.getvalue()
    assert "ValueError: no" in written
    assert not any(each in written for each in ("\x1b[2J", "\x9b", "\x00", "\r", "\u202e"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text() | st.just(EVIL))
def test_text_printed_by_a_command_is_escaped(capsys: pytest.CaptureFixture[str], text: str) -> None:
    print_line(f"broker {text} refused")
    assert is_clean(capsys.readouterr().out)
    print_error(text)
    assert is_clean(capsys.readouterr().err)
    print_table(["what"], [(text,)])
    assert all(line.isprintable() for line in capsys.readouterr().out.split("\n"))
    document = json_text({"remark": text}, indent=2)
    assert all(line.isprintable() for line in document.split("\n"))
    assert json.loads(document) == {"remark": text}

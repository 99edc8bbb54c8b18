"""Output for users."""

import pytest
from rich.cells import cell_len

from lockstep.cli.render import FOLDED_ROWS_MAX, print_table
from lockstep.operations.messages.message_text import message_json
from lockstep.operations.text import body_text, format_duration, format_time
from lockstep.protocol.messages.message import Message, decode_messages, encode_message
from lockstep.protocol.messages.record import encode_record
from lockstep.runtime.logs.safe_text import printable


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, None),
        (0, "0.0 s"),
        (1_500, "1.5 s"),
        (9_999, "10.0 s"),
        (10_000, "10 s"),
        (119_999, "119 s"),
        (120_000, "2 min"),
        (7_199_999, "119 min"),
        (7_200_000, "2 h"),
        (172_799_999, "47 h"),
        (172_800_000, "2 d"),
    ],
)
def test_duration_is_printed_in_a_suitable_unit(milliseconds: int | None, text: str | None) -> None:
    assert format_duration(milliseconds) == text


def test_timestamp_is_utc_with_milliseconds() -> None:
    assert format_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"


@pytest.mark.parametrize("milliseconds", [2**62, -(2**62), 253_402_300_800_000, -62_135_596_800_001])
def test_timestamp_that_is_no_time_of_a_calendar_is_a_number(milliseconds: int) -> None:
    assert format_time(milliseconds) == f"{milliseconds} ms"


def test_message_with_a_hostile_time_of_birth_is_printed() -> None:
    (message,) = decode_messages(encode_record(b"t", 0, b"x", b"", born_ms=2**62), "a")
    assert message_json(message)["born_at"] == f"{2**62} ms"


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[2J\r\nb\u202e") == "a\\x1b[2J\\r\\nb\\u202e"
    (message,) = decode_messages(encode_message(Message("t", b"caf\xc3\xa9 \xff\x00"), 0, "A" * 32, 5), "a")
    assert body_text(message) == "café \\xff\\x00"


def test_body_is_decompressed_or_the_reason_is_shown() -> None:
    (message,) = decode_messages(encode_message(Message("t", "café ".encode() * 2_000), 0, "A" * 32, 5, compress_over=4_096), "a")
    assert len(message.stored_body) < 200
    assert message_json(message)["body"] == body_text(message) == "café " * 2_000

    (message,) = decode_messages(encode_record(b"t", 0, b"rubbish", b"", sys_flag=0x301, born_ms=5), "a")
    assert "is not a zlib stream" in body_text(message)
    assert message_json(message) | {"body": None, "bodyHex": b"rubbish".hex()} == message_json(message)
    assert "is not a zlib stream" in message_json(message)["bodyError"]


def test_square_brackets_in_a_cell_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", ">count"], [("[red]x[/red]", 7), (None, True)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["name", "count"], ["[red]x[/red]", "7"], ["-", "yes"]]


def test_table_without_rows_prints_the_empty_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name"], [], empty="no topics")
    assert capsys.readouterr().out == "no topics\n"


def test_long_cell_is_not_wrapped_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["client"], [("x" * 200,)])
    assert "x" * 200 in capsys.readouterr().out


@pytest.mark.parametrize("rows", [3, FOLDED_ROWS_MAX + 1])
def test_table_of_a_pipe_is_aligned_and_not_folded_however_long_it_is(rows: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", ">count"], [("日本" * 300 if number == 1 else "a", number) for number in range(rows)], title="all")
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "all"
    assert len(lines) == rows + 1
    assert {cell_len(line) for line in lines} == {1_200 + 2 + 5}
    assert lines[2] == "日本" * 300 + " " * 6 + "1"


def test_table_of_a_terminal_is_folded_to_its_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    print_table(["name", ">count"], [("a" * 60, 1)])
    assert max(map(len, capsys.readouterr().out.splitlines()[1:])) <= 40

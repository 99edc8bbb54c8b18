"""Text of objects that are not ours: whatever they do, it is a str that can be stored and shown."""

import traceback
from collections.abc import Callable

import pytest

from lockstep.protocol.errors import ConfigError
from lockstep.protocol.object_text import TEXT_LENGTH_MAX, encodable, name_of, text_of, traceback_of
from support.bad_objects import ERRORS, HUGE, RESULTS, Text


@pytest.mark.parametrize("make", [*ERRORS.values(), *RESULTS.values()], ids=[*ERRORS, *RESULTS])
def test_text_of_any_object_is_a_str_that_can_be_encoded(make: Callable[[], object]) -> None:
    text = text_of(make())
    assert type(text) is str
    assert text.encode()
    assert len(text) <= TEXT_LENGTH_MAX


@pytest.mark.parametrize("make", ERRORS.values(), ids=ERRORS)
def test_traceback_of_any_error_is_a_str_that_can_be_encoded(make: Callable[[], BaseException]) -> None:
    try:
        raise make()
    except BaseException as error:
        shown = traceback_of(error)
    assert type(shown) is str
    assert shown.encode()


def test_traceback_names_the_place_and_the_cause() -> None:
    try:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise ValueError("effect") from cause
    except ValueError as error:
        shown, expected = traceback_of(error), traceback.format_exc()
    assert shown == expected.rstrip()
    assert "KeyError: 'cause'" in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (ConfigError("a setting is wrong"), "ConfigError: a setting is wrong"),
        (ConfigError(), "ConfigError"),
        (ValueError("bad \udcff"), "ValueError: bad \\udcff"),
        (ERRORS["str raises"](), "Unread, whose text can't be shown: RuntimeError"),
        (RESULTS["repr is no str"](), "Odd, whose text can't be shown: TypeError"),
        (42, "42"),
        ("text", "'text'"),
        (ValueError(HUGE), f"ValueError: {HUGE}"[: TEXT_LENGTH_MAX - 1] + "…"),
    ],
)
def test_text_names_the_type_of_an_error(value: object, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_interrupt_while_a_text_is_made_is_raised(stop: type[BaseException]) -> None:
    """A signal may raise it in any code."""

    class SlowError(Exception):
        def __str__(self) -> str:
            raise stop

    with pytest.raises(stop):
        text_of(SlowError())


def test_name_of_a_function_is_its_module_and_name_whatever_they_were_set_to() -> None:
    def listen() -> None: ...

    assert name_of(dict) == "builtins.dict"
    listen.__qualname__ = Text("odd")
    assert name_of(listen) == "function"
    listen.__qualname__ = "half\udcff"
    assert name_of(listen) == f"{__name__}.half\\udcff"
    assert name_of(type(RESULTS["no name of its type"]())).endswith("Odd")


def test_text_without_half_surrogate_pairs_is_unchanged() -> None:
    assert encodable("größer 🐍\n\x00") == "größer 🐍\n\x00"

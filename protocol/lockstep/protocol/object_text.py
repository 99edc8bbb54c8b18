"""Makes text of objects that are not ours: the only place that takes the text, name or traceback of a user's exception, result or function.

Such an object may be of any type, and its methods may raise, or return anything. These functions return a `str` of no subclass that can be
encoded as UTF-8. They raise nothing but KeyboardInterrupt and SystemExit, which a signal may raise in any code. A CancelledError is the
object's own: no task is cancelled while it runs code that does not wait.
"""

import traceback

TEXT_LENGTH_MAX = 10_000
"""Longer texts are cut: an error may quote a whole document."""

_name_of_type = type.__dict__["__name__"].__get__
"""Returns the name of a type, whatever attributes its metaclass defines."""
traceback_object = BaseException.__dict__["__traceback__"].__get__
"""Returns the traceback object of an exception, whatever attributes its type defines."""


def text_of(value: object) -> str:
    """Return text of at most TEXT_LENGTH_MAX characters: "Type: message" for an exception, `repr` for another object."""
    kind = type(value)
    name = encodable(_name_of_type(kind))
    try:
        if not issubclass(kind, BaseException):
            return encodable(repr(value))
        message = encodable(str(value))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as failed:  # listener: an object that can't be shown must not end what shows it
        return f"{name}, whose text can't be shown: {encodable(_name_of_type(type(failed)))}"
    return encodable(f"{name}: {message}") if message else name


def name_of(named: object) -> str:
    """Return the module and the name of a function or type, whatever these attributes were set to."""
    try:
        return encodable(f"{named.__module__}.{named.__qualname__}")  # type: ignore[attr-defined]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # listener: a name that can't be read must not end what shows it
        return encodable(_name_of_type(type(named)))


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, with those of its causes, as Python prints it; its text if it has none that can be shown."""
    try:
        lines = traceback.format_exception(type(error), error, traceback_object(error))
        return "".join(lines).rstrip("\n").encode("utf-8", "backslashreplace").decode()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # listener: an error that can't be shown must not end what shows it
        return text_of(error)


def encodable(text: str) -> str:
    """Return the text with half surrogate pairs escaped, cut to TEXT_LENGTH_MAX."""
    cut = str.__getitem__(text, slice(TEXT_LENGTH_MAX + 1))
    encoded = str.encode(cut, "utf-8", "backslashreplace").decode()
    return encoded if len(encoded) <= TEXT_LENGTH_MAX else encoded[: TEXT_LENGTH_MAX - 1] + "…"

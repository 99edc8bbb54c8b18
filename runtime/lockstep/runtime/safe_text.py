"""Text from others, made safe for a log line and a terminal."""


def printable(text: str) -> str:
    """The text with every character that is not printable escaped: control characters, line breaks, half surrogate pairs, text direction.

    What it returns is returned unchanged by a second call.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in text)


def printable_lines(text: str) -> str:
    """As `printable`, line by line: for tracebacks."""
    return "\n".join(map(printable, text.split("\n")))

"""Make text from other processes safe for log lines and terminals."""


def printable(text: str) -> str:
    """Return the text with every unprintable character escaped: control characters, line breaks, half surrogate pairs, text direction.

    A second call does not change the result.
    """
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else character.encode("unicode_escape").decode() for character in text)


def printable_lines(text: str) -> str:
    """Do the same as `printable`, line by line, for tracebacks."""
    return "\n".join(map(printable, text.split("\n")))

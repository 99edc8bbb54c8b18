"""The language of the pages: English, or one that has a catalogue in `locale`, in the format of gettext.

Findings, errors and log events stay English: people search for them.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from babel.messages.pofile import read_po
from jinja2 import Environment

LOCALE = Path(__file__).parent / "locale"
LANGUAGES = {"en": "English", "zh-CN": "中文"}
COOKIE = "lang"


def chosen_language(asked: str | None, cookie: str | None, accepted: str) -> str:
    """Return the language of a page: the asked one, else the one asked for before (cookie), else the first that the browser accepts."""
    for each in (asked, cookie):
        if each in LANGUAGES:
            return each
    return next(filter(None, map(_known, _by_preference(accepted))), "en")


def _by_preference(accepted: str) -> list[str]:
    """Return the tags of Accept-Language (RFC 9110, 12.5.4), the preferred first; those that are not read as a weight come last."""
    weighed = []
    for part in accepted[:500].split(","):
        tag, _, weight = part.partition(";")
        text = weight.strip().removeprefix("q=")
        weighed.append((-(float(text) if text.replace(".", "", 1).isdecimal() else 1.0 if not text else 0.0), tag.strip().lower()))
    return [tag for weight, tag in sorted(weighed, key=lambda each: each[0]) if weight]


def _known(tag: str) -> str | None:
    return "zh-CN" if tag == "zh" or tag.startswith("zh-") else "en" if tag == "en" or tag.startswith("en-") or tag == "*" else None


@cache
def catalogue(language: str) -> Mapping[str, str]:
    """Return the texts of a language by the English ones."""
    with open(LOCALE / f"{language.replace('-', '_')}.po", "rb") as file:  # world: a part of the package
        return {str(each.id): str(each.string) for each in read_po(file) if each.id and each.string}


def install(environment: Environment, language: str) -> None:
    """Let templates translate by `_("text")` and `{% trans %}`. A text without a translation stays English."""
    known = {} if language == "en" else catalogue(language)

    def words(text: str) -> str:
        return known.get(text, text)

    def plural(one: str, many: str, count: int) -> str:
        return words(one if count == 1 else many)

    environment.add_extension("jinja2.ext.i18n")
    environment.install_gettext_callables(words, plural, newstyle=True)  # type: ignore[attr-defined]
